/*
 * Serves requests of KERNELS kernels of KERNEL_US each, PAUSE_MS apart. Prints the latency of each in microseconds.
 *
 *   requests REQUESTS KERNELS KERNEL_US PAUSE_MS stream|default|model
 *
 * `default` launches on the default stream, and `model` executes a model that takes as long as all kernels together.
 */
#include "acl.h"

int main(int argc, char **argv) {
    if (argc < 6) return 64;
    long requests = atol(argv[1]), kernels = atol(argv[2]), us = atol(argv[3]), pause_ms = atol(argv[4]);
    int is_model = strcmp(argv[5], "model") == 0;
    open_device();
    uint64_t *counter = new_memory(sizeof *counter), expected = 0;
    aclrtStream stream = strcmp(argv[5], "stream") == 0 ? new_stream() : NULL;
    printf("ready\n");
    fflush(stdout);
    for (long n = 0; n < requests; n++) {
        if (pause_ms > 0) usleep((useconds_t)pause_ms * 1000);
        double begun = now_us();
        if (is_model) {
            must(CALL(aclmdlExecute)((uint32_t)(kernels * us), NULL, (aclmdlDataset *)counter), "model");
            expected++;
        } else {
            for (long k = 0; k < kernels; k++) increment((uint64_t)us, counter, stream);
            must(CALL(aclrtSynchronizeStream)(stream), "synchronize");
            expected += (uint64_t)kernels;
        }
        if (*counter != expected) {
            printf("wrong\n");
            return 71;
        }
        printf("%.0f\n", now_us() - begun);
        fflush(stdout);
    }
    return 0;
}
