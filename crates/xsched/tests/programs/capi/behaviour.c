/*
 * The documented behavior of the C interface, one function for each statement. Exits with status 0 if all of it holds.
 *
 *   behaviour hooked|unhooked
 *
 * hooked: launches on the vendor's queue go through the hooks. The simulated device must not support level 3.
 */
#include <sys/wait.h>

#include "check.h"
#include "xsched/hip/hal.h"

static int hooked;

/* A command that launches work on its queue, and records its position. */
typedef struct {
    xsim_queue_t queue;
    uint64_t length_ns;
    int number;
} Work;

static pthread_mutex_t turns_lock = PTHREAD_MUTEX_INITIALIZER;
static int order[4096];
static int order_count;

static void reset_order(void) { order_count = 0; }

static int executed_count(void) {
    pthread_mutex_lock(&turns_lock);
    int count = order_count;
    pthread_mutex_unlock(&turns_lock);
    return count;
}

static XResult record_order(HwQueueHandle hwq, void *data) {
    Work *work = (Work *)data;
    CHECK(hwq != 0);
    if (work->length_ns > 0) CHECK(xsim_launch(work->queue, work->length_ns) == XSIM_SUCCESS);
    pthread_mutex_lock(&turns_lock);
    order[order_count++] = work->number;
    pthread_mutex_unlock(&turns_lock);
    return kXSchedSuccess;
}

static XResult fail_command(HwQueueHandle hwq, void *data) {
    (void)hwq;
    (void)data;
    return kXSchedErrorHardware;
}

static void submit_numbered(TestQueue *test, Work *work, HwCommandHandle *commands, int count, uint64_t length_ns) {
    for (int n = 0; n < count; n++) {
        work[n].queue = test->queue;
        work[n].length_ns = length_ns;
        work[n].number = n;
        OK(HwCommandCreateCallback(&commands[n], record_order, &work[n]));
        OK(XQueueSubmit(test->xq, commands[n]));
    }
}

static void destroy_commands(HwCommandHandle *commands, int count) {
    for (int n = 0; n < count; n++) OK(HwCommandDestroy(commands[n]));
}

static void invalid_arguments_return_errors(void) {
    TestQueue test = open_test_queue(kPreemptLevelBlock, kQueueCreateFlagNone);
    XQueueHandle xq;
    HwQueueHandle hwq;
    HwCommandHandle command;
    OK(HwCommandCreateCallback(&command, fail_command, NULL));

    EXPECT(kXSchedErrorInvalidValue, XsimQueueCreate(NULL, test.queue));
    EXPECT(kXSchedErrorInvalidValue, XsimQueueCreate(&hwq, NULL));
    EXPECT(kXSchedErrorInvalidValue, XQueueCreate(NULL, test.hwq, kPreemptLevelBlock, 0));
    EXPECT(kXSchedErrorInvalidValue, XQueueGet(NULL, test.hwq));
    EXPECT(kXSchedErrorInvalidValue, XQueueQuery(test.xq, NULL));
    EXPECT(kXSchedErrorInvalidValue, XQueueProfileHwCommandCount(test.xq, NULL));
    EXPECT(kXSchedErrorInvalidValue, HwCommandCreateCallback(NULL, fail_command, NULL));
    EXPECT(kXSchedErrorInvalidValue, HwCommandCreateCallback(&command, NULL, NULL));

    XQueueState state;
    int64_t count;
    /* Null, of another kind, and invalid. */
    struct {
        uint64_t handle;
        XResult answer;
    } wrong[] = {{0, kXSchedErrorInvalidValue},
                 {command, kXSchedErrorNotFound},
                 {test.xq + 1, kXSchedErrorNotFound},
                 {UINT64_MAX, kXSchedErrorNotFound}};
    for (size_t n = 0; n < sizeof wrong / sizeof *wrong; n++) {
        uint64_t handle = wrong[n].handle;
        XResult answer = wrong[n].answer;
        EXPECT(answer, XQueueCreate(&xq, handle, kPreemptLevelBlock, 0));
        EXPECT(answer, XQueueDestroy(handle));
        EXPECT(answer, XQueueGet(&xq, handle));
        EXPECT(answer, XQueueSetPreemptLevel(handle, kPreemptLevelBlock));
        EXPECT(answer, XQueueSetLaunchConfig(handle, 4, 2));
        EXPECT(answer, XQueueWaitAll(handle));
        EXPECT(answer, XQueueQuery(handle, &state));
        EXPECT(answer, XQueueSuspend(handle, 0));
        EXPECT(answer, XQueueResume(handle, 0));
        EXPECT(answer, XQueueProfileHwCommandCount(handle, &count));
        EXPECT(answer, HwQueueDestroy(handle));
        EXPECT(answer, HwQueueSynchronize(handle));
        EXPECT(answer, HwQueueLaunch(handle, command));
        EXPECT(answer, XQueueSubmit(handle, command));
        EXPECT(answer, XQueueWait(handle, command));
        EXPECT(answer, XHintPriority(handle, 1));
        EXPECT(answer, XHintUtilization(handle, 1));
        EXPECT(answer, XHintLaxity(handle, 1, 1, 1));
        EXPECT(answer, XHintDeadline(handle, 1));
        if (handle != command) {
            EXPECT(answer, XQueueSubmit(test.xq, handle));
            EXPECT(answer, HwCommandDestroy(handle));
        }
    }
    CHECK(strstr(XSchedLastError(), "HwCommandDestroy") != NULL);

    EXPECT(kXSchedErrorInvalidValue, XQueueCreate(&xq, test.hwq, kPreemptLevelUnknown, 0));
    EXPECT(kXSchedErrorInvalidValue, XQueueCreate(&xq, test.hwq, kPreemptLevelMax, 0));
    EXPECT(kXSchedErrorInvalidValue, XQueueCreate(&xq, test.hwq, -7, 0));
    EXPECT(kXSchedErrorInvalidValue, XQueueCreate(&xq, test.hwq, kPreemptLevelBlock, 2));
    EXPECT(kXSchedErrorNotAllowed, XQueueCreate(&xq, test.hwq, kPreemptLevelBlock, 0));
    EXPECT(kXSchedErrorInvalidValue, XQueueSetPreemptLevel(test.xq, kPreemptLevelMax));
    EXPECT(kXSchedErrorInvalidValue, XQueueSuspend(test.xq, 8));
    EXPECT(kXSchedErrorInvalidValue, XQueueResume(test.xq, 2));
    EXPECT(kXSchedErrorInvalidValue, XQueueSetLaunchConfig(test.xq, 0, 1));
    EXPECT(kXSchedErrorInvalidValue, XQueueSetLaunchConfig(test.xq, 4, 5));
    EXPECT(kXSchedErrorInvalidValue, XHintPriority(test.xq, 256));
    EXPECT(kXSchedErrorInvalidValue, XHintUtilization(test.xq, 101));
    EXPECT(kXSchedErrorInvalidValue, XHintUtilization(test.xq, -1));
    EXPECT(kXSchedErrorInvalidValue, XHintTimeslice(TIMESLICE_MIN - 1));
    EXPECT(kXSchedErrorInvalidValue, XHintTimeslice(TIMESLICE_MAX + 1));
    EXPECT(kXSchedErrorInvalidValue, XHintLaxity(test.xq, 100, 0, 300));
    EXPECT(kXSchedErrorInvalidValue, XHintDeadline(test.xq, 0));
    EXPECT(kXSchedErrorInvalidValue, XHintKDeadline(0));
    EXPECT(kXSchedErrorInvalidValue, XHintSetScheduler(kSchedulerUnknown, kPolicyHighestPriorityFirst));
    EXPECT(kXSchedErrorInvalidValue, XHintSetScheduler(kSchedulerMax, kPolicyHighestPriorityFirst));
    EXPECT(kXSchedErrorInvalidValue, XHintSetScheduler(kSchedulerLocal, kPolicyUnknown));
    EXPECT(kXSchedErrorInvalidValue, XHintSetScheduler(kSchedulerLocal, kPolicyMax));
    EXPECT(kXSchedErrorNotAllowed, HwQueueDestroy(test.hwq));
    EXPECT(kXSchedErrorNotFound, XQueueWait(test.xq, command));
    EXPECT(kXSchedErrorHardware, HwQueueLaunch(test.hwq, command));

    HwQueueHandle again;
    OK(XsimQueueCreate(&again, test.queue));
    CHECK(again == test.hwq);
    OK(XQueueGet(&xq, test.hwq));
    CHECK(xq == test.xq);
    OK(HwCommandDestroy(command));
    EXPECT(kXSchedErrorNotFound, HwCommandDestroy(command));
    TestQueue stale = test;
    close_test_queue(&test);
    EXPECT(kXSchedErrorNotFound, XQueueDestroy(stale.xq));
    EXPECT(kXSchedErrorNotFound, XQueueSuspend(stale.xq, 0));
    EXPECT(kXSchedErrorNotFound, HwQueueDestroy(stale.hwq));
    EXPECT(kXSchedErrorNotFound, XHintPriority(stale.xq, 3));
}

static void unavailable_level_is_rejected(void) {
    TestQueue test = open_test_queue(kPreemptLevelDeactivate, kQueueCreateFlagNone);
    EXPECT(kXSchedErrorNotSupported, XQueueSetPreemptLevel(test.xq, kPreemptLevelInterrupt));
    CHECK(strstr(XSchedLastError(), "supports level 2, not 3") != NULL);
    OK(XQueueSetPreemptLevel(test.xq, kPreemptLevelBlock));
    OK(XQueueDestroy(test.xq));
    EXPECT(kXSchedErrorNotSupported, XQueueCreate(&test.xq, test.hwq, kPreemptLevelInterrupt, 0));
    XQueueHandle none;
    EXPECT(kXSchedErrorNotFound, XQueueGet(&none, test.hwq));
    OK(XQueueCreate(&test.xq, test.hwq, kPreemptLevelBlock, 0));
    close_test_queue(&test);
    EXPECT(kXSchedErrorInvalidValue, HipQueueCreate(&test.hwq, NULL));
}

static void *launch_ten(void *data) {
    for (int n = 0; n < 10; n++) CHECK(xsim_launch((xsim_queue_t)data, 50000) == XSIM_SUCCESS);
    return NULL;
}

static void suspended_queue_launches_nothing(void) {
    if (!hooked) return;
    for (int level = kPreemptLevelBlock; level <= kPreemptLevelDeactivate; level++) {
        TestQueue test = open_test_queue(level, kQueueCreateFlagNone);
        pthread_t thread;
        for (int round = 0; round < 3; round++) {
            uint64_t before = finished(test.queue);
            OK(XQueueSuspend(test.xq, kQueueSuspendFlagNone));
            OK(XQueueSuspend(test.xq, kQueueSuspendFlagMaskAll));
            CHECK(pthread_create(&thread, NULL, launch_ten, test.queue) == 0);
            while (state_of(test.xq) != kQueueStateReady) pause_ms(1);
            pause_ms(5);
            CHECK(finished(test.queue) == before);
            OK(XQueueResume(test.xq, kQueueResumeFlagNone));
            OK(XQueueResume(test.xq, kQueueResumeFlagNone));
            CHECK(pthread_join(thread, NULL) == 0);
            OK(XQueueWaitAll(test.xq));
            CHECK(finished(test.queue) == before + 10);
            CHECK(state_of(test.xq) == kQueueStateIdle);
        }
        /* Destroying a queue releases the threads that it held. */
        OK(XQueueSuspend(test.xq, kQueueSuspendFlagNone));
        CHECK(pthread_create(&thread, NULL, launch_ten, test.queue) == 0);
        while (state_of(test.xq) != kQueueStateReady) pause_ms(1);
        OK(XQueueDestroy(test.xq));
        CHECK(pthread_join(thread, NULL) == 0);
        OK(HwQueueSynchronize(test.hwq));
        OK(XQueueCreate(&test.xq, test.hwq, level, 0));
        close_test_queue(&test);
    }
}

static void suspend_flags_select_what_is_waited_for(void) {
    enum { COMMANDS = 12 };
    Work work[COMMANDS];
    HwCommandHandle commands[COMMANDS];
    TestQueue test = open_test_queue(kPreemptLevelBlock, kQueueCreateFlagNone);
    const XQueueSuspendFlag waiting[] = {kQueueSuspendFlagWaitAll, kQueueSuspendFlagWaitIdle};
    uint64_t expected = 0;
    for (int n = 0; n < 2; n++) {
        reset_order();
        submit_numbered(&test, work, commands, COMMANDS, 200000);
        OK(XQueueSuspend(test.xq, waiting[n]));
        expected += COMMANDS;
        CHECK(executed_count() == COMMANDS);
        CHECK(finished(test.queue) == expected);
        CHECK(state_of(test.xq) == kQueueStateIdle);
        OK(XQueueResume(test.xq, kQueueResumeFlagNone));
        destroy_commands(commands, COMMANDS);
    }
    /* Waits for launched commands; other commands stay queued. */
    reset_order();
    OK(XQueueSetLaunchConfig(test.xq, 2, 1));
    submit_numbered(&test, work, commands, COMMANDS, 2000000);
    while (executed_count() == 0) pause_ms(1);
    OK(XQueueSuspend(test.xq, kQueueSuspendFlagSyncHwQueue));
    int launched = executed_count();
    CHECK(launched < COMMANDS);
    CHECK(finished(test.queue) == expected + (uint64_t)launched);
    pause_ms(10);
    CHECK(executed_count() == launched);
    CHECK(state_of(test.xq) == kQueueStateReady);
    OK(XQueueResume(test.xq, kQueueResumeFlagNone));
    OK(XQueueWaitAll(test.xq));
    CHECK(finished(test.queue) == expected + COMMANDS);
    destroy_commands(commands, COMMANDS);
    close_test_queue(&test);
}

static void commands_run_in_order_with_few_in_flight(void) {
    enum { COMMANDS = 200 };
    static Work work[COMMANDS];
    static HwCommandHandle commands[COMMANDS];
    const int64_t thresholds[] = {16, 3, 1, 8};
    TestQueue test = open_test_queue(kPreemptLevelBlock, kQueueCreateFlagNone);
    reset_order();
    submit_numbered(&test, work, commands, COMMANDS, 20000);
    /* The window changes while the queue runs. */
    for (int n = 0; executed_count() < COMMANDS; n++) {
        int64_t threshold = thresholds[n % 4];
        OK(XQueueSetLaunchConfig(test.xq, threshold, threshold > 1 ? threshold / 2 : 1));
        int64_t held;
        OK(XQueueProfileHwCommandCount(test.xq, &held));
        CHECK(held >= 0 && held <= COMMANDS + 1);
        pause_ms(1);
    }
    OK(XQueueWaitAll(test.xq));
    for (int n = 0; n < COMMANDS; n++) CHECK(order[n] == n);
    CHECK(finished(test.queue) == COMMANDS);
    destroy_commands(commands, COMMANDS);

    /* With a window of 4, the device is never more than 4 commands behind. */
    OK(XQueueSetLaunchConfig(test.xq, 4, 2));
    reset_order();
    submit_numbered(&test, work, commands, 40, 300000);
    while (executed_count() < 40) {
        uint64_t done = finished(test.queue) - COMMANDS;
        CHECK((uint64_t)executed_count() <= done + 4 + 1 || finished(test.queue) - COMMANDS > done);
    }
    OK(XQueueWaitAll(test.xq));
    int64_t held;
    OK(XQueueProfileHwCommandCount(test.xq, &held));
    CHECK(held == 0);
    destroy_commands(commands, 40);
    close_test_queue(&test);
}

static void queued_commands_can_be_dropped(void) {
    enum { COMMANDS = 8 };
    Work work[COMMANDS];
    HwCommandHandle commands[COMMANDS];
    TestQueue test = open_test_queue(kPreemptLevelBlock, kQueueCreateFlagNone);
    OK(XQueueSuspend(test.xq, kQueueSuspendFlagNone));
    reset_order();
    submit_numbered(&test, work, commands, COMMANDS, 0);
    CHECK(state_of(test.xq) == kQueueStateReady);
    int64_t held;
    OK(XQueueProfileHwCommandCount(test.xq, &held));
    CHECK(held == COMMANDS);
    OK(XQueueResume(test.xq, kQueueResumeFlagDropCommands));
    OK(XQueueWaitAll(test.xq));
    CHECK(executed_count() == 0);
    EXPECT(kXSchedErrorNotFound, XQueueWait(test.xq, commands[3]));
    /* Commands can be submitted again. */
    OK(XQueueSubmit(test.xq, commands[3]));
    OK(XQueueSubmit(test.xq, commands[3]));
    OK(XQueueWait(test.xq, commands[3]));
    CHECK(executed_count() == 2 && order[1] == 3);
    destroy_commands(commands, COMMANDS);
    close_test_queue(&test);
}

static void waiting_for_a_command_returns_its_result(void) {
    TestQueue test = open_test_queue(kPreemptLevelBlock, kQueueCreateFlagNone);
    Work work = {test.queue, 3000000, 0};
    HwCommandHandle command, refused;
    OK(HwCommandCreateCallback(&command, record_order, &work));
    OK(HwCommandCreateCallback(&refused, fail_command, NULL));
    for (int n = 1; n <= 5; n++) {
        OK(XQueueSubmit(test.xq, command));
        OK(XQueueWait(test.xq, command));
        CHECK(finished(test.queue) == (uint64_t)n);
    }
    OK(XQueueSubmit(test.xq, refused));
    EXPECT(kXSchedErrorHardware, XQueueWait(test.xq, refused));
    OK(XQueueWaitAll(test.xq));
    /* A command that is destroyed after it was submitted runs. */
    OK(XQueueSubmit(test.xq, command));
    OK(HwCommandDestroy(command));
    OK(XQueueWaitAll(test.xq));
    CHECK(finished(test.queue) == 6);
    OK(HwCommandDestroy(refused));
    close_test_queue(&test);
}

typedef struct {
    TestQueue *test;
    int number;
    int count;
} Submitter;

static int last_of[4];

static XResult check_order(HwQueueHandle hwq, void *data) {
    (void)hwq;
    int which = (int)((intptr_t)data >> 16), number = (int)((intptr_t)data & 0xffff);
    /* The commands of one queue run one at a time, so no lock is needed. */
    CHECK(last_of[which] == number);
    last_of[which] = number + 1;
    return kXSchedSuccess;
}

static void *submit_many(void *data) {
    Submitter *self = (Submitter *)data;
    for (int n = 0; n < self->count; n++) {
        HwCommandHandle command;
        OK(HwCommandCreateCallback(&command, check_order, (void *)((intptr_t)self->number << 16 | n)));
        OK(XQueueSubmit(self->test->xq, command));
        OK(HwCommandDestroy(command));
    }
    return NULL;
}

static void several_threads_use_one_queue(int64_t flags) {
    TestQueue test = open_test_queue(kPreemptLevelBlock, flags);
    pthread_t threads[4];
    Submitter submitters[4];
    for (int n = 0; n < 4; n++) {
        last_of[n] = 0;
        submitters[n].test = &test;
        submitters[n].number = n;
        submitters[n].count = 2000;
        CHECK(pthread_create(&threads[n], NULL, submit_many, &submitters[n]) == 0);
    }
    for (int n = 0; n < 20; n++) {
        OK(XQueueSuspend(test.xq, n % 2 ? kQueueSuspendFlagSyncHwQueue : kQueueSuspendFlagNone));
        pause_ms(1);
        OK(XQueueResume(test.xq, kQueueResumeFlagNone));
    }
    for (int n = 0; n < 4; n++) CHECK(pthread_join(threads[n], NULL) == 0);
    OK(XQueueWaitAll(test.xq));
    for (int n = 0; n < 4; n++) CHECK(last_of[n] == 2000);
    close_test_queue(&test);
}

static void blocking_submit_launches_on_the_calling_thread(void) {
    TestQueue test = open_test_queue(kPreemptLevelBlock, kQueueCreateFlagBlockingSubmit);
    Work work = {test.queue, 100000, 5};
    HwCommandHandle command;
    reset_order();
    OK(HwCommandCreateCallback(&command, record_order, &work));
    OK(XQueueSubmit(test.xq, command));
    CHECK(executed_count() == 1);
    OK(XQueueWait(test.xq, command));
    CHECK(finished(test.queue) == 1);
    OK(HwCommandDestroy(command));
    /* Suspended: the submitting thread waits. */
    OK(XQueueSuspend(test.xq, kQueueSuspendFlagNone));
    pthread_t thread;
    Submitter submitter = {&test, 0, 1};
    last_of[0] = 0;
    CHECK(pthread_create(&thread, NULL, submit_many, &submitter) == 0);
    pause_ms(10);
    CHECK(last_of[0] == 0);
    OK(XQueueResume(test.xq, kQueueResumeFlagNone));
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(last_of[0] == 1);
    close_test_queue(&test);
}

static TestQueue inner;
static HwCommandHandle inner_command;

static XResult submit_from_command(HwQueueHandle hwq, void *data) {
    (void)data;
    CHECK(hwq == inner.hwq);
    EXPECT(kXSchedErrorNotAllowed, XQueueWaitAll(inner.xq));
    EXPECT(kXSchedErrorNotAllowed, XQueueWait(inner.xq, inner_command));
    EXPECT(kXSchedErrorNotAllowed, XQueueSuspend(inner.xq, kQueueSuspendFlagWaitAll));
    OK(XQueueSubmit(inner.xq, inner_command));
    OK(XQueueSuspend(inner.xq, kQueueSuspendFlagNone));
    return kXSchedSuccess;
}

static XResult destroy_from_command(HwQueueHandle hwq, void *data) {
    (void)hwq;
    (void)data;
    OK(XQueueDestroy(inner.xq));
    reset_order();
    return kXSchedSuccess;
}

static void command_may_use_its_own_queue(void) {
    inner = open_test_queue(kPreemptLevelBlock, kQueueCreateFlagNone);
    Work work = {inner.queue, 0, 9};
    HwCommandHandle command, last;
    reset_order();
    OK(HwCommandCreateCallback(&command, submit_from_command, NULL));
    OK(HwCommandCreateCallback(&inner_command, record_order, &work));
    OK(HwCommandCreateCallback(&last, destroy_from_command, NULL));
    OK(XQueueSubmit(inner.xq, command));
    OK(XQueueWait(inner.xq, command));
    pause_ms(5);
    CHECK(executed_count() == 0);
    OK(XQueueResume(inner.xq, kQueueResumeFlagNone));
    OK(XQueueWait(inner.xq, inner_command));
    CHECK(executed_count() == 1);
    OK(XQueueSubmit(inner.xq, last));
    while (executed_count() != 0) pause_ms(1);
    XQueueHandle xq;
    while (XQueueGet(&xq, inner.hwq) == kXSchedSuccess) pause_ms(1);
    destroy_commands(&command, 1);
    destroy_commands(&inner_command, 1);
    destroy_commands(&last, 1);
    OK(HwQueueDestroy(inner.hwq));
    CHECK(xsim_queue_destroy(inner.queue) == XSIM_SUCCESS);
    CHECK(xsim_close(inner.device) == XSIM_SUCCESS);
}

static void destroyed_queue_runs_its_commands_first(void) {
    enum { COMMANDS = 30 };
    Work work[COMMANDS];
    HwCommandHandle commands[COMMANDS];
    TestQueue test = open_test_queue(kPreemptLevelBlock, kQueueCreateFlagNone);
    reset_order();
    OK(XQueueSuspend(test.xq, kQueueSuspendFlagNone));
    submit_numbered(&test, work, commands, COMMANDS, 1000);
    OK(XQueueDestroy(test.xq));
    CHECK(executed_count() == COMMANDS);
    for (int n = 0; n < COMMANDS; n++) CHECK(order[n] == n);
    EXPECT(kXSchedErrorNotFound, XQueueSubmit(test.xq, commands[0]));
    destroy_commands(commands, COMMANDS);
    OK(XQueueCreate(&test.xq, test.hwq, kPreemptLevelBlock, 0));
    close_test_queue(&test);
}

static void scheduler_and_policy_can_change_at_run_time(void) {
    enum { COMMANDS = 400 };
    static Work work[COMMANDS];
    static HwCommandHandle commands[COMMANDS];
    TestQueue test = open_test_queue(kPreemptLevelBlock, kQueueCreateFlagNone);
    TestQueue other = open_test_queue(kPreemptLevelBlock, kQueueCreateFlagNone);
    OK(XHintPriority(test.xq, 5));
    OK(XHintTimeslice(TIMESLICE_UNLIMITED));
    OK(XHintTimeslice(2000));
    OK(XHintKDeadline(2));
    reset_order();
    submit_numbered(&test, work, commands, COMMANDS, 50000);
    for (int n = 0; executed_count() < COMMANDS; n++) {
        OK(XHintSetScheduler(n % 4 ? kSchedulerLocal : kSchedulerAppManaged,
                             (XPolicyType)(kPolicyHighestPriorityFirst + n % 11)));
        OK(XHintUtilization(test.xq, 10 + n % 90));
        OK(XHintLaxity(other.xq, n % 2 ? 1000 : NO_LAXITY, 0, 10));
        OK(XHintDeadline(test.xq, n % 2 ? 1000 : NO_DEADLINE));
        pause_ms(1);
    }
    OK(XHintSetScheduler(kSchedulerLocal, kPolicyHighestPriorityFirst));
    OK(XQueueWaitAll(test.xq));
    for (int n = 0; n < COMMANDS; n++) CHECK(order[n] == n);
    CHECK(finished(test.queue) == COMMANDS);
    destroy_commands(commands, COMMANDS);
    close_test_queue(&test);
    close_test_queue(&other);
    OK(XHintSetScheduler(kSchedulerAppManaged, kPolicyUnknown));
}

static void hints_take_effect_at_once(void) {
    enum { COMMANDS = 20 };
    Work low_work[COMMANDS];
    HwCommandHandle commands[COMMANDS];
    OK(XHintSetScheduler(kSchedulerLocal, kPolicyHighestPriorityFirst));
    TestQueue low = open_test_queue(kPreemptLevelBlock, kQueueCreateFlagNone);
    OK(XHintPriority(low.xq, PRIORITY_NO_EXECUTE));
    reset_order();
    submit_numbered(&low, low_work, commands, COMMANDS, 1000);
    pause_ms(30);
    CHECK(executed_count() == 0);
    OK(XHintPriority(low.xq, PRIORITY_DEFAULT));
    OK(XQueueWaitAll(low.xq));
    CHECK(executed_count() == COMMANDS);
    /* The program schedules itself: no hint holds it. */
    OK(XHintPriority(low.xq, PRIORITY_NO_EXECUTE));
    OK(XHintSetScheduler(kSchedulerAppManaged, kPolicyUnknown));
    OK(XQueueSubmit(low.xq, commands[0]));
    OK(XQueueWait(low.xq, commands[0]));
    destroy_commands(commands, COMMANDS);
    close_test_queue(&low);
    /* Its hints were removed with it. */
    OK(XHintSetScheduler(kSchedulerLocal, kPolicyHighestPriorityFirst));
    TestQueue next = open_test_queue(kPreemptLevelBlock, kQueueCreateFlagNone);
    Work work = {next.queue, 1000, 0};
    OK(HwCommandCreateCallback(&commands[0], record_order, &work));
    OK(XQueueSubmit(next.xq, commands[0]));
    OK(XQueueWait(next.xq, commands[0]));
    OK(HwCommandDestroy(commands[0]));
    close_test_queue(&next);
    OK(XHintSetScheduler(kSchedulerAppManaged, kPolicyUnknown));
}

static void child_process_inherits_no_handles(void) {
    TestQueue test = open_test_queue(kPreemptLevelBlock, kQueueCreateFlagNone);
    pid_t child = fork();
    if (child == 0) {
        EXPECT(kXSchedErrorNotFound, XQueueSuspend(test.xq, 0));
        EXPECT(kXSchedErrorNotFound, XQueueDestroy(test.xq));
        TestQueue own = open_test_queue(kPreemptLevelBlock, kQueueCreateFlagNone);
        OK(XQueueSuspend(own.xq, 0));
        OK(XQueueResume(own.xq, 0));
        close_test_queue(&own);
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    OK(XQueueSuspend(test.xq, kQueueSuspendFlagSyncHwQueue));
    close_test_queue(&test);
}

int main(int argc, char **argv) {
    hooked = argc > 1 && strcmp(argv[1], "hooked") == 0;
    CHECK(strlen(XSchedLastError()) == 0);
#define SHOW(promise) printf("%s\n", #promise), fflush(stdout), promise
    SHOW(invalid_arguments_return_errors)();
    SHOW(unavailable_level_is_rejected)();
    SHOW(suspended_queue_launches_nothing)();
    SHOW(suspend_flags_select_what_is_waited_for)();
    SHOW(commands_run_in_order_with_few_in_flight)();
    SHOW(queued_commands_can_be_dropped)();
    SHOW(waiting_for_a_command_returns_its_result)();
    SHOW(several_threads_use_one_queue)(kQueueCreateFlagNone);
    SHOW(several_threads_use_one_queue)(kQueueCreateFlagBlockingSubmit);
    SHOW(blocking_submit_launches_on_the_calling_thread)();
    SHOW(command_may_use_its_own_queue)();
    SHOW(destroyed_queue_runs_its_commands_first)();
    SHOW(child_process_inherits_no_handles)();
    SHOW(scheduler_and_policy_can_change_at_run_time)();
    SHOW(hints_take_effect_at_once)();
    printf("all\n");
    return 0;
}
