/*
 * Serves requests of KERNELS algorithms of KERNEL_US each, PAUSE_MS apart. Prints the latency of each in microseconds.
 *
 *   requests REQUESTS KERNELS KERNEL_US PAUSE_MS pva|cpu
 */
#include "vpi.h"

int main(int argc, char **argv) {
    if (argc < 6) return 64;
    long requests = atol(argv[1]), kernels = atol(argv[2]), pause_ms = atol(argv[4]);
    uint64_t backend = strcmp(argv[5], "cpu") == 0 ? VPI_BACKEND_CPU : VPI_BACKEND_PVA;
    VPIStream stream = new_stream();
    VPIImage image = new_image(atoi(argv[3]));
    printf("ready\n");
    fflush(stdout);
    for (long n = 0; n < requests; n++) {
        if (pause_ms > 0) usleep((useconds_t)pause_ms * 1000);
        double begun = now_us();
        for (long k = 0; k < kernels; k++) increment(image, backend, stream);
        must(CALL(vpiStreamSync)(stream), "synchronize");
        double latency = now_us() - begun;
        if (!take(image, (float)kernels)) {
            printf("wrong\n");
            return 71;
        }
        printf("%.0f\n", latency);
        fflush(stdout);
    }
    return 0;
}
