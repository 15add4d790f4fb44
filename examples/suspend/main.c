/* A robot that suspends its vision while it plans: commands of the suspended queue do not run, and none is lost. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "xsched/xsched.h"
#include "xsched/xsim/hal.h"
#include "xsim.h"

enum { FRAMES = 300 };

static void check(XResult result) {
    if (result != kXSchedSuccess) {
        fprintf(stderr, "%s\n", XSchedLastError());
        exit(1);
    }
}

/* The vision thread calls only the vendor's functions; it contains no XSched code. */
static void *run_vision(void *queue) {
    for (int frame = 0; frame < FRAMES; frame++) xsim_launch((xsim_queue_t)queue, 100 * 1000);
    return NULL;
}

static unsigned long long frames(xsim_queue_t queue) {
    uint64_t done = 0;
    xsim_finished(queue, &done);
    return done;
}

static void pause_ms(long ms) {
    struct timespec span = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&span, NULL);
}

int main(void) {
    xsim_device_t device;
    xsim_queue_t vision;
    HwQueueHandle hwq;
    XQueueHandle xq;
    pthread_t thread;
    if (xsim_open(NULL, &device) != XSIM_SUCCESS || xsim_queue_create(device, &vision) != XSIM_SUCCESS) return 1;
    check(XsimQueueCreate(&hwq, vision));
    check(XQueueCreate(&xq, hwq, kPreemptLevelBlock, kQueueCreateFlagNone));
    /* Few commands in flight make suspending fast: at level 1, those on the device run to completion. */
    check(XQueueSetLaunchConfig(xq, 4, 2));
    pthread_create(&thread, NULL, run_vision, vision);

    for (int plan = 1; plan <= 3; plan++) {
        pause_ms(3);
        check(XQueueSuspend(xq, kQueueSuspendFlagSyncHwQueue));
        unsigned long long before = frames(vision);
        pause_ms(10); /* planning would happen here */
        printf("plan %d: vision did %llu frames meanwhile\n", plan, frames(vision) - before);
        check(XQueueResume(xq, kQueueResumeFlagNone));
    }
    pthread_join(thread, NULL);
    check(XQueueWaitAll(xq));
    printf("vision: %llu of %d frames done\n", frames(vision), FRAMES);

    check(XQueueDestroy(xq));
    check(HwQueueDestroy(hwq));
    xsim_queue_destroy(vision);
    xsim_close(device);
    return 0;
}
