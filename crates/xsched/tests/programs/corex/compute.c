/*
 * Adds numbers ROUNDS times, in a stream and in the default stream, and checks them. Waits by each function that waits.
 *
 *   compute ROUNDS
 */
#include "gpu.h"

enum { NS = 50000, LENGTH = 16 };

static CUdeviceptr memory;

/* Adds 5 to every number. */
static void append(CUstream stream) { MUST(add(stream, NS, memory, memory, 5, LENGTH)); }

static void check(long round, const char *way) {
    uint32_t numbers[LENGTH], zero[LENGTH] = {0};
    MUST(cuMemcpyDtoH_v2(numbers, memory, sizeof numbers));
    int is_correct = 1;
    for (int n = 0; n < LENGTH; n++) is_correct &= numbers[n] == 5;
    MUST(cuMemcpyHtoD_v2(memory, zero, sizeof zero));
    printf("round %ld %s: %s\n", round, way, is_correct ? "correct" : "wrong");
    fflush(stdout);
    if (!is_correct) exit(71);
}

int main(int argc, char **argv) {
    if (argc < 2) return 64;
    CUstream stream;
    CUevent event;
    uint32_t zero[LENGTH] = {0};
    open_gpu();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event, 0));
    MUST(cuMemAlloc_v2(&memory, sizeof zero));
    MUST(cuMemcpyHtoD_v2(memory, zero, sizeof zero));
    for (long round = 0; round < atol(argv[1]); round++) {
        append(stream);
        MUST(cuStreamSynchronize(stream));
        check(round, "stream");
        append(stream);
        MUST(cuEventRecord(event, stream));
        MUST(cuEventSynchronize(event));
        check(round, "event");
        append(stream);
        while (cuStreamQuery(stream) != 0) {}
        check(round, "query");
        append(NULL);
        MUST(cuCtxSynchronize());
        check(round, "default stream");
    }
    MUST(cuStreamDestroy_v2(stream));
    return 0;
}
