/*
 * Runs tasks ROUNDS times, on two DLAs, in streams, in the default stream and in the standalone mode, and checks every number. Waits by each
 * function that waits.
 *
 *   compute ROUNDS
 */
#include "cudla.h"

enum { US = 50 };

static void check(long round, const char *way, dla_t *dla, uint64_t tasks) {
    int is_correct = take(dla, tasks);
    printf("round %ld %s: %s\n", round, way, is_correct ? "correct" : "wrong");
    fflush(stdout);
    if (!is_correct) exit(71);
}

static void add_100(void *number) { *(uint64_t *)number += 100; }

int main(int argc, char **argv) {
    if (argc < 2) return 64;
    static dla_t first, second, alone;
    CUevent event;
    open_gpu();
    open_dla(&first, 0, US, CUDLA_CUDA_DLA);
    open_dla(&second, 1, US, CUDLA_CUDA_DLA);
    open_dla(&alone, 0, US, CUDLA_STANDALONE);
    CUstream stream = new_stream(), waiting = new_stream();
    must(CALL(cuEventCreate)(&event, 0), "event");
    for (long round = 0; round < atol(argv[1]); round++) {
        must(submit(&first, stream), "task");
        must(CALL(cuStreamSynchronize)(stream), "synchronize");
        check(round, "stream", &first, 1);
        must(submit(&first, stream), "task");
        must(CALL(cuEventRecord)(event, stream), "record");
        must(CALL(cuEventSynchronize)(event), "event");
        check(round, "event", &first, 1);
        must(submit(&first, stream), "task");
        while (CALL(cuStreamQuery)(stream) != 0) {}
        check(round, "query", &first, 1);
        must(submit(&first, NULL), "task");
        must(CALL(cuStreamSynchronize)(NULL), "synchronize");
        check(round, "default stream", &first, 1);
        must(submit(&second, stream), "task");
        must(CALL(cuStreamSynchronize)(stream), "synchronize");
        check(round, "second DLA", &second, 1);
        /* The task in the other stream reads what the function has written, which ran behind the first task. */
        must(submit(&first, stream), "task");
        must(CALL(cuLaunchHostFunc)(stream, add_100, &first.tensor[0]), "host function");
        must(CALL(cuEventRecord)(event, stream), "record");
        must(CALL(cuStreamWaitEvent)(waiting, event, 0), "wait");
        must(submit(&first, waiting), "task");
        must(CALL(cuStreamSynchronize)(waiting), "synchronize");
        first.tensor[0] -= 100;
        check(round, "two streams", &first, 2);
        must(submit(&alone, NULL), "task");
        while (*(volatile uint64_t *)&alone.tensor[15] == 0) usleep(50);
        check(round, "standalone", &alone, 1);
    }
    CUgraph graph;
    must(CALL(cuStreamBeginCapture_v2)(stream, 2), "capture");
    printf("captured stream: %d\n", submit(&first, stream));
    CALL(cuStreamEndCapture)(stream, &graph);
    must(CALL(cuStreamDestroy_v2)(stream), "destroy");
    must(CALL(cuStreamDestroy_v2)(waiting), "destroy");
    must(CALL(cudlaDestroyDevice)(first.device), "destroy");
    return 0;
}
