/* Adds numbers in device memory, from one buffer to the other and back: the result depends on the order of the kernels. */
#include "rounds.h"
#include "gpu.h"

#define WORDS 8

int main(int argc, char **argv) {
    struct options with = options(argc, argv);
    CUdeviceptr buffers[2];
    CUstream stream;
    uint32_t words[WORDS], round = 0;
    open_gpu();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int k = 0; k < 2; k++) {
        MUST(cuMemAlloc_v2(&buffers[k], sizeof words));
        MUST(cuMemsetD32_v2(buffers[k], 0, WORDS));
    }
    MUST(cuCtxSynchronize());
    do {
        round++;
        for (uint32_t k = 0; k < with.kernels; k++) {
            MUST(add(stream, with.kernel_ns, buffers[(k + 1) % 2], buffers[k % 2], delta(round, k), WORDS));
        }
        MUST(cuStreamSynchronize(stream));
        MUST(cuMemcpyDtoH_v2(words, buffers[with.kernels % 2], sizeof words));
        for (int k = 1; k < WORDS; k++) EXPECT(words[k] == words[0]);
    } while (end_round(round, words[0], with.pause_us));
    return 0;
}
