/*
 * Runs kernels on two GPUs until it is killed, with one thread for each GPU.
 *
 *   two_gpus FIRST_US SECOND_US     duration of a kernel on the first and on the second GPU
 *
 * Prints "ready" when both threads have launched.
 */
#include <pthread.h>
#include <stdatomic.h>
#include "gpu.h"

struct gpu {
    CUcontext context;
    uint64_t kernel_ns;
};

static atomic_int launched;

static void *launch(void *argument) {
    struct gpu *gpu = argument;
    int first = 1;
    MUST(cuCtxSetCurrent(gpu->context));
    for (;;) {
        for (int n = 0; n < 4; n++) MUST(spin(NULL, gpu->kernel_ns));
        if (first && atomic_fetch_add(&launched, 1) == 1) {
            puts("ready");
            fflush(stdout);
        }
        first = 0;
        MUST(cuCtxSynchronize());
    }
    return NULL;
}

int main(int argc, char **argv) {
    struct gpu gpus[2];
    pthread_t threads[2];
    if (argc < 3) return 64;
    gpus[0].context = open_gpu();
    MUST(cuDevicePrimaryCtxRetain(&gpus[1].context, 1));
    for (int n = 0; n < 2; n++) gpus[n].kernel_ns = strtoull(argv[n + 1], NULL, 10) * 1000;
    for (int n = 0; n < 2; n++) EXPECT(pthread_create(&threads[n], NULL, launch, &gpus[n]) == 0);
    for (int n = 0; n < 2; n++) pthread_join(threads[n], NULL);
    return 0;
}
