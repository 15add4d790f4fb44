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
static void is_held(TestQueue *test, HwCommandHandle command) {
    uint64_t done = finished(test->queue);
    OK(XQueueSubmit(test->xq, command));
    pause_ms(2);
    CHECK(finished(test->queue) == done);
    looked++;
}

/* Resumes the queue, so that its command runs. */
static void resume_queue(TestQueue *test) {
    uint64_t done = finished(test->queue);
    OK(XHintPriority(test->xq, 10));
    OK(XQueueWaitAll(test->xq));
    CHECK(finished(test->queue) == done + 1);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    int rounds = atoi(argv[1]), low = atoi(argv[2]);
    TestQueue test = open_test_queue(kPreemptLevelBlock, kQueueCreateFlagNone);
    HwCommandHandle command;
    OK(HwCommandCreateCallback(&command, work, test.queue));
    for (int round = 0; round < rounds; round++) {
        /* Changing the scheduler: the program is not held until the service applies the earlier hint. */
        OK(XHintPriority(test.xq, low));
        OK(XQueueSubmit(test.xq, command));
        OK(XQueueWaitAll(test.xq));
        OK(XHintSetScheduler(kSchedulerGlobal, kPolicyUnknown));
        is_held(&test, command);
        resume_queue(&test);

        /* Changing the priority. */
        OK(XHintPriority(test.xq, low));
        is_held(&test, command);
        resume_queue(&test);

        /* A new queue: its first launch is held if the program is held. */
        close_test_queue(&test);
        test = open_test_queue(kPreemptLevelBlock, kQueueCreateFlagNone);
        OK(HwCommandDestroy(command));
        OK(HwCommandCreateCallback(&command, work, test.queue));
        OK(XHintPriority(test.xq, low));
        is_held(&test, command);
        resume_queue(&test);
        OK(XHintSetScheduler(kSchedulerAppManaged, kPolicyUnknown));
    }
    OK(HwCommandDestroy(command));
    close_test_queue(&test);
    printf("%d\n", looked);
    return 0;
}
