/* Device code of one library: UNIT names its functions. Every library registers a fat binary of its own. */
#include <cstdio>
#include <cstdlib>
#include <hip/hip_runtime.h>

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define KERNEL JOIN(spin_, UNIT)

/* Runs for so many nanoseconds: the device's clock has 100 MHz. */
extern "C" __global__ void KERNEL(uint64_t ns) {
    const long long end = wall_clock64() + (long long)(ns / 10);
    while (wall_clock64() < end) {
    }
}

static void must_launch(hipError_t error) {
    if (error == hipSuccess) return;
    printf("a launch: error %d\n", (int)error);
    exit(70);
}

extern "C" void JOIN(UNIT, _spin)(uint64_t ns, hipStream_t stream) {
    KERNEL<<<1, 64, 0, stream>>>(ns);
    must_launch(hipGetLastError());
}

#ifdef WITH_MANAGED
__managed__ int JOIN(managed_, UNIT) = 42;
extern "C" int JOIN(UNIT, _managed_value)() { return JOIN(managed_, UNIT); }
#endif

extern "C" void JOIN(UNIT, _spin_per_thread)(uint64_t ns) {
    KERNEL<<<1, 64, 0, hipStreamPerThread>>>(ns);
    must_launch(hipGetLastError());
}
