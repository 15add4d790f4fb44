/*
 * Streams that wait for events which are recorded later. After each wait follow KERNELS kernels of 0.2 ms, more than may be in flight.
 *
 *   waits ROUNDS KERNELS [wait]
 */
#include "acl.h"

int main(int argc, char **argv) {
    if (argc < 3) return 64;
    long rounds = atol(argv[1]), kernels = atol(argv[2]);
    open_device();
    uint64_t *counter = new_memory(sizeof *counter);
    aclrtStream first = new_stream(), second = new_stream();
    aclrtEvent start = new_event(), middle = new_event();
    printf("ready\n");
    fflush(stdout);
    if (argc > 3) getchar();
    for (long round = 0; round < rounds; round++) {
        /* The second stream waits for the first, and the first for the default stream, to which nothing was launched yet. */
        must(CALL(aclrtStreamWaitEvent)(second, middle), "wait");
        for (long n = 0; n < kernels; n++) increment(200, counter, second);
        must(CALL(aclrtStreamWaitEvent)(first, start), "wait");
        for (long n = 0; n < kernels; n++) increment(200, counter, first);
        must(CALL(aclrtRecordEvent)(middle, first), "record");
        increment(200, counter, NULL);
        must(CALL(aclrtRecordEvent)(start, NULL), "record");
        must(CALL(aclrtSynchronizeStream)(second), "synchronize");
        int is_correct = *counter == (uint64_t)((round + 1) * (2 * kernels + 1));
        must(CALL(aclrtResetEvent)(start, second), "reset");
        must(CALL(aclrtResetEvent)(middle, second), "reset");
        must(CALL(aclrtSynchronizeStream)(second), "synchronize");
        printf("round %ld: %s\n", round, is_correct ? "correct" : "wrong");
        fflush(stdout);
    }
    return 0;
}
