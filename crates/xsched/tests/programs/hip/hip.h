/*
 * The parts of HIP that the test programs use, by AMD's names. With LOOK_UP, the runtime is opened with dlopen, and its
 * functions are looked up one by one, half of them with hipGetProcAddress; with BY_VERSION, all of them with dlvsym.
 */
#ifndef HIP_H
#define HIP_H

#include <stddef.h>
#include <stdint.h>

typedef struct { unsigned x, y, z; } dim3;
typedef struct ihipStream_t *hipStream_t;
typedef struct event *hipEvent_t;
typedef struct graph *hipGraph_t;
typedef struct module *hipModule_t;
typedef struct function *hipFunction_t;
typedef int hipError_t;
typedef struct { void *address; size_t pitch, width, height; } hipPitchedPtr;
typedef struct { size_t width, height, depth; } hipExtent;
typedef struct { const void *f; dim3 grid, block; void **args; size_t shared; hipStream_t stream; } hipLaunchParams;
typedef struct { dim3 grid, block; size_t shared; hipStream_t stream; void *attributes; unsigned count; } hipLaunchConfig_t;

#define MANGLED _Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_j
#define FUNCTIONS(HIP) \
    HIP(hipGetDeviceCount, (int *)) \
    HIP(hipSetDevice, (int)) \
    HIP(hipGetLastError, (void)) \
    HIP(hipPeekAtLastError, (void)) \
    HIP(hipMalloc, (void **, size_t)) \
    HIP(hipFree, (void *)) \
    HIP(hipMemcpy, (void *, const void *, size_t, int)) \
    HIP(hipMemcpyAsync, (void *, const void *, size_t, int, hipStream_t)) \
    HIP(hipMemcpyWithStream, (void *, const void *, size_t, int, hipStream_t)) \
    HIP(hipMemcpyDtoDAsync, (void *, void *, size_t, hipStream_t)) \
    HIP(hipMemcpy2DAsync, (void *, size_t, const void *, size_t, size_t, size_t, int, hipStream_t)) \
    HIP(hipMemset, (void *, int, size_t)) \
    HIP(hipMemsetAsync, (void *, int, size_t, hipStream_t)) \
    HIP(hipMemsetD32Async, (void *, int, size_t, hipStream_t)) \
    HIP(hipMemset2DAsync, (void *, size_t, int, size_t, size_t, hipStream_t)) \
    HIP(hipMemset3DAsync, (hipPitchedPtr, int, hipExtent, hipStream_t)) \
    HIP(hipDeviceSynchronize, (void)) \
    HIP(hipDeviceReset, (void)) \
    HIP(hipStreamCreate, (hipStream_t *)) \
    HIP(hipStreamCreateWithFlags, (hipStream_t *, unsigned)) \
    HIP(hipStreamCreateWithPriority, (hipStream_t *, unsigned, int)) \
    HIP(hipExtStreamCreateWithCUMask, (hipStream_t *, uint32_t, const uint32_t *)) \
    HIP(hipStreamDestroy, (hipStream_t)) \
    HIP(hipStreamSynchronize, (hipStream_t)) \
    HIP(hipStreamSynchronize_spt, (hipStream_t)) \
    HIP(hipStreamGetPriority, (hipStream_t, int *)) \
    HIP(hipStreamBeginCapture, (hipStream_t, int)) \
    HIP(hipStreamEndCapture, (hipStream_t, hipGraph_t *)) \
    HIP(hipGraphGetNodes, (hipGraph_t, void *, size_t *)) \
    HIP(hipGraphInstantiate, (void **, hipGraph_t, void *, char *, size_t)) \
    HIP(hipGraphLaunch, (void *, hipStream_t)) \
    HIP(hipGraphLaunch_spt, (void *, hipStream_t)) \
    HIP(hipModuleLoadData, (hipModule_t *, const void *)) \
    HIP(hipModuleGetFunction, (hipFunction_t *, hipModule_t, const char *)) \
    HIP(hipLaunchKernel, (const void *, dim3, dim3, void **, size_t, hipStream_t)) \
    HIP(hipLaunchKernel_spt, (const void *, dim3, dim3, void **, size_t, hipStream_t)) \
    HIP(hipExtLaunchKernel, (const void *, dim3, dim3, void **, size_t, hipStream_t, hipEvent_t, hipEvent_t, int)) \
    HIP(hipLaunchCooperativeKernel, (const void *, dim3, dim3, void **, unsigned, hipStream_t)) \
    HIP(hipLaunchCooperativeKernel_spt, (const void *, dim3, dim3, void **, unsigned, hipStream_t)) \
    HIP(hipLaunchCooperativeKernelMultiDevice, (hipLaunchParams *, int, unsigned)) \
    HIP(hipExtLaunchMultiKernelMultiDevice, (hipLaunchParams *, int, unsigned)) \
    HIP(hipLaunchKernelExC, (const hipLaunchConfig_t *, const void *, void **)) \
    HIP(hipModuleLaunchKernel, (hipFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, hipStream_t, void **, void **)) \
    HIP(hipModuleLaunchCooperativeKernel, (hipFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, hipStream_t, void **)) \
    HIP(hipExtModuleLaunchKernel, (hipFunction_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, size_t, hipStream_t, void **, void **, hipEvent_t, hipEvent_t, uint32_t)) \
    HIP(hipHccModuleLaunchKernel, (hipFunction_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, size_t, hipStream_t, void **, void **, hipEvent_t, hipEvent_t)) \
    HIP(MANGLED, (hipFunction_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, size_t, hipStream_t, void **, void **, hipEvent_t, hipEvent_t, uint32_t)) \
    HIP(hipConfigureCall, (dim3, dim3, size_t, hipStream_t)) \
    HIP(hipSetupArgument, (const void *, size_t, size_t)) \
    HIP(hipLaunchByPtr, (const void *)) \
    HIP(__hipRegisterFunction, (void *, const void *, const char *, const char *, unsigned, void *, void *, void *, void *, int *))

#ifdef LOOK_UP
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#ifdef BY_VERSION
void *dlvsym(void *, const char *, const char *);
static void *find(void *runtime, const char *name) {
    void *found = NULL;
    char version[32];
    for (int n = 40; n < 80 && found == NULL; n++) {
        snprintf(version, sizeof version, "hip_%d.%d", n / 10, n % 10);
        found = dlvsym(runtime, name, version);
    }
    return found;
}
#define FIND_ALL 1
#else
#define find dlsym
#define FIND_ALL 0
#endif
#define HIP(name, arguments) static hipError_t (*name) arguments __attribute__((unused));
FUNCTIONS(HIP)
#undef HIP
#define TEXT(name) #name
static void look_up(void) {
    /* RTLD_LOCAL, as in programs that select one of several runtimes. */
    const char *file = getenv("HIP_RUNTIME");
    void *runtime = dlopen(file ? file : "libamdhip64.so.6", RTLD_NOW | RTLD_LOCAL);
    if (runtime == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(70);
    }
    hipError_t (*get)(const char *, void **, int, uint64_t, int *) = (hipError_t (*)(const char *, void **, int, uint64_t, int *))find(runtime, "hipGetProcAddress");
    int turn = 0, status;
#define HIP(name, arguments) \
    { \
        void *found = NULL; \
        if (!FIND_ALL && turn++ % 2 == 0 && TEXT(name)[0] == 'h') get(TEXT(name), &found, 60400, 0, &status); else found = find(runtime, TEXT(name)); \
        if (found == NULL) { fprintf(stderr, "%s: not found\n", TEXT(name)); exit(70); } \
        name = (hipError_t (*) arguments)found; \
    }
    FUNCTIONS(HIP)
#undef HIP
}
#else
#define HIP(name, arguments) hipError_t name arguments;
FUNCTIONS(HIP)
#undef HIP
static inline void look_up(void) {}
#endif

#endif
