/*
 * Two processes under the service: the first has much work of low priority, and starts a second process of higher priority, which
 * preempts it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

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

static void create(Queue *queue, xsim_device_t device, Priority priority) {
    if (xsim_queue_create(device, &queue->vendor_queue) != XSIM_SUCCESS) exit(1);
    check(XsimQueueCreate(&queue->hwq, queue->vendor_queue));
    check(XQueueCreate(&queue->xq, queue->hwq, kPreemptLevelBlock, kQueueCreateFlagNone));
    check(XHintPriority(queue->xq, priority));
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

/* The second process: five commands. */
static int high_process(xsim_device_t device) {
    Queue high = {.name = "high"};
    /* The service allows its own user any priority. */
    create(&high, device, PRIORITY_MAX);
    submit(&high, 5);
    check(XQueueWaitAll(high.xq));
    printf("high: %llu of 5 done\n", done(&high));
    destroy(&high);
    return 0;
}

int main(int argc, char **argv) {
    xsim_device_t device;
    Queue low = {.name = "low"};
    if (xsim_open(NULL, &device) != XSIM_SUCCESS) return 1;
    /* The service has its own policy. */
    check(XHintSetScheduler(kSchedulerGlobal, kPolicyUnknown));
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 1) return high_process(device);

    create(&low, device, PRIORITY_MIN);
    submit(&low, 1000);
    while (done(&low) == 0) { /* until it runs */ }
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", argv[0], "high", (char *)NULL);
        _exit(127);
    }
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) return 1;
    printf("low: %s\n", done(&low) < 900 ? "commands are still pending" : "it was not preempted");
    check(XQueueWaitAll(low.xq));
    printf("low: %llu of 1000 done\n", done(&low));
    destroy(&low);
    xsim_close(device);
    return 0;
}
