/*
  * Launches kernels in rounds, with a pause after each round, and one of several ways to detect that a round is complete.
 *
 *   foreground HOW ROUNDS KERNELS KERNEL_US PAUSE_US
 *
  * HOW: stream, context, event, copy (waits with that call, the last one with a copy to the host), each, each-copy (waits for
  * every kernel), query (polls until complete), none (neither waits nor polls; the pause includes the kernels' time).
  * Prints the microseconds that each round took, or 0 with none; then "idle", and exits on a line of input.
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
    /* A synchronous copy waits for the default stream only, so the copying modes use that. */
    if (strstr(how, "copy") == NULL) MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&end, CU_EVENT_DISABLE_TIMING));
    int waits = strcmp(how, "none") != 0;
    for (long round = 0; round < rounds; round++) {
        uint64_t start = now_ns();
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
            int result;
            while ((result = cuStreamQuery(stream)) == 600) sleep_until(now_ns() + 100000);
            MUST(result);
        } else if (waits && strstr(how, "copy") == NULL) {
            MUST(cuStreamSynchronize(stream));
        }
        uint64_t end = now_ns();
        printf("%llu\n", waits ? (unsigned long long)(end - start) / 1000 : 0);
        fflush(stdout);
        sleep_until(end + (pause + (waits ? 0 : kernels * us)) * 1000);
    }
    puts("idle");
    fflush(stdout);
    getchar();
    return 0;
}
