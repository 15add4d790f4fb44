/*
 * Serves requests of KERNELS kernels of STEPS steps each, PAUSE_MS apart. Prints the latency of each in microseconds, with
 * `cost` also the CPU time of all threads of this program.
 *
 *   cl_requests REQUESTS KERNELS STEPS PAUSE_MS [cost]
 */
#include "cl.h"

static double spent_us(void) {
    struct timespec spent;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
    return (double)spent.tv_sec * 1e6 + (double)spent.tv_nsec / 1e3;
}

int main(int argc, char **argv) {
    if (argc < 5) return 64;
    long requests = atol(argv[1]), kernels = atol(argv[2]), pause_ms = atol(argv[4]);
    open_device(SPIN);
    cl_command_queue queue = queue_with(0);
    cl_kernel spin = spin_of(queue, (cl_uint)atol(argv[3]));
    printf("ready\n");
    fflush(stdout);
    for (long n = 0; n < requests; n++) {
        if (pause_ms > 0) usleep((useconds_t)pause_ms * 1000);
        double begun = now_us(), before = spent_us();
        for (long k = 0; k < kernels; k++) enqueue_spin(queue, spin);
        must(CALL(clFinish)(queue), "finish");
        double took = now_us() - begun, spent = spent_us() - before;
        if (argc > 5) printf("%.0f %.0f\n", took, spent);
        else printf("%.0f\n", took);
        fflush(stdout);
    }
    return 0;
}
