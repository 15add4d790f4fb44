/* RCCL: collectives on every GPU of the machine, by one process. Sums are simulated; every call must succeed. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 65536, ROUNDS = 300, MAX_GPUS = 8, FLOAT = 7, SUM = 0 };

static int failures;

static void check(const char *what, int result) {
    if (result != 0) {
        printf("%s: %d\n", what, result);
        failures++;
    }
}

static void *library(const char *name) {
    void *found = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    if (!found) {
        printf("%s\n", dlerror());
        exit(2);
    }
    return found;
}

static void *function(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        printf("%s\n", dlerror());
        exit(2);
    }
    return found;
}

int main(void) {
    void *hip = library("libamdhip64.so.7"), *rccl = library("librccl.so.1");
    int (*count_devices)(int *) = function(hip, "hipGetDeviceCount"), (*set_device)(int) = function(hip, "hipSetDevice");
    int (*create)(void **) = function(hip, "hipStreamCreate"), (*synchronize)(void *) = function(hip, "hipStreamSynchronize");
    int (*allocate)(void **, size_t) = function(hip, "hipMalloc");
    int (*init)(void **, int, const int *) = function(rccl, "ncclCommInitAll"), (*destroy)(void *) = function(rccl, "ncclCommDestroy");
    int (*start)(void) = function(rccl, "ncclGroupStart"), (*end)(void) = function(rccl, "ncclGroupEnd");
    int (*reduce)(const void *, void *, size_t, int, int, void *, void *) = function(rccl, "ncclAllReduce");
    int (*gather)(const void *, void *, size_t, int, void *, void *) = function(rccl, "ncclAllGather");
    void *streams[MAX_GPUS], *from[MAX_GPUS], *to[MAX_GPUS], *communicators[MAX_GPUS];
    int gpus = 0;
    check("hipGetDeviceCount", count_devices(&gpus));
    gpus = gpus > MAX_GPUS ? MAX_GPUS : gpus;
    for (int i = 0; i < gpus; i++) {
        check("hipSetDevice", set_device(i));
        check("hipStreamCreate", create(&streams[i]));
        check("hipMalloc", allocate(&from[i], COUNT * 4) | allocate(&to[i], COUNT * 4 * MAX_GPUS));
    }
    check("ncclCommInitAll", init(communicators, gpus, NULL));
    for (int round = 0; round < ROUNDS; round++) {
        check("ncclGroupStart", start());
        for (int i = 0; i < gpus; i++)
            if (round % 2)
                check("ncclAllGather", gather(from[i], to[i], COUNT, FLOAT, communicators[i], streams[i]));
            else
                check("ncclAllReduce", reduce(from[i], to[i], COUNT, FLOAT, SUM, communicators[i], streams[i]));
        check("ncclGroupEnd", end());
        for (int i = 0; i < gpus; i++)
            check("hipStreamSynchronize", synchronize(streams[i]));
    }
    for (int i = 0; i < gpus; i++)
        check("ncclCommDestroy", destroy(communicators[i]));
    printf("%d collectives on %d GPUs, %d failures\n", ROUNDS, gpus, failures);
    return failures != 0;
}
