/*
 * Kernels in rounds, with a pause after each round, and one of several ways to see that a round is done.
 *
 *   foreground HOW ROUNDS KERNELS KERNEL_US PAUSE_US
 *
 * HOW: stream, context, event, copy (waits, the last with a copy to the host), each, each-copy (waits for every kernel), query (asks
 * until it is done), none (never asks, and pauses for the kernels too).
 * Says how many microseconds each round took; with none, 0. Then "idle", and ends with a line of input.
 */
#include "gpu.h"

int main(int argc, char **argv) {
    if (argc < 6) return 64;
    const char *how = argv[1];
    long rounds = atol(argv[2]), kernels = atol(argv[3]), us = atol(argv[4]), pause = atol(argv[5]);
    CUstream stream = NULL;
    CUevent end;
    CUdeviceptr word;
    uint32_t copy;
    open_gpu();
    MUST(cuMemAlloc_v2(&word, sizeof copy));
    /* A copy waits for the default stream. */
    if (strstr(how, "copy") == NULL) MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&end, CU_EVENT_DISABLE_TIMING));
    int asks = strcmp(how, "none") != 0;
    for (long round = 0; round < rounds; round++) {
        uint64_t begun = now_ns();
        for (long n = 0; n < kernels; n++) {
            MUST(spin(stream, us * 1000));
            if (strcmp(how, "each") == 0) MUST(cuStreamSynchronize(stream));
            if (strcmp(how, "each-copy") == 0) MUST(cuMemcpyDtoH_v2(&copy, word, sizeof copy));
        }
        if (strcmp(how, "event") == 0) {
            MUST(cuEventRecord(end, stream));
            MUST(cuEventSynchronize(end));
        } else if (strcmp(how, "copy") == 0) {
            MUST(cuMemcpyDtoH_v2(&copy, word, sizeof copy));
        } else if (strcmp(how, "context") == 0) {
            MUST(cuCtxSynchronize());
        } else if (strcmp(how, "query") == 0) {
            int answer;
            while ((answer = cuStreamQuery(stream)) == 600) sleep_until(now_ns() + 100000);
            MUST(answer);
        } else if (asks && strstr(how, "copy") == NULL) {
            MUST(cuStreamSynchronize(stream));
        }
        uint64_t ended = now_ns();
        printf("%llu\n", asks ? (unsigned long long)(ended - begun) / 1000 : 0);
        fflush(stdout);
        sleep_until(ended + (pause + (asks ? 0 : kernels * us)) * 1000);
    }
    puts("idle");
    fflush(stdout);
    getchar();
    return 0;
}
