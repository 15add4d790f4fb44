/*
 * The interface on a CUDA stream, with a driver library that the program opens itself.
 *
 *   cuda DRIVER
 */
#include <dlfcn.h>

#include "check.h"
#include "xsched/cuda/hal.h"

typedef int (*Launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

static Launch launch;
static void *parameters[1];

static XResult kernel(HwQueueHandle hwq, void *stream) {
    (void)hwq;
    return launch(NULL, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL) == 0 ? kXSchedSuccess : kXSchedErrorHardware;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    HwQueueHandle hwq, same, other;
    XQueueHandle xq;
    HwCommandHandle command;
    char place;
    struct CUstream_st *stream = (struct CUstream_st *)(void *)&place;
    EXPECT(kXSchedErrorInvalidValue, CudaQueueCreate(&hwq, stream));
    void *driver = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    CHECK(driver != NULL);
    *(void **)&launch = dlsym(driver, "cuLaunchKernel");
    void (*counts)(int *);
    *(void **)&counts = dlsym(driver, "driver_counts");
    EXPECT(kXSchedErrorNotFound, CudaQueueGet(&same, stream));
    OK(CudaQueueCreate(&hwq, stream));
    OK(CudaQueueGet(&same, stream));
    CHECK(same == hwq);
    /* The default stream is a stream too. */
    OK(CudaQueueCreate(&other, NULL));
    CHECK(other != hwq);
    EXPECT(kXSchedErrorNotSupported, XQueueCreate(&xq, hwq, kPreemptLevelInterrupt, 0));
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
    int counted[3];
    counts(counted);
    printf("%d launched\n", counted[0]);
    return 0;
}
