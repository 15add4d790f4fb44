/*
 * A hint takes effect before its function returns: the next launch follows it. Needs a service.
 *
 *   at_once ROUNDS PRIORITY    PRIORITY is one that is held here; prints how many launches were checked
 *
 * A command that must not run gets some time to run by mistake.
 */
#include "check.h"

static XResult work(HwQueueHandle hwq, void *data) {
    (void)hwq;
    return xsim_launch((xsim_queue_t)data, 1000) == XSIM_SUCCESS ? kXSchedSuccess : kXSchedErrorHardware;
}

static int looked = 0;

/* Submits one command, which must not be launched. */
static void is_held(Lane *lane, HwCommandHandle command) {
    uint64_t done = finished(lane->queue);
    OK(XQueueSubmit(lane->xq, command));
    pause_ms(2);
    CHECK(finished(lane->queue) == done);
    looked++;
}

/* Resumes the queue, so that its command runs. */
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
        /* Changing the scheduler: the program is not held until the service applies the earlier hint. */
        OK(XHintPriority(lane.xq, low));
        OK(XQueueSubmit(lane.xq, command));
        OK(XQueueWaitAll(lane.xq));
        OK(XHintSetScheduler(kSchedulerGlobal, kPolicyUnknown));
        is_held(&lane, command);
        let_go(&lane);

        /* Changing the priority. */
        OK(XHintPriority(lane.xq, low));
        is_held(&lane, command);
        let_go(&lane);

        /* A new queue: its first launch is held if the program is held. */
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
