/*
 * The interface on a CUDA stream, with a driver library that the program opens itself.
 *
 *   cuda DRIVER
 */
#include <dlfcn.h>

#include "check.h"
#include "xsched/cuda/hal.h"

typedef int Code;
typedef Code (*Launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

static Launch launch;
static Code (*set_current)(void *);
static void *add, *context;
static uint32_t *counter;

/* Adds one to a word, on the device. */
static XResult kernel(HwQueueHandle hwq, void *stream) {
    uint64_t ns = 1000, count = 1;
    uint32_t one = 1;
    void *parameters[] = {&ns, &counter, &counter, &one, &count};
    (void)hwq;
    /* The queue's thread launches commands. */
    if (set_current(context) != 0) return kXSchedErrorHardware;
    return launch(add, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL) == 0 ? kXSchedSuccess : kXSchedErrorHardware;
}

/* The driver's function of this name, with its type. */
#define REACH(name, ...) \
    Code (*name)(__VA_ARGS__); \
    *(void **)&name = dlsym(driver, #name); \
    CHECK(name != NULL)

int main(int argc, char **argv) {
    CHECK(argc == 2);
    HwQueueHandle hwq, same, other;
    XQueueHandle xq;
    HwCommandHandle command;
    struct CUstream_st *stream = (struct CUstream_st *)(void *)&hwq;
    EXPECT(kXSchedErrorInvalidValue, CudaQueueCreate(&hwq, stream));
    void *driver = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL), *module;
    CHECK(driver != NULL);
    *(void **)&launch = dlsym(driver, "cuLaunchKernel");
    REACH(cuInit, unsigned);
    REACH(cuDevicePrimaryCtxRetain, void **, int);
    REACH(cuCtxSetCurrent, void *);
    REACH(cuModuleLoadData, void **, const char *);
    REACH(cuModuleGetFunction, void **, void *, const char *);
    REACH(cuMemHostAlloc, void **, size_t, unsigned);
    REACH(cuStreamCreate, struct CUstream_st **, unsigned);
    set_current = cuCtxSetCurrent;
    CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    CHECK(cuModuleLoadData(&module, "") == 0 && cuModuleGetFunction(&add, module, "add") == 0);
    CHECK(cuMemHostAlloc((void **)&counter, sizeof *counter, 0) == 0 && cuStreamCreate(&stream, 1) == 0);
    *counter = 0;
    EXPECT(kXSchedErrorNotFound, CudaQueueGet(&same, stream));
    OK(CudaQueueCreate(&hwq, stream));
    OK(CudaQueueGet(&same, stream));
    CHECK(same == hwq);
    /* The default stream can be used too. */
    OK(CudaQueueCreate(&other, NULL));
    CHECK(other != hwq);
    OK(XQueueCreate(&xq, hwq, kPreemptLevelBlock, 0));
    OK(HwCommandCreateCallback(&command, kernel, stream));
    for (int n = 0; n < 100; n++) OK(XQueueSubmit(xq, command));
    OK(XQueueWait(xq, command));
    OK(XQueueSuspend(xq, kQueueSuspendFlagSyncHwQueue));
    OK(XQueueResume(xq, kQueueResumeFlagNone));
    OK(XQueueWaitAll(xq));
    OK(HwQueueSynchronize(hwq));
    OK(HwCommandDestroy(command));
    OK(XQueueDestroy(xq));
    OK(HwQueueDestroy(hwq));
    OK(HwQueueDestroy(other));
    printf("%u launched\n", *counter);
    return 0;
}
