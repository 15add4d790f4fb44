/* Adds numbers with kernels that increment a counter in device memory, behind kernels that only take time. */
#include "rounds.h"
#include "hip.h"

int main(int argc, char **argv) {
    struct options with = options(argc, argv);
    hipModule_t module;
    hipFunction_t spin, increment;
    hipStream_t stream;
    uint64_t *counter, count = 0;
    uint32_t round = 0;
    must(hipModuleLoadData(&module, &module), "load");
    must(hipModuleGetFunction(&spin, module, "spin"), "find the kernel");
    must(hipModuleGetFunction(&increment, module, "increment"), "find the kernel");
    must(hipStreamCreate(&stream), "create a stream");
    must(hipMalloc((void **)&counter, sizeof count), "allocate");
    must(hipMemcpy(counter, &count, sizeof count, 1), "copy");
    void *spin_arguments[] = {&with.kernel_ns}, *increment_arguments[] = {&counter};
    do {
        round++;
        for (uint32_t k = 0; k < with.kernels; k++) {
            must(hipModuleLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, spin_arguments, NULL), "launch");
            must(hipModuleLaunchKernel(increment, 1, 1, 1, 1, 1, 1, 0, stream, increment_arguments, NULL), "launch");
        }
        must(hipStreamSynchronize(stream), "synchronize");
        must(hipMemcpy(&count, counter, sizeof count, 2), "copy");
    } while (end_round(round, (uint32_t)count, with.pause_us));
    return 0;
}
