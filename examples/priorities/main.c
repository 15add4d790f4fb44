/* Several priorities in one process: a patient queue has much to do, an urgent one comes later and is done first. */
#include <stdio.h>
#include <stdlib.h>

#include "xsched/xsched.h"
#include "xsched/xsim/hal.h"
#include "xsim.h"

typedef struct {
    const char *name;
    xsim_queue_t vendors;
    HwQueueHandle hwq;
    XQueueHandle xq;
    HwCommandHandle command;
} Queue;

static void check(XResult answer) {
    if (answer != kXSchedSuccess) {
        fprintf(stderr, "%s\n", XSchedLastError());
        exit(1);
    }
}

/* A command: called when it is the queue's turn, it launches 2 ms of work on the vendor's queue. */
static XResult launch(HwQueueHandle hwq, void *queue) {
    (void)hwq;
    return xsim_launch(((Queue *)queue)->vendors, 2000 * 1000) == XSIM_SUCCESS ? kXSchedSuccess : kXSchedErrorHardware;
}

static void make(Queue *queue, xsim_device_t device, int32_t priority) {
    if (xsim_queue_create(device, &queue->vendors) != XSIM_SUCCESS) exit(1);
    check(XsimQueueCreate(&queue->hwq, queue->vendors));
    check(XQueueCreate(&queue->xq, queue->hwq, kPreemptLevelBlock, kQueueCreateFlagNone));
    check(XHintPriority(queue->xq, priority));
    check(HwCommandCreateCallback(&queue->command, launch, queue));
}

static void give_back(Queue *queue) {
    check(XQueueDestroy(queue->xq));
    check(HwCommandDestroy(queue->command));
    check(HwQueueDestroy(queue->hwq));
    xsim_queue_destroy(queue->vendors);
}

static void submit(Queue *queue, int commands) {
    for (int n = 0; n < commands; n++) check(XQueueSubmit(queue->xq, queue->command));
    printf("%s: %d commands submitted\n", queue->name, commands);
}

static unsigned long long done(Queue *queue) {
    uint64_t commands = 0;
    xsim_finished(queue->vendors, &commands);
    return commands;
}

int main(void) {
    xsim_device_t device;
    Queue patient = {.name = "patient"}, urgent = {.name = "urgent"};
    if (xsim_open(NULL, &device) != XSIM_SUCCESS) return 1;
    check(XHintSetScheduler(kSchedulerLocal, kPolicyHighestPriorityFirst));
    make(&patient, device, PRIORITY_MIN);
    make(&urgent, device, PRIORITY_MAX);

    submit(&patient, 200);
    while (done(&patient) == 0) { /* it is at work */ }
    submit(&urgent, 5);
    check(XQueueWaitAll(urgent.xq));
    printf("urgent: %llu of 5 done\n", done(&urgent));
    printf("patient: %s\n", done(&patient) < 100 ? "most of it still to do" : "it went first");
    check(XQueueWaitAll(patient.xq));
    printf("patient: %llu of 200 done\n", done(&patient));

    give_back(&patient);
    give_back(&urgent);
    xsim_close(device);
    return 0;
}
