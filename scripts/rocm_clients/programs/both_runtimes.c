/* Uses two HIP runtimes in one process: creates a stream with each, fills memory on it and reads it back.
 * Usage: both_runtimes LIBRARY... */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 4096, ROUNDS = 50, MAX_RUNTIMES = 4, DEVICE_TO_HOST = 2 };

struct runtime {
    int (*version)(int *), (*create)(void **), (*destroy)(void *), (*synchronize)(void *), (*allocate)(void **, size_t), (*release)(void *);
    int (*fill)(void *, int, size_t, void *), (*copy)(void *, const void *, size_t, int, void *), (*query)(void *), (*last_error)(void);
    void *stream, *memory;
};

static void *function(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        printf("%s\n", dlerror());
        exit(2);
    }
    return found;
}

static int failed;

static void check(const char *what, int number, int result) {
    if (result != 0) {
        printf("runtime %d: %s %d\n", number, what, result);
        failed = 1;
    }
}

int main(int count, char **names) {
    struct runtime runtimes[MAX_RUNTIMES];
    unsigned char *host = malloc(SIZE);
    count = count - 1 > MAX_RUNTIMES ? MAX_RUNTIMES : count - 1;
    for (int i = 0; i < count; i++) {
        struct runtime *r = &runtimes[i];
        void *library = dlopen(names[i + 1], RTLD_NOW | RTLD_LOCAL);
        int version = 0;
        if (!library) {
            printf("%s\n", dlerror());
            return 2;
        }
        r->version = function(library, "hipRuntimeGetVersion"), r->create = function(library, "hipStreamCreate");
        r->destroy = function(library, "hipStreamDestroy"), r->synchronize = function(library, "hipStreamSynchronize");
        r->allocate = function(library, "hipMalloc"), r->release = function(library, "hipFree");
        r->fill = function(library, "hipMemsetAsync"), r->copy = function(library, "hipMemcpyAsync");
        r->query = function(library, "hipStreamQuery"), r->last_error = function(library, "hipGetLastError");
        check("version", i, r->version(&version));
        printf("runtime %d: HIP %d\n", i, version / 10000000);
        check("create", i, r->create(&r->stream));
        check("allocate", i, r->allocate(&r->memory, SIZE));
    }
    /* A stream of one runtime is unknown to the other: error 709 or worse if a call reaches the wrong one. */
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < count; i++) {
            struct runtime *r = &runtimes[i];
            int value = (round * 7 + i * 31) & 0xff;
            check("fill", i, r->fill(r->memory, value, SIZE, r->stream));
            check("copy", i, r->copy(host, r->memory, SIZE, DEVICE_TO_HOST, r->stream));
            check("synchronize", i, r->synchronize(r->stream));
            for (int at = 0; at < SIZE; at++)
                if (host[at] != value) {
                    printf("runtime %d, round %d: byte %d is %d, not %d\n", i, round, at, host[at], value);
                    return 3;
                }
        }
    for (int i = 0; i < count; i++) {
        check("query", i, runtimes[i].query(runtimes[i].stream));
        check("destroy", i, runtimes[i].destroy(runtimes[i].stream));
        check("release", i, runtimes[i].release(runtimes[i].memory));
        check("last error", i, runtimes[i].last_error());
    }
    printf("%d runtimes, %d rounds\n", count, ROUNDS);
    return failed;
}
