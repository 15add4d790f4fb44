/* Callback commands: the queue calls them in order while it may run, and keeps few of them on the device at a time. */
#include <stdio.h>
#include <stdlib.h>

#include "xsched/xsched.h"
#include "xsched/xsim/hal.h"
#include "xsim.h"

enum { COMMANDS = 200, IN_FLIGHT = 4 };

typedef struct {
    xsim_queue_t queue;
    int number;
} Step;

static int next, in_order = 1, most_in_flight;

static void check(XResult result) {
    if (result != kXSchedSuccess) {
        fprintf(stderr, "%s\n", XSchedLastError());
        exit(1);
    }
}

/* Commands of one queue are called one at a time, so their shared data needs no lock. */
static XResult step(HwQueueHandle hwq, void *data) {
    Step *self = data;
    uint64_t finished = 0;
    (void)hwq;
    in_order = in_order && self->number == next++;
    xsim_finished(self->queue, &finished);
    if (next - (int)finished > most_in_flight) most_in_flight = next - (int)finished;
    return xsim_launch(self->queue, 50 * 1000) == XSIM_SUCCESS ? kXSchedSuccess : kXSchedErrorHardware;
}

int main(void) {
    xsim_device_t device;
    xsim_queue_t queue;
    HwQueueHandle hwq;
    XQueueHandle xq;
    static Step steps[COMMANDS];
    static HwCommandHandle commands[COMMANDS];
    if (xsim_open(NULL, &device) != XSIM_SUCCESS || xsim_queue_create(device, &queue) != XSIM_SUCCESS) return 1;
    check(XsimQueueCreate(&hwq, queue));
    check(XQueueCreate(&xq, hwq, kPreemptLevelBlock, kQueueCreateFlagNone));
    check(XQueueSetLaunchConfig(xq, IN_FLIGHT, 1));
    for (int n = 0; n < COMMANDS; n++) {
        steps[n].queue = queue;
        steps[n].number = n;
        check(HwCommandCreateCallback(&commands[n], step, &steps[n]));
        check(XQueueSubmit(xq, commands[n]));
    }
    /* Waits for one of them, then for all. */
    check(XQueueWait(xq, commands[0]));
    check(XQueueWaitAll(xq));
    printf("%d commands done, %s\n", next, in_order ? "in order" : "out of order");
    printf("never more than %d in flight: %s\n", IN_FLIGHT, most_in_flight <= IN_FLIGHT ? "yes" : "no");

    /* Commands that wait in a suspended queue can be dropped. */
    check(XQueueSuspend(xq, kQueueSuspendFlagWaitAll));
    for (int n = 0; n < 10; n++) check(XQueueSubmit(xq, commands[n]));
    check(XQueueResume(xq, kQueueResumeFlagDropCommands));
    check(XQueueWaitAll(xq));
    printf("after dropping 10 more: %d done\n", next);

    check(XQueueDestroy(xq));
    for (int n = 0; n < COMMANDS; n++) check(HwCommandDestroy(commands[n]));
    check(HwQueueDestroy(hwq));
    xsim_queue_destroy(queue);
    xsim_close(device);
    return 0;
}
