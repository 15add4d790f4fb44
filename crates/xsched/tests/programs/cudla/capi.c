/* The C interface on the DLA tasks of a stream. */
#include <semaphore.h>

#include "cudla.h"

#include "xsched/cudla/hal.h"
#include "xsched/xsched.h"

#define EXPECT(code, call)                                      \
    do {                                                        \
        XResult result = (call);                                \
        if (result != (code)) {                                 \
            printf("%s: %d (%s)\n", #call, result, XSchedLastError()); \
            return 1;                                           \
        }                                                       \
    } while (0)
#define OK(call) EXPECT(kXSchedSuccess, call)

static void wait_for(void *semaphore) { sem_wait(semaphore); }

int main(void) {
    static dla_t dla;
    open_gpu();
    open_dla(&dla, 0, 100, CUDLA_CUDA_DLA);
    CUstream stream = new_stream();
    HwQueueHandle hwq;
    XQueueHandle xq;
    EXPECT(kXSchedErrorInvalidValue, CudlaQueueCreate(NULL, stream));
    EXPECT(kXSchedErrorInvalidValue, CudlaQueueCreate(&hwq, NULL));
    OK(CudlaQueueCreate(&hwq, stream));
    EXPECT(kXSchedErrorNotSupported, XQueueCreate(&xq, hwq, kPreemptLevelDeactivate, 0));
    OK(XQueueCreate(&xq, hwq, kPreemptLevelBlock, 0));
    for (int n = 0; n < 50; n++) must(submit(&dla, stream), "task");
    OK(XQueueWaitAll(xq));
    OK(HwQueueSynchronize(hwq));
    if (!take(&dla, 50)) return 2;
    /* Each launch is counted once. None completes before the function returns. */
    int64_t in_flight;
    sem_t launched;
    sem_init(&launched, 0, 0);
    OK(XQueueSetLaunchConfig(xq, 64, 32));
    must(cuLaunchHostFunc(stream, wait_for, &launched), "host function");
    for (int n = 0; n < 10; n++) must(submit(&dla, stream), "task");
    OK(XQueueProfileHwCommandCount(xq, &in_flight));
    sem_post(&launched);
    OK(XQueueWaitAll(xq));
    if (in_flight != 10 || !take(&dla, 10)) {
        printf("%d in flight\n", (int)in_flight);
        return 3;
    }
    OK(XQueueDestroy(xq));
    OK(HwQueueDestroy(hwq));
    must(cuStreamDestroy_v2(stream), "destroy");
    puts("correct");
    return 0;
}
