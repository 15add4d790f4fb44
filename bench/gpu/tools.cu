// A short CUDA C program for debuggers and profilers: 40 launches on two streams. With an argument, a thread writes out of bounds.
#include <cstdio>

__global__ void add(int *data, int count, int value) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) data[at] += value;
}

int main(int argc, char **) {
    const int count = 1 << 10, launches = 40;
    int *data, sum = 0;
    static int host[count];
    cudaStream_t streams[2];
    for (auto &stream : streams) cudaStreamCreate(&stream);
    cudaMalloc(&data, count * sizeof(int));
    cudaMemset(data, 0, count * sizeof(int));
    for (int launch = 0; launch < launches; launch++) {
        add<<<count / 256, 256, 0, streams[launch % 2]>>>(data, count, launch);
        cudaDeviceSynchronize();
    }
    // The last block writes behind the allocation.
    if (argc > 1) add<<<count / 256 + 1, 256, 0, streams[0]>>>(data, count + 256, 1);
    cudaError_t error = cudaDeviceSynchronize();
    if (error == cudaSuccess) error = cudaMemcpy(host, data, sizeof(host), cudaMemcpyDeviceToHost);
    for (int value : host) sum += value;
    printf("sum %d, %s\n", sum, cudaGetErrorString(error));
    return argc > 1 ? 0 : error != cudaSuccess;
}
