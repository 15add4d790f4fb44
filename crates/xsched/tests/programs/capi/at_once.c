/*
 * Hints count when their functions return: the very next launch obeys them. To be run beside a service.
 *
 *   at_once ROUNDS PRIORITY    PRIORITY is one that may not run here; says how many launches were looked at
 *
 * What may not run is given a moment to run all the same: one that is held has all the time in the world.
 */
#include "check.h"

static XResult work(HwQueueHandle hwq, void *data) {
    (void)hwq;
    return xsim_launch((xsim_queue_t)data, 1000) == XSIM_SUCCESS ? kXSchedSuccess : kXSchedErrorHardware;
}

static int looked = 0;

/* Submits one command, which is not to be launched. */
static void is_held(Lane *lane, HwCommandHandle command) {
    uint64_t done = finished(lane->queue);
    OK(XQueueSubmit(lane->xq, command));
    pause_ms(2);
    CHECK(finished(lane->queue) == done);
    looked++;
}

/* Lets the queue go, and its command with it. */
static void let_go(Lane *lane) {
    uint64_t done = finished(lane->queue);
    OK(XHintPriority(lane->xq, 10));
    OK(XQueueWaitAll(lane->xq));
    CHECK(finished(lane->queue) == done + 1);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    int rounds = atoi(argv[1]), low = atoi(argv[2]);
    Lane lane = lane_open(kPreemptLevelBlock, kQueueCreateFlagNone);
    HwCommandHandle command;
    OK(HwCommandCreateCallback(&command, work, lane.queue));
    for (int round = 0; round < rounds; round++) {
        /* A scheduler: nobody holds the program, until the service does with the hint from before. */
        OK(XHintPriority(lane.xq, low));
        OK(XQueueSubmit(lane.xq, command));
        OK(XQueueWaitAll(lane.xq));
        OK(XHintSetScheduler(kSchedulerGlobal, kPolicyUnknown));
        is_held(&lane, command);
        let_go(&lane);

        /* A priority. */
        OK(XHintPriority(lane.xq, low));
        is_held(&lane, command);
        let_go(&lane);

        /* A queue: its first launch too waits for its turn, if the program has none. */
        lane_close(&lane);
        lane = lane_open(kPreemptLevelBlock, kQueueCreateFlagNone);
        OK(HwCommandDestroy(command));
        OK(HwCommandCreateCallback(&command, work, lane.queue));
        OK(XHintPriority(lane.xq, low));
        is_held(&lane, command);
        let_go(&lane);
        OK(XHintSetScheduler(kSchedulerAppManaged, kPolicyUnknown));
    }
    OK(HwCommandDestroy(command));
    lane_close(&lane);
    printf("%d\n", looked);
    return 0;
}
