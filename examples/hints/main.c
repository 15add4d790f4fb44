/* A program that tells its scheduler what it would like, and asks why when it is refused. */
#include <stdio.h>

#include "xsched/xsched.h"
#include "xsched/xsim/hal.h"
#include "xsim.h"

static void tell(const char *what, XResult answer) {
    printf("%-28s %s\n", what, answer == kXSchedSuccess ? "ok" : XSchedLastError());
}

int main(void) {
    xsim_device_t device;
    xsim_queue_t queue;
    HwQueueHandle hwq;
    XQueueHandle xq;
    if (xsim_open(NULL, &device) != XSIM_SUCCESS || xsim_queue_create(device, &queue) != XSIM_SUCCESS) return 1;

    /* The vendor's queue becomes an XQueue, and the process schedules itself by priority. */
    tell("XsimQueueCreate", XsimQueueCreate(&hwq, queue));
    tell("XQueueCreate", XQueueCreate(&xq, hwq, kPreemptLevelBlock, kQueueCreateFlagNone));
    tell("scheduler: local, priority", XHintSetScheduler(kSchedulerLocal, kPolicyHighestPriorityFirst));
    tell("priority 100", XHintPriority(xq, 100));
    tell("priority 1000", XHintPriority(xq, 1000));

    /* Another policy looks at other hints. They can be given at any time, and count at once. */
    tell("scheduler: local, shares", XHintSetScheduler(kSchedulerLocal, kPolicyUtilizationPartition));
    tell("30 % of the device", XHintUtilization(xq, 30));
    tell("turns of 2 ms", XHintTimeslice(2000));
    tell("done within 10 ms", XHintDeadline(xq, 10000));
    tell("no deadline after all", XHintDeadline(xq, NO_DEADLINE));
    tell("a queue that is none", XHintPriority(12345, 1));

    XQueueDestroy(xq);
    HwQueueDestroy(hwq);
    xsim_queue_destroy(queue);
    xsim_close(device);
    return 0;
}
