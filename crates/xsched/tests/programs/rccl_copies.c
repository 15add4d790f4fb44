/*
 * Two copies of a collectives library in one process. A communicator of one copy is invalid in the other. Each copy is used in
 * two ways: looked up, and called by name by a library that is linked to it.
 *
 *   rccl_copies LIBRARY LIBRARY CONSUMER CONSUMER    prints the number of communicators
 *
 * With CONSUMER defined this is a library that calls the functions by name.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include "nccl_standin.h"

struct functions {
    int (*get_id)(ncclUniqueId *);
    int (*init)(ncclComm_t *, int, ncclUniqueId, int);
    int (*split)(ncclComm_t, int, int, ncclComm_t *, void *);
    int (*count)(ncclComm_t, int *);
    int (*destroy)(ncclComm_t);
};

#ifdef CONSUMER

static int init(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank) { return ncclCommInitRank(comm, ranks, id, rank); }
static int split(ncclComm_t comm, int color, int key, ncclComm_t *new, void *config) {
    return ncclCommSplit(comm, color, key, new, config);
}
static int destroy(ncclComm_t comm) { return ncclCommDestroy(comm); }

void get_functions(struct functions *functions) {
    *functions = (struct functions){ncclGetUniqueId, init, split, ncclCommCount, destroy};
}

#else

#define MUST(call) \
    do { \
        int code_ = (call); \
        if (code_ != 0) { \
            fprintf(stderr, "%s returned %d\n", #call, code_); \
            exit(70); \
        } \
    } while (0)

static void *find(void *library, const char *name) {
    void *found = library == NULL ? NULL : dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "%s: %s\n", name, dlerror());
        exit(70);
    }
    return found;
}

int main(int argc, char **argv) {
    enum { USERS = 4 };
    struct functions users[USERS];
    ncclComm_t comms[USERS], derived[USERS];
    ncclUniqueId id;
    if (argc < 1 + USERS) return 64;
    /* All are found before the first is used. */
    for (int n = 0; n < USERS; n++) {
        void *library = dlopen(argv[1 + n], RTLD_NOW | RTLD_LOCAL);
        if (n >= 2) {
            void (*get_functions)(struct functions *) = (void (*)(struct functions *))find(library, "get_functions");
            get_functions(&users[n]);
            continue;
        }
        users[n].get_id = (int (*)(ncclUniqueId *))find(library, "ncclGetUniqueId");
        users[n].init = (int (*)(ncclComm_t *, int, ncclUniqueId, int))find(library, "ncclCommInitRank");
        users[n].split = (int (*)(ncclComm_t, int, int, ncclComm_t *, void *))find(library, "ncclCommSplit");
        users[n].count = (int (*)(ncclComm_t, int *))find(library, "ncclCommCount");
        users[n].destroy = (int (*)(ncclComm_t))find(library, "ncclCommDestroy");
    }
    /* Twice: call sites are determined in the first round. */
    for (int round = 0; round < 2; round++) {
        for (int n = 0; n < USERS; n++) {
            int ranks = 0;
            MUST(users[n].get_id(&id));
            MUST(users[n].init(&comms[n], 2, id, 0));
            MUST(users[n].split(comms[n], 0, 0, &derived[n], NULL));
            MUST(users[n].count(derived[n], &ranks));
            if (ranks != 2) return 70;
        }
        for (int n = 0; n < USERS; n++) {
            MUST(users[n].destroy(derived[n]));
            MUST(users[n].destroy(comms[n]));
        }
    }
    printf("%d communicators\n", 2 * 2 * USERS);
    return 0;
}

#endif
