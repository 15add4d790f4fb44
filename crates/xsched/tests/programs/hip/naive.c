/*
 * A naive interposer, with the faults that NAIVE names:
 *   copy    opens a second runtime by path (NAIVE_RUNTIME) and calls it
 *   call    calls a function that always fails on AMD before it launches
 *   defer   launches later, on its own thread, with the caller's pointers
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "hip.h"

typedef hipError_t (*Launch)(const void *, dim3, dim3, void **, size_t, hipStream_t);
typedef hipError_t (*ModuleLaunch)(hipFunction_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, size_t, hipStream_t, void **, void **, hipEvent_t, hipEvent_t, uint32_t);

static int has(const char *fault) {
    const char *faults = getenv("NAIVE");
    return faults != NULL && strstr(faults, fault) != NULL;
}

static void *real(const char *name) {
    static void *own;
    if (!has("copy")) return dlsym(RTLD_NEXT, name);
    if (own == NULL) own = dlopen(getenv("NAIVE_RUNTIME"), RTLD_NOW | RTLD_LOCAL);
    return own ? dlsym(own, name) : NULL;
}

static void ask(void) {
    if (has("call")) ((hipError_t(*)(void))real("hipCtxSynchronize"))();
}

struct later { const void *f; dim3 grid, block; void **args; size_t shared; hipStream_t stream; };
static pthread_t last;
static int deferred;

static void *launch_later(void *data) {
    struct later *later = data;
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    ((Launch)real("hipLaunchKernel"))(later->f, later->grid, later->block, later->args, later->shared, later->stream);
    free(later);
    return NULL;
}

hipError_t hipLaunchKernel(const void *f, dim3 grid, dim3 block, void **args, size_t shared, hipStream_t stream) {
    ask();
    if (!has("defer")) return ((Launch)real("hipLaunchKernel"))(f, grid, block, args, shared, stream);
    struct later *later = malloc(sizeof *later);
    *later = (struct later){f, grid, block, args, shared, stream};
    deferred = pthread_create(&last, NULL, launch_later, later) == 0;
    return 0;
}

hipError_t hipExtModuleLaunchKernel(hipFunction_t f, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz, size_t shared, hipStream_t stream, void **args, void **extra, hipEvent_t start, hipEvent_t stop, uint32_t flags) {
    ask();
    return ((ModuleLaunch)real("hipExtModuleLaunchKernel"))(f, gx, gy, gz, bx, by, bz, shared, stream, args, extra, start, stop, flags);
}

hipError_t hipStreamSynchronize(hipStream_t stream) {
    return ((hipError_t(*)(hipStream_t))real("hipStreamSynchronize"))(stream);
}

hipError_t hipDeviceSynchronize(void) {
    if (deferred) {
        pthread_join(last, NULL);
        deferred = 0;
    }
    return ((hipError_t(*)(void))real("hipDeviceSynchronize"))();
}
