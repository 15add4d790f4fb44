/*
 * A program with hints for the service, which runs commands for each line of input.
 *
 *   served global          creates a queue that the service schedules, with a priority of 7
 *   served global hints    the same, with hints instead of commands
 *   served adopted         its queue is already scheduled
 *
 * For each line of input it submits ten commands, waits for them, and prints how many have completed. Or it sends a hint,
 * and prints whether the service has accepted it.
 */
#include "check.h"

static XResult work(HwQueueHandle hwq, void *data) {
    (void)hwq;
    return xsim_launch((xsim_queue_t)data, 1000) == XSIM_SUCCESS ? kXSchedSuccess : kXSchedErrorHardware;
}

int main(int argc, char **argv) {
    int adopted = argc > 1 && strcmp(argv[1], "adopted") == 0;
    int hints = argc > 2 && strcmp(argv[2], "hints") == 0;
    TestQueue test;
    if (adopted) {
        XQueueHandle same;
        CHECK(xsim_open(NULL, &test.device) == XSIM_SUCCESS);
        CHECK(xsim_queue_create(test.device, &test.queue) == XSIM_SUCCESS);
        OK(XsimQueueCreate(&test.hwq, test.queue));
        OK(XQueueGet(&test.xq, test.hwq));
        EXPECT(kXSchedErrorNotAllowed, XQueueCreate(&same, test.hwq, kPreemptLevelBlock, 0));
        /* Destroying the handle does not unschedule the queue; a new handle is a different one. */
        OK(XQueueDestroy(test.xq));
        EXPECT(kXSchedErrorNotFound, XQueueResume(test.xq, 0));
        OK(XQueueCreate(&test.xq, test.hwq, kPreemptLevelBlock, 0));
    } else {
        test = open_test_queue(kPreemptLevelBlock, kQueueCreateFlagNone);
        OK(XHintSetScheduler(kSchedulerGlobal, kPolicyUnknown));
    }
    OK(XHintPriority(test.xq, 7));
    OK(XHintTimeslice(3000));
    HwCommandHandle command;
    OK(HwCommandCreateCallback(&command, work, test.queue));
    printf("ready\n");
    fflush(stdout);
    while (getchar() == '\n') {
        if (hints) {
            XResult result = XHintPriority(test.xq, 6);
            CHECK(result == kXSchedSuccess || result == kXSchedErrorBadResponse);
            printf("%s\n", result == kXSchedSuccess ? "accepted" : "rejected");
            fflush(stdout);
            continue;
        }
        for (int n = 0; n < 10; n++) OK(XQueueSubmit(test.xq, command));
        OK(XQueueWaitAll(test.xq));
        printf("%llu\n", (unsigned long long)finished(test.queue));
        fflush(stdout);
    }
    OK(HwCommandDestroy(command));
    close_test_queue(&test);
    return 0;
}
