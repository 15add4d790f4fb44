/* A tool for HSA_TOOLS_LIB: counts created queues and doorbells, and prints the counts at exit. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { QUEUE_CREATE = 7, STORE_RELEASE = 42 };

typedef struct { uint32_t version[4]; void *functions[]; } Core;
typedef struct { uint32_t version[4]; Core *core; } Tables;

static int (*real_create)(uint64_t, uint32_t, uint32_t, void *, void *, uint32_t, uint32_t, void **);
static void (*real_store)(uint64_t, int64_t);
static int queues, stores;

static int create(uint64_t agent, uint32_t size, uint32_t type, void *callback, void *data, uint32_t private, uint32_t group, void **place) {
    __atomic_add_fetch(&queues, 1, __ATOMIC_RELAXED);
    return real_create(agent, size, type, callback, data, private, group, place);
}

static void store(uint64_t signal, int64_t value) {
    __atomic_add_fetch(&stores, 1, __ATOMIC_RELAXED);
    real_store(signal, value);
}

bool OnLoad(Tables *tables, uint64_t version, uint64_t failed, const char *const *names) {
    (void)version, (void)failed, (void)names;
    real_create = tables->core->functions[QUEUE_CREATE];
    real_store = tables->core->functions[STORE_RELEASE];
    tables->core->functions[QUEUE_CREATE] = create;
    tables->core->functions[STORE_RELEASE] = store;
    return true;
}

void OnUnload(void) {
    printf("the tool saw %d queues and %s\n", queues, stores >= 21 ? "every doorbell" : "too few doorbells");
    fflush(stdout);
}
