/*
 * Serves requests of KERNELS kernels of KERNEL_US each, PAUSE_MS apart. Prints the latency of each in microseconds.
 *
 *   requests REQUESTS KERNELS KERNEL_US PAUSE_MS
 */
#include <unistd.h>

#include "gpu.h"

int main(int argc, char **argv) {
    if (argc < 5) return 64;
    long requests = atol(argv[1]), kernels = atol(argv[2]), us = atol(argv[3]), pause_ms = atol(argv[4]);
    CUstream stream;
    open_gpu();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    printf("ready\n");
    fflush(stdout);
    for (long n = 0; n < requests; n++) {
        if (pause_ms > 0) usleep((useconds_t)pause_ms * 1000);
        uint64_t begun = now_ns();
        for (long k = 0; k < kernels; k++) MUST(spin(stream, (uint64_t)us * 1000));
        MUST(cuStreamSynchronize(stream));
        printf("%llu\n", (unsigned long long)(now_ns() - begun) / 1000);
        fflush(stdout);
    }
    return 0;
}
