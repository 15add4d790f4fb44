/*
 * Serves requests of TASKS tasks of TASK_US each, PAUSE_MS apart. Prints the latency of each in microseconds.
 *
 *   requests REQUESTS TASKS TASK_US PAUSE_MS stream|default
 */
#include "cudla.h"

int main(int argc, char **argv) {
    if (argc < 6) return 64;
    long requests = atol(argv[1]), tasks = atol(argv[2]), pause_ms = atol(argv[4]);
    static dla_t dla;
    open_gpu();
    open_dla(&dla, 0, (uint32_t)atol(argv[3]), CUDLA_CUDA_DLA);
    CUstream stream = strcmp(argv[5], "stream") == 0 ? new_stream() : NULL;
    printf("ready\n");
    fflush(stdout);
    for (long n = 0; n < requests; n++) {
        if (pause_ms > 0) usleep((useconds_t)pause_ms * 1000);
        double begun = now_us();
        for (long task = 0; task < tasks; task++) must(submit(&dla, stream), "task");
        must(CALL(cuStreamSynchronize)(stream), "synchronize");
        double latency = now_us() - begun;
        if (!take(&dla, (uint64_t)tasks)) {
            printf("wrong\n");
            return 71;
        }
        printf("%.0f\n", latency);
        fflush(stdout);
    }
    return 0;
}
