/*
 * One kernel that takes long, and data to tell whether it was right.
 *
 *   long KERNEL_MS      says "launched", then how many milliseconds it took and what it counted to, which is 5
 */
#include "gpu.h"

int main(int argc, char **argv) {
    if (argc < 2) return 64;
    uint64_t ms = strtoull(argv[1], NULL, 10);
    CUstream stream;
    CUdeviceptr memory;
    uint32_t sum;
    open_gpu();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemAlloc_v2(&memory, 64));
    MUST(fill(stream, 1000, memory, 3, 16));
    MUST(cuStreamSynchronize(stream));
    uint64_t begun = now_ns();
    MUST(add(stream, ms * 1000000, memory, memory, 1, 16));
    MUST(add(stream, 1000, memory, memory, 1, 16));
    puts("launched");
    fflush(stdout);
    MUST(cuStreamSynchronize(stream));
    uint64_t took = (now_ns() - begun) / 1000000;
    MUST(cuMemcpyDtoH_v2(&sum, memory + 60, 4));
    printf("%llu %u\n", (unsigned long long)took, sum);
    return 0;
}
