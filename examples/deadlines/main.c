/* Deadlines in one process: work that is due soon preempts work that has time. */
#include <stdio.h>
#include <stdlib.h>

#include "xsched/xsched.h"
#include "xsched/xsim/hal.h"
#include "xsim.h"

typedef struct {
    const char *name;
    xsim_queue_t vendor_queue;
    HwQueueHandle hwq;
    XQueueHandle xq;
    HwCommandHandle command;
} Queue;

static void check(XResult result) {
    if (result != kXSchedSuccess) {
        fprintf(stderr, "%s\n", XSchedLastError());
        exit(1);
    }
}

/* A callback command: the queue calls it when the queue may run, and it launches 2 ms of work on the vendor's queue. */
static XResult launch(HwQueueHandle hwq, void *queue) {
    (void)hwq;
    return xsim_launch(((Queue *)queue)->vendor_queue, 2000 * 1000) == XSIM_SUCCESS ? kXSchedSuccess : kXSchedErrorHardware;
}

static void create(Queue *queue, xsim_device_t device, Deadline deadline_us) {
    if (xsim_queue_create(device, &queue->vendor_queue) != XSIM_SUCCESS) exit(1);
    check(XsimQueueCreate(&queue->hwq, queue->vendor_queue));
    check(XQueueCreate(&queue->xq, queue->hwq, kPreemptLevelBlock, kQueueCreateFlagNone));
    /* The deadline is counted from the moment in which the queue becomes busy. */
    check(XHintDeadline(queue->xq, deadline_us));
    check(HwCommandCreateCallback(&queue->command, launch, queue));
}

static void destroy(Queue *queue) {
    check(XQueueDestroy(queue->xq));
    check(HwCommandDestroy(queue->command));
    check(HwQueueDestroy(queue->hwq));
    xsim_queue_destroy(queue->vendor_queue);
}

static void submit(Queue *queue, int commands) {
    for (int n = 0; n < commands; n++) check(XQueueSubmit(queue->xq, queue->command));
    printf("%s: %d commands submitted\n", queue->name, commands);
}

static unsigned long long done(Queue *queue) {
    uint64_t commands = 0;
    xsim_finished(queue->vendor_queue, &commands);
    return commands;
}

int main(void) {
    xsim_device_t device;
    Queue map = {.name = "map"}, camera = {.name = "camera"};
    if (xsim_open(NULL, &device) != XSIM_SUCCESS) return 1;
    check(XHintSetScheduler(kSchedulerLocal, kPolicyKEarliestDeadlineFirst));
    check(XHintKDeadline(1));
    create(&map, device, 60 * 1000 * 1000);
    create(&camera, device, 20 * 1000);

    submit(&map, 200);
    while (done(&map) == 0) { /* until it runs */ }
    submit(&camera, 3);
    check(XQueueWaitAll(camera.xq));
    printf("camera: %llu of 3 done\n", done(&camera));
    printf("map: %s\n", done(&map) < 100 ? "most commands are still pending" : "it was not preempted");
    check(XQueueWaitAll(map.xq));
    printf("map: %llu of 200 done\n", done(&map));

    destroy(&map);
    destroy(&camera);
    xsim_close(device);
    return 0;
}
