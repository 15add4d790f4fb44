/*
  * A program that loads modules while it runs kernels, as programs with lazy loading do.
  *
  *   loader KERNELS KERNEL_US     until killed; prints the number of each round
 */
#include <pthread.h>
#include "gpu.h"

static CUcontext context;

static void *load(void *nothing) {
    MUST(cuCtxSetCurrent(context));
    for (;;) {
        CUmodule module;
        MUST(cuModuleLoadData(&module, KERNELS));
        MUST(cuModuleUnload(module));
        sleep_until(now_ns() + 3000000);
    }
    return nothing;
}

int main(int argc, char **argv) {
    if (argc < 3) return 64;
    long kernels = atol(argv[1]), us = atol(argv[2]);
    CUstream stream;
    pthread_t loader;
    context = open_gpu();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    EXPECT(pthread_create(&loader, NULL, load, NULL) == 0);
    for (long round = 1;; round++) {
        for (long n = 0; n < kernels; n++) MUST(spin(stream, us * 1000));
        MUST(cuStreamSynchronize(stream));
        printf("%ld\n", round);
        fflush(stdout);
    }
}
