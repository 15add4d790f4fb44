/*
 * A program beside the service: tells it what it would like, and works whenever it is told to.
 *
 *   served global          puts a queue under the service's control itself, with a priority of 7
 *   served global hints    the same, with hints in the place of commands
 *   served adopted         finds that its queue is scheduled already
 *
 * Each line on standard input has it submit ten commands and wait for them; then it says how many were done. Or it gives a
 * hint, and says whether the service has heard it.
 */
#include "check.h"

static XResult work(HwQueueHandle hwq, void *data) {
    (void)hwq;
    return xsim_launch((xsim_queue_t)data, 1000) == XSIM_SUCCESS ? kXSchedSuccess : kXSchedErrorHardware;
}

int main(int argc, char **argv) {
    int adopted = argc > 1 && strcmp(argv[1], "adopted") == 0;
    int hints = argc > 2 && strcmp(argv[2], "hints") == 0;
    Lane lane;
    if (adopted) {
        XQueueHandle same;
        CHECK(xsim_open(NULL, &lane.device) == XSIM_SUCCESS);
        CHECK(xsim_queue_create(lane.device, &lane.queue) == XSIM_SUCCESS);
        OK(XsimQueueCreate(&lane.hwq, lane.queue));
        OK(XQueueGet(&lane.xq, lane.hwq));
        EXPECT(kXSchedErrorNotAllowed, XQueueCreate(&same, lane.hwq, kPreemptLevelBlock, 0));
        /* Who gives the handle back is still scheduled, and gets another. */
        OK(XQueueDestroy(lane.xq));
        EXPECT(kXSchedErrorNotFound, XQueueResume(lane.xq, 0));
        OK(XQueueCreate(&lane.xq, lane.hwq, kPreemptLevelBlock, 0));
    } else {
        lane = lane_open(kPreemptLevelBlock, kQueueCreateFlagNone);
        OK(XHintSetScheduler(kSchedulerGlobal, kPolicyUnknown));
    }
    OK(XHintPriority(lane.xq, 7));
    OK(XHintTimeslice(3000));
    HwCommandHandle command;
    OK(HwCommandCreateCallback(&command, work, lane.queue));
    printf("ready\n");
    fflush(stdout);
    while (getchar() == '\n') {
        if (hints) {
            XResult answer = XHintPriority(lane.xq, 6);
            CHECK(answer == kXSchedSuccess || answer == kXSchedErrorBadResponse);
            printf("%s\n", answer == kXSchedSuccess ? "accepted" : "rejected");
            fflush(stdout);
            continue;
        }
        for (int n = 0; n < 10; n++) OK(XQueueSubmit(lane.xq, command));
        OK(XQueueWaitAll(lane.xq));
        printf("%llu\n", (unsigned long long)finished(lane.queue));
        fflush(stdout);
    }
    OK(HwCommandDestroy(command));
    lane_close(&lane);
    return 0;
}
