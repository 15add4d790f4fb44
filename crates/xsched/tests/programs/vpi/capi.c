/* The C interface on a stream. */
#include <semaphore.h>

#include "vpi.h"

#include "xsched/vpi/hal.h"
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
    VPIStream stream = new_stream();
    VPIImage image = new_image(100);
    HwQueueHandle hwq;
    XQueueHandle xq;
    EXPECT(kXSchedErrorInvalidValue, VpiQueueCreate(NULL, stream));
    EXPECT(kXSchedErrorInvalidValue, VpiQueueCreate(&hwq, NULL));
    OK(VpiQueueCreate(&hwq, stream));
    EXPECT(kXSchedErrorNotSupported, XQueueCreate(&xq, hwq, kPreemptLevelDeactivate, 0));
    OK(XQueueCreate(&xq, hwq, kPreemptLevelBlock, 0));
    for (int n = 0; n < 50; n++) increment(image, VPI_BACKEND_PVA, stream);
    OK(XQueueWaitAll(xq));
    OK(HwQueueSynchronize(hwq));
    if (!take(image, 50)) return 2;
    /* Each launch is counted once. None completes before the function returns. */
    int64_t in_flight;
    sem_t launched;
    sem_init(&launched, 0, 0);
    OK(XQueueSetLaunchConfig(xq, 64, 32));
    must(vpiSubmitHostFunction(stream, wait_for, &launched), "host function");
    for (int n = 0; n < 10; n++) increment(image, VPI_BACKEND_PVA, stream);
    OK(XQueueProfileHwCommandCount(xq, &in_flight));
    sem_post(&launched);
    OK(XQueueWaitAll(xq));
    if (in_flight != 10 || !take(image, 10)) {
        printf("%d in flight\n", (int)in_flight);
        return 3;
    }
    OK(XQueueDestroy(xq));
    OK(HwQueueDestroy(hwq));
    vpiStreamDestroy(stream);
    puts("correct");
    return 0;
}
