/*
  * A program that serves requests or processes a batch, optionally with a time slice that it sets itself.
  *
  *   load requests COUNT KERNELS KERNEL_US PERIOD_US [SLICE_US]   prints the microseconds that each request took, measured
  *                                                                with the device's clock
  *   load batch KERNELS KERNEL_US [SLICE_US]                      until killed; prints the number of each round
  *   load steps COUNT KERNELS KERNEL_US PERIOD_US GAP_US          as requests, with a pause of GAP_US after each launch
 */
#include "manager.h"
#include "gpu.h"

static void slice(int argc, char **argv, int at) {
    if (argc > at) EXPECT_RESULT(0, set_timeslice(strtoull(argv[at], NULL, 10)));
}

int main(int argc, char **argv) {
    if (argc < 4) return 64;
    CUstream stream;
    open_gpu();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    if (strcmp(argv[1], "batch") == 0) {
        long kernels = atol(argv[2]), us = atol(argv[3]);
        slice(argc, argv, 4);
        for (long round = 1;; round++) {
            for (long n = 0; n < kernels; n++) MUST(spin(stream, us * 1000));
            MUST(cuStreamSynchronize(stream));
            printf("%ld\n", round);
            fflush(stdout);
        }
    }
    long count = atol(argv[2]), kernels = atol(argv[3]), us = atol(argv[4]), period = atol(argv[5]), gap = 0;
    if (strcmp(argv[1], "steps") == 0) gap = atol(argv[6]);
    else slice(argc, argv, 6);
    /* Relates the device's clock to the host's: an event on an idle device completes when it is recorded. */
    CUevent zero, end;
    float ms;
    MUST(cuEventCreate(&zero, 0));
    MUST(cuEventCreate(&end, 0));
    MUST(cuEventRecord(zero, stream));
    MUST(cuEventSynchronize(zero));
    uint64_t origin = 0, next = now_ns();
    for (long n = 0; n < count; n++) {
        uint64_t arrived = now_ns();
        for (long kernel = 0; kernel < kernels; kernel++) {
            MUST(spin(stream, us * 1000));
            if (gap > 0) sleep_until(now_ns() + gap * 1000);
        }
        MUST(cuEventRecord(end, stream));
        MUST(cuStreamSynchronize(stream));
        MUST(cuEventElapsedTime(&ms, zero, end));
        /* Events only give differences, so the origin is estimated: the shortest delay seen so far counts as none. */
        uint64_t seen_zero = now_ns() - (uint64_t)(ms * 1e6);
        if (origin == 0 || seen_zero < origin) origin = seen_zero;
        uint64_t took = origin + (uint64_t)(ms * 1e6) - arrived;
        printf("%llu\n", (unsigned long long)took / 1000);
        fflush(stdout);
        next += period * 1000;
        if (next < now_ns()) next = now_ns();
        sleep_until(next);
    }
    puts("idle");
    fflush(stdout);
    getchar();
    return 0;
}
