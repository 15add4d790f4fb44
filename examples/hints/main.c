/* A program that sets hints for its queue, and prints the reason if one is rejected. */
#include <stdio.h>

#include "xsched/xsched.h"
#include "xsched/xsim/hal.h"
#include "xsim.h"

static void report(const char *what, XResult result) {
    printf("%-28s %s\n", what, result == kXSchedSuccess ? "ok" : XSchedLastError());
}

int main(void) {
    xsim_device_t device;
    xsim_queue_t queue;
    HwQueueHandle hwq;
    XQueueHandle xq;
    if (xsim_open(NULL, &device) != XSIM_SUCCESS || xsim_queue_create(device, &queue) != XSIM_SUCCESS) return 1;

    /* The vendor's queue becomes an XQueue; a local scheduler in this process uses priorities. */
    report("XsimQueueCreate", XsimQueueCreate(&hwq, queue));
    report("XQueueCreate", XQueueCreate(&xq, hwq, kPreemptLevelBlock, kQueueCreateFlagNone));
    report("scheduler: local, priority", XHintSetScheduler(kSchedulerLocal, kPolicyHighestPriorityFirst));
    report("priority 100", XHintPriority(xq, 100));
    report("priority 1000", XHintPriority(xq, 1000));

    /* Another policy uses other hints. They can be set at any time, and take effect at once. */
    report("scheduler: local, shares", XHintSetScheduler(kSchedulerLocal, kPolicyUtilizationPartition));
    report("30 % of the device", XHintUtilization(xq, 30));
    report("time slice of 2 ms", XHintTimeslice(2000));
    report("deadline of 10 ms", XHintDeadline(xq, 10000));
    report("no deadline", XHintDeadline(xq, NO_DEADLINE));
    report("an invalid queue handle", XHintPriority(12345, 1));

    XQueueDestroy(xq);
    HwQueueDestroy(hwq);
    xsim_queue_destroy(queue);
    xsim_close(device);
    return 0;
}
