/*
 * One rank of a job on an AMD GPU, by AMD's names: a communicator, and kernels without an end. It opens the collectives library
 * and looks its functions up, as programs in Python do. With ROUNDS it destroys the communicator after so many rounds.
 *
 * The environment variable OTHER_LIBRARY names another copy of the library, whose functions it looks up first and does not call.
 *
 *   rccl_rank LIBRARY RANK KERNEL_US [ROUNDS]    prints the number of each round of four kernels
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "nccl_standin.h"

typedef struct ihipStream_t *hipStream_t;
typedef struct module *hipModule_t;
typedef struct function *hipFunction_t;
int hipSetDevice(int device);
int hipStreamCreate(hipStream_t *stream);
int hipStreamSynchronize(hipStream_t stream);
int hipModuleLoadData(hipModule_t *module, const void *image);
int hipModuleGetFunction(hipFunction_t *function, hipModule_t module, const char *name);
int hipModuleLaunchKernel(hipFunction_t f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, hipStream_t stream, void **parameters, void **extra);

#define MUST(call) \
    do { \
        int code_ = (call); \
        if (code_ != 0) { \
            fprintf(stderr, "%s returned %d\n", #call, code_); \
            exit(70); \
        } \
    } while (0)

int main(int argc, char **argv) {
    if (argc < 4) return 64;
    int rank = atoi(argv[2]);
    uint64_t ns = strtoull(argv[3], NULL, 10) * 1000;
    void *parameters[] = {&ns};
    if (getenv("OTHER_LIBRARY") != NULL) {
        void *other = dlopen(getenv("OTHER_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
        if (other == NULL || dlsym(other, "ncclCommInitRank") == NULL || dlsym(other, "ncclCommDestroy") == NULL) return 70;
    }
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 70;
    }
    int (*get_id)(ncclUniqueId *) = (int (*)(ncclUniqueId *))dlsym(library, "ncclGetUniqueId");
    int (*init)(ncclComm_t *, int, ncclUniqueId, int) =
        (int (*)(ncclComm_t *, int, ncclUniqueId, int))dlsym(library, "ncclCommInitRank");
    int (*destroy)(ncclComm_t) = (int (*)(ncclComm_t))dlsym(library, "ncclCommDestroy");
    ncclUniqueId id;
    ncclComm_t comm;
    hipStream_t stream;
    hipModule_t module;
    hipFunction_t spin;
    MUST(hipSetDevice(rank));
    MUST(hipStreamCreate(&stream));
    MUST(hipModuleLoadData(&module, "image"));
    MUST(hipModuleGetFunction(&spin, module, "spin"));
    MUST(get_id(&id));
    MUST(init(&comm, 2, id, rank));
    for (long round = 1;; round++) {
        for (int n = 0; n < 4; n++) MUST(hipModuleLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
        MUST(hipStreamSynchronize(stream));
        printf("%ld\n", round);
        fflush(stdout);
        /* From this round on the rank has no communicator. */
        if (argc > 4 && round == atol(argv[4])) MUST(destroy(comm));
    }
}
