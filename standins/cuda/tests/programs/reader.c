/*
  * A program that reads its results back with a synchronous copy, which is not a launch.
  *
  *   reader KERNELS KERNEL_US PAUSE_US     until killed; prints the number of each round
 */
#include "gpu.h"

int main(int argc, char **argv) {
    if (argc < 4) return 64;
    long kernels = atol(argv[1]), us = atol(argv[2]), pause = atol(argv[3]);
    CUdeviceptr memory;
    uint32_t value = 0;
    open_gpu();
    MUST(cuMemAlloc_v2(&memory, sizeof value));
    for (long round = 1;; round++) {
        for (long n = 0; n < kernels; n++) MUST(spin(NULL, us * 1000));
        MUST(fill(NULL, us * 1000, memory, (uint32_t)round, 1));
        /* Once right after the kernels, and once after a pause in which the program made no calls. */
        for (int time = 0; time < 2; time++) {
            MUST(cuMemcpyDtoHAsync_v2(&value, memory, sizeof value, NULL));
            MUST(cuStreamSynchronize(NULL));
            EXPECT(value == (uint32_t)round);
            sleep_until(now_ns() + pause * 1000);
        }
        printf("%ld\n", round);
        fflush(stdout);
    }
}
