/* RCCL: a job of two processes, a GPU and a rank each, which meet by a pipe. Sums are simulated; every call must succeed. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 2, COUNT = 65536, ROUNDS = 3000, COLLECTIVES = 8, FLOAT = 7, SUM = 0 };

typedef struct {
    char bytes[128];
} unique_id;

static void must(const char *what, int result) {
    if (result == 0) return;
    printf("%s: %d\n", what, result);
    exit(1);
}

static void *function(const char *library, const char *name) {
    void *opened = dlopen(library, RTLD_NOW | RTLD_GLOBAL), *found = opened ? dlsym(opened, name) : NULL;
    if (!found) {
        printf("%s\n", dlerror());
        exit(2);
    }
    return found;
}

static void run_rank(int rank, int read_end, int write_end) {
    const char *hip = "libamdhip64.so.7", *rccl = "librccl.so.1";
    int (*set_device)(int) = function(hip, "hipSetDevice"), (*create)(void **) = function(hip, "hipStreamCreate");
    int (*allocate)(void **, size_t) = function(hip, "hipMalloc"), (*synchronize)(void *) = function(hip, "hipStreamSynchronize");
    int (*make_id)(unique_id *) = function(rccl, "ncclGetUniqueId"), (*destroy)(void *) = function(rccl, "ncclCommDestroy");
    int (*init)(void **, int, unique_id, int) = function(rccl, "ncclCommInitRank");
    int (*reduce)(const void *, void *, size_t, int, int, void *, void *) = function(rccl, "ncclAllReduce");
    void *stream, *from, *to, *communicator;
    unique_id id;
    must("hipSetDevice", set_device(rank));
    must("hipStreamCreate", create(&stream));
    must("hipMalloc", allocate(&from, COUNT * 4) | allocate(&to, COUNT * 4));
    if (rank == 0) {
        must("ncclGetUniqueId", make_id(&id));
        must("write", write(write_end, &id, sizeof id) != sizeof id);
    } else {
        must("read", read(read_end, &id, sizeof id) != sizeof id);
    }
    must("ncclCommInitRank", init(&communicator, RANKS, id, rank));
    for (int round = 0; round < ROUNDS; round++) {
        for (int n = 0; n < COLLECTIVES; n++) must("ncclAllReduce", reduce(from, to, COUNT, FLOAT, SUM, communicator, stream));
        must("hipStreamSynchronize", synchronize(stream));
    }
    must("ncclCommDestroy", destroy(communicator));
}

int main(void) {
    int ends[2], status;
    must("pipe", pipe(ends));
    /* Before the first call of HIP: its state does not survive fork. */
    pid_t child = fork();
    run_rank(child == 0, ends[0], ends[1]);
    if (child == 0) return 0;
    waitpid(child, &status, 0);
    must("the other rank", status);
    printf("%d collectives of %d processes\n", ROUNDS * COLLECTIVES, RANKS);
    return 0;
}
