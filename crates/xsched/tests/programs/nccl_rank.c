/*
 * One rank of a job, or all of its ranks: a kernel and a collective in each round.
 *
 *   nccl_rank RANK RANKS ROUNDS KERNEL_US    a rank, on the GPU with its number
 *   nccl_rank all  RANKS ROUNDS KERNEL_US    all ranks in one process, with a thread for each GPU
 *
 * Prints the number of each round, waits for every fourth one, and prints "done" at the end. ROUNDS 0 does not end.
 */
#include <pthread.h>
#include "gpu.h"
#include "nccl_standin.h"

static long rounds;
static uint64_t kernel_ns;
static ncclComm_t comms[8];

static void work(int rank, int prints) {
    CUcontext context;
    CUstream stream;
    MUST(cuDevicePrimaryCtxRetain(&context, rank));
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (long round = 1; rounds == 0 || round <= rounds; round++) {
        MUST(spin(stream, kernel_ns));
        MUST(ncclAllReduce(NULL, NULL, 0, 0, 0, comms[rank], stream));
        if (round % 4 == 0 || round == rounds) MUST(cuStreamSynchronize(stream));
        if (prints) {
            printf("%ld\n", round);
            fflush(stdout);
        }
    }
    MUST(cuStreamSynchronize(stream));
}

static void *thread(void *rank) {
    work((int)(intptr_t)rank, rank == NULL);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 5) return 64;
    int ranks = atoi(argv[2]);
    rounds = atol(argv[3]);
    kernel_ns = strtoull(argv[4], NULL, 10) * 1000;
    open_gpu();
    if (strcmp(argv[1], "all") == 0) {
        pthread_t threads[8];
        MUST(ncclCommInitAll(comms, ranks, NULL));
        for (int n = 0; n < ranks; n++) EXPECT(pthread_create(&threads[n], NULL, thread, (void *)(intptr_t)n) == 0);
        for (int n = 0; n < ranks; n++) pthread_join(threads[n], NULL);
    } else {
        int rank = atoi(argv[1]);
        ncclUniqueId id;
        CUcontext context;
        MUST(cuDevicePrimaryCtxRetain(&context, rank));
        MUST(cuCtxSetCurrent(context));
        MUST(ncclGetUniqueId(&id));
        MUST(ncclCommInitRank(&comms[rank], ranks, id, rank));
        work(rank, 1);
        MUST(ncclCommDestroy(comms[rank]));
    }
    puts("done");
    return 0;
}
