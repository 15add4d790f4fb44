/* The C interface on a stream. */
#include <semaphore.h>

#include "gpu.h"

#include "xsched/corex/hal.h"
#include "xsched/xsched.h"

#define RETURNS(code, call)                                     \
    do {                                                        \
        XResult result = (call);                                \
        if (result != (code)) {                                 \
            printf("%s: %d (%s)\n", #call, result, XSchedLastError()); \
            return 1;                                           \
        }                                                       \
    } while (0)
#define OK(call) RETURNS(kXSchedSuccess, call)

static void wait_for(void *semaphore) { sem_wait(semaphore); }

int main(void) {
    CUstream stream;
    HwQueueHandle hwq, same;
    XQueueHandle xq;
    open_gpu();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    RETURNS(kXSchedErrorInvalidValue, CorexQueueCreate(NULL, (cudaStream_t)stream));
    OK(CorexQueueCreate(&hwq, (cudaStream_t)stream));
    OK(CorexQueueGet(&same, (cudaStream_t)stream));
    if (same != hwq) return 2;
    RETURNS(kXSchedErrorNotSupported, XQueueCreate(&xq, hwq, kPreemptLevelDeactivate, 0));
    OK(XQueueCreate(&xq, hwq, kPreemptLevelBlock, 0));
    /* Each launch is counted once. None completes before the function returns. */
    int64_t in_flight;
    sem_t launched;
    sem_init(&launched, 0, 0);
    OK(XQueueSetLaunchConfig(xq, 64, 32));
    MUST(cuLaunchHostFunc(stream, wait_for, &launched));
    for (int n = 0; n < 10; n++) MUST(spin(stream, 1000));
    OK(XQueueProfileHwCommandCount(xq, &in_flight));
    sem_post(&launched);
    OK(XQueueWaitAll(xq));
    if (in_flight != 10) {
        printf("%d in flight\n", (int)in_flight);
        return 3;
    }
    OK(XQueueDestroy(xq));
    OK(HwQueueDestroy(hwq));
    MUST(cuStreamDestroy_v2(stream));
    puts("correct");
    return 0;
}
