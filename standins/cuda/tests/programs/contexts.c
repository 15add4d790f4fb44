/*
  * A program that creates and destroys contexts.
  *
  *   contexts ROUNDS KERNELS KERNEL_US      prints the number of each round; checks what it computes
  *
  * Each round uses streams in the primary context and in a context of its own. It destroys both in different ways, some with
  * work pending.
 */
#include "gpu.h"

enum { STREAMS = 3 };

static CUcontext keep;

static void load(void) {
    CUmodule module;
    MUST(cuModuleLoadData(&module, KERNELS));
    MUST(cuModuleGetFunction(&spin_kernel, module, "spin"));
    MUST(cuModuleGetFunction(&fill_kernel, module, "fill"));
    MUST(cuModuleGetFunction(&add_kernel, module, "add"));
}

/* Works on the default stream and on created streams. One of these is destroyed, the rest are released with the context. */
static void work(long kernels, uint64_t ns, uint32_t value) {
    CUstream streams[STREAMS] = {NULL};
    CUdeviceptr memory;
    uint32_t read = 0;
    load();
    MUST(cuMemAlloc_v2(&memory, STREAMS * sizeof read));
    for (int n = 1; n < STREAMS; n++) MUST(cuStreamCreate(&streams[n], CU_STREAM_NON_BLOCKING));
    for (long k = 0; k < kernels; k++)
        for (int n = 0; n < STREAMS; n++) MUST(fill(streams[n], ns, memory + n * sizeof read, value + (uint32_t)(k + n), 1));
    for (int n = 0; n < STREAMS; n++) {
        MUST(cuMemcpyDtoHAsync_v2(&read, memory + n * sizeof read, sizeof read, streams[n]));
        MUST(cuStreamSynchronize(streams[n]));
        EXPECT(read == value + (uint32_t)(kernels - 1 + n));
    }
    MUST(cuStreamDestroy_v2(streams[1]));
    /* Leaves work pending when the context is destroyed. */
    if (value % 2 == 0) MUST(spin(streams[2], ns));
}

int main(int argc, char **argv) {
    if (argc < 4) return 64;
    long rounds = atol(argv[1]), kernels = atol(argv[2]);
    uint64_t ns = strtoull(argv[3], NULL, 10) * 1000;
    MUST(cuInit(0));
    for (long round = 1; round <= rounds; round++) {
        CUcontext shared, own;
        unsigned flags;
        int active;
        MUST(cuDevicePrimaryCtxRetain(&shared, 0));
        EXPECT(keep == NULL || keep == shared);
        keep = shared;
        MUST(cuCtxSetCurrent(shared));
        work(kernels, ns, (uint32_t)round);
        MUST(cuCtxCreate_v2(&own, 0, 0));
        work(kernels, ns, (uint32_t)round);
        MUST(cuCtxDestroy_v2(own));
        /* The previous context is current again and still works. */
        work(kernels, ns, (uint32_t)round + 7);
        if (round % 2 == 0) MUST(cuDevicePrimaryCtxReset_v2(0));
        MUST(cuDevicePrimaryCtxRelease_v2(0));
        MUST(cuDevicePrimaryCtxGetState(0, &flags, &active));
        EXPECT(active == 0);
        printf("%ld\n", round);
        fflush(stdout);
    }
    return 0;
}
