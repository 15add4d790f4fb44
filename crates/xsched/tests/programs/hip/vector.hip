// An ordinary program for AMD's compiler and runtime: adds two vectors, and prints the result of each call.
#include <hip/hip_runtime.h>
#include <cstdio>
#include <vector>

__global__ void add(float *to, const float *from, int count) {
    int n = blockIdx.x * blockDim.x + threadIdx.x;
    if (n < count) to[n] += from[n];
}

static void say(const char *what, hipError_t error) {
    std::printf("%s: %s, last error %s\n", what, hipGetErrorName(error), hipGetErrorName(hipPeekAtLastError()));
}

int main() {
    constexpr int count = 1000;
    std::vector<float> one(count, 1), two(count, 2);
    float *a = nullptr, *b = nullptr;
    int devices = -1;
    hipStream_t stream = nullptr;
    say("count", hipGetDeviceCount(&devices));
    say("allocate", hipMalloc(&a, count * sizeof(float)));
    say("allocate", hipMalloc(&b, count * sizeof(float)));
    say("copy", hipMemcpy(a, one.data(), count * sizeof(float), hipMemcpyHostToDevice));
    say("copy", hipMemcpy(b, two.data(), count * sizeof(float), hipMemcpyHostToDevice));
    say("stream", hipStreamCreate(&stream));
    for (int n = 0; n < 3; n++) {
        add<<<(count + 255) / 256, 256, 0, n == 0 ? nullptr : stream>>>(a, b, count);
        say("launch", hipGetLastError());
    }
    void *arguments[] = {&a, &b, (void *)&count};
    say("cooperative", hipLaunchCooperativeKernel((const void *)add, dim3(4), dim3(256), arguments, 0, stream));
    say("wait", hipStreamSynchronize(stream));
    say("wait", hipDeviceSynchronize());
    say("copy", hipMemcpy(one.data(), a, count * sizeof(float), hipMemcpyDeviceToHost));
    if (stream != nullptr) say("destroy", hipStreamDestroy(stream));
    std::printf("%d devices, %g\n", devices, one[0]);
    return 0;
}
