/*
 * A collectives library with the names of NCCL and RCCL. The kernel of a collective runs on its device until the kernels of all
 * ranks have arrived. The ranks meet in a file that they map.
 *
 * Environment:
 *   NCCL_STANDIN_FILE   the file; communicators of one file have the same unique id
 *
 * With NO_DEVICE defined it has communicators only. rocr/rccl_standin.hip compiles it for AMD's runtime, as C++.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "nccl_standin.h"

enum { COLLECTIVES = 1 << 18, SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4 };
/* How long the kernel of a collective takes besides the time for which it waits. */
static const uint64_t COLLECTIVE_NS = 20000;

/* The address differs between two copies of this library in one process. */
static const char copy = 0;

struct ncclComm {
    const char *copy;
    /* For each collective, how many ranks have arrived. */
    uint64_t *arrived;
    uintptr_t device_address;
    int ranks;
    unsigned next;
    /* The kernel of a collective, where it is looked up. */
    void *kernel;
};

/* The functions of the device: select_device, open_device and launch_collective. They return 0 on success. */
#if defined(NO_DEVICE)
static int select_device(int device) { return (void)device, 0; }
static int open_device(struct ncclComm *comm, size_t size) { return (void)comm, (void)size, 0; }
#elif defined(__HIP__)
#include "rocr/rccl_device.h"
#else
#include "standin_cuda.h"

static int select_device(int device) {
    CUcontext context;
    return cuDevicePrimaryCtxRetain(&context, device) != 0 || cuCtxSetCurrent(context) != 0;
}

static int open_device(struct ncclComm *comm, size_t size) {
    CUmodule module;
    CUfunction meet;
    CUdeviceptr address;
    static const char image[] = "kernels";
    /* The second context of a process finds the memory registered. */
    (void)cuMemHostRegister_v2(comm->arrived, size, 0);
    if (cuMemHostGetDevicePointer_v2(&address, comm->arrived, 0) != 0) address = (CUdeviceptr)(uintptr_t)comm->arrived;
    comm->device_address = address;
    if (cuModuleLoadData(&module, image) != 0 || cuModuleGetFunction(&meet, module, "meet") != 0) return 1;
    comm->kernel = meet;
    return 0;
}

/* The kernel counts in the low half of a word. */
static int launch_collective(struct ncclComm *comm, uintptr_t word, void *stream) {
    uint64_t ns = COLLECTIVE_NS;
    CUdeviceptr arrived = word;
    uint32_t expected = (uint32_t)comm->ranks;
    void *parameters[] = {&ns, &arrived, &expected};
    return cuLaunchKernel((CUfunction)comm->kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}
#endif

int ncclGetUniqueId(ncclUniqueId *id) {
    const char *file = getenv("NCCL_STANDIN_FILE");
    memset(id, 0, sizeof *id);
    if (file == NULL || strlen(file) >= sizeof id->internal) return SYSTEM_ERROR;
    strcpy(id->internal, file);
    return SUCCESS;
}

static int create(ncclComm_t *created, int ranks, const char *file, uint64_t *shared) {
    struct ncclComm *comm = (struct ncclComm *)calloc(1, sizeof *comm);
    size_t size = COLLECTIVES * sizeof *shared;
    if (comm == NULL || ranks < 1) return INVALID_ARGUMENT;
    comm->copy = &copy;
    comm->ranks = ranks;
    comm->arrived = shared;
    if (shared == NULL) {
        int fd = open(file, O_RDWR | O_CREAT, 0600);
        if (fd < 0 || ftruncate(fd, (off_t)size) != 0) return SYSTEM_ERROR;
        comm->arrived = (uint64_t *)mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        if (comm->arrived == MAP_FAILED) return SYSTEM_ERROR;
    }
    if (open_device(comm, size) != 0) return SYSTEM_ERROR;
    *created = comm;
    return SUCCESS;
}

int ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank) {
    if (rank < 0 || rank >= ranks) return INVALID_ARGUMENT;
    return create(comm, ranks, id.internal, NULL);
}

int ncclCommInitAll(ncclComm_t *comms, int devices, const int *list) {
    size_t size = COLLECTIVES * sizeof(uint64_t);
    uint64_t *shared = (uint64_t *)mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    (void)list;
    if (shared == MAP_FAILED) return SYSTEM_ERROR;
    for (int n = 0; n < devices; n++) {
        if (select_device(n) != 0) return SYSTEM_ERROR;
        int code = create(&comms[n], devices, NULL, shared);
        if (code != SUCCESS) return code;
    }
    return SUCCESS;
}

int ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *split, void *config) {
    (void)color, (void)key, (void)config;
    if (comm->copy != &copy) return INVALID_ARGUMENT;
    *split = (ncclComm_t)malloc(sizeof **split);
    if (*split == NULL) return SYSTEM_ERROR;
    **split = *comm;
    return SUCCESS;
}

int ncclCommCount(ncclComm_t comm, int *count) {
    if (comm->copy != &copy) return INVALID_ARGUMENT;
    *count = comm->ranks;
    return SUCCESS;
}

int ncclCommDestroy(ncclComm_t comm) {
    if (comm->copy != &copy) return INVALID_ARGUMENT;
    free(comm);
    return SUCCESS;
}

#ifndef NO_DEVICE
int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, ncclComm_t comm, void *stream) {
    (void)from, (void)to, (void)count, (void)type, (void)op;
    if (comm->next >= COLLECTIVES) return INVALID_ARGUMENT;
    uintptr_t word = comm->device_address + comm->next++ * sizeof *comm->arrived;
    return launch_collective(comm, word, stream) == 0 ? SUCCESS : SYSTEM_ERROR;
}
#endif
