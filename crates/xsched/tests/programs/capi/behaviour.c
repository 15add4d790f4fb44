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
static int turns[4096];
static int turn_count;

static void forget_turns(void) { turn_count = 0; }

static int turns_so_far(void) {
    pthread_mutex_lock(&turns_lock);
    int count = turn_count;
    pthread_mutex_unlock(&turns_lock);
    return count;
}

static XResult take_turn(HwQueueHandle hwq, void *data) {
    Work *work = (Work *)data;
    CHECK(hwq != 0);
    if (work->length_ns > 0) CHECK(xsim_launch(work->queue, work->length_ns) == XSIM_SUCCESS);
    pthread_mutex_lock(&turns_lock);
    turns[turn_count++] = work->number;
    pthread_mutex_unlock(&turns_lock);
    return kXSchedSuccess;
}

static XResult refuse(HwQueueHandle hwq, void *data) {
    (void)hwq;
    (void)data;
    return kXSchedErrorHardware;
}

static void submit_numbered(Lane *lane, Work *work, HwCommandHandle *commands, int count, uint64_t length_ns) {
    for (int n = 0; n < count; n++) {
        work[n].queue = lane->queue;
        work[n].length_ns = length_ns;
        work[n].number = n;
        OK(HwCommandCreateCallback(&commands[n], take_turn, &work[n]));
        OK(XQueueSubmit(lane->xq, commands[n]));
    }
}

static void destroy_commands(HwCommandHandle *commands, int count) {
    for (int n = 0; n < count; n++) OK(HwCommandDestroy(commands[n]));
}

static void rubbish_is_an_error_and_nothing_worse(void) {
    Lane lane = lane_open(kPreemptLevelBlock, kQueueCreateFlagNone);
    XQueueHandle xq;
    HwQueueHandle hwq;
    HwCommandHandle command;
    OK(HwCommandCreateCallback(&command, refuse, NULL));

    EXPECT(kXSchedErrorInvalidValue, XsimQueueCreate(NULL, lane.queue));
    EXPECT(kXSchedErrorInvalidValue, XsimQueueCreate(&hwq, NULL));
    EXPECT(kXSchedErrorInvalidValue, XQueueCreate(NULL, lane.hwq, kPreemptLevelBlock, 0));
    EXPECT(kXSchedErrorInvalidValue, XQueueGet(NULL, lane.hwq));
    EXPECT(kXSchedErrorInvalidValue, XQueueQuery(lane.xq, NULL));
    EXPECT(kXSchedErrorInvalidValue, XQueueProfileHwCommandCount(lane.xq, NULL));
    EXPECT(kXSchedErrorInvalidValue, HwCommandCreateCallback(NULL, refuse, NULL));
    EXPECT(kXSchedErrorInvalidValue, HwCommandCreateCallback(&command, NULL, NULL));

    XQueueState state;
    int64_t count;
    /* Null, of another kind, and invalid. */
    struct {
        uint64_t handle;
        XResult answer;
    } wrong[] = {{0, kXSchedErrorInvalidValue},
                 {command, kXSchedErrorNotFound},
                 {lane.xq + 1, kXSchedErrorNotFound},
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
            EXPECT(answer, XQueueSubmit(lane.xq, handle));
            EXPECT(answer, HwCommandDestroy(handle));
        }
    }
    CHECK(strstr(XSchedLastError(), "HwCommandDestroy") != NULL);

    EXPECT(kXSchedErrorInvalidValue, XQueueCreate(&xq, lane.hwq, kPreemptLevelUnknown, 0));
    EXPECT(kXSchedErrorInvalidValue, XQueueCreate(&xq, lane.hwq, kPreemptLevelMax, 0));
    EXPECT(kXSchedErrorInvalidValue, XQueueCreate(&xq, lane.hwq, -7, 0));
    EXPECT(kXSchedErrorInvalidValue, XQueueCreate(&xq, lane.hwq, kPreemptLevelBlock, 2));
    EXPECT(kXSchedErrorNotAllowed, XQueueCreate(&xq, lane.hwq, kPreemptLevelBlock, 0));
    EXPECT(kXSchedErrorInvalidValue, XQueueSetPreemptLevel(lane.xq, kPreemptLevelMax));
    EXPECT(kXSchedErrorInvalidValue, XQueueSuspend(lane.xq, 8));
    EXPECT(kXSchedErrorInvalidValue, XQueueResume(lane.xq, 2));
    EXPECT(kXSchedErrorInvalidValue, XQueueSetLaunchConfig(lane.xq, 0, 1));
    EXPECT(kXSchedErrorInvalidValue, XQueueSetLaunchConfig(lane.xq, 4, 5));
    EXPECT(kXSchedErrorInvalidValue, XHintPriority(lane.xq, 256));
    EXPECT(kXSchedErrorInvalidValue, XHintUtilization(lane.xq, 101));
    EXPECT(kXSchedErrorInvalidValue, XHintUtilization(lane.xq, -1));
    EXPECT(kXSchedErrorInvalidValue, XHintTimeslice(TIMESLICE_MIN - 1));
    EXPECT(kXSchedErrorInvalidValue, XHintTimeslice(TIMESLICE_MAX + 1));
    EXPECT(kXSchedErrorInvalidValue, XHintLaxity(lane.xq, 100, 0, 300));
    EXPECT(kXSchedErrorInvalidValue, XHintDeadline(lane.xq, 0));
    EXPECT(kXSchedErrorInvalidValue, XHintKDeadline(0));
    EXPECT(kXSchedErrorInvalidValue, XHintSetScheduler(kSchedulerUnknown, kPolicyHighestPriorityFirst));
    EXPECT(kXSchedErrorInvalidValue, XHintSetScheduler(kSchedulerMax, kPolicyHighestPriorityFirst));
    EXPECT(kXSchedErrorInvalidValue, XHintSetScheduler(kSchedulerLocal, kPolicyUnknown));
    EXPECT(kXSchedErrorInvalidValue, XHintSetScheduler(kSchedulerLocal, kPolicyMax));
    EXPECT(kXSchedErrorNotAllowed, HwQueueDestroy(lane.hwq));
    EXPECT(kXSchedErrorNotFound, XQueueWait(lane.xq, command));
    EXPECT(kXSchedErrorHardware, HwQueueLaunch(lane.hwq, command));

    HwQueueHandle again;
    OK(XsimQueueCreate(&again, lane.queue));
    CHECK(again == lane.hwq);
    OK(XQueueGet(&xq, lane.hwq));
    CHECK(xq == lane.xq);
    OK(HwCommandDestroy(command));
    EXPECT(kXSchedErrorNotFound, HwCommandDestroy(command));
    Lane stale = lane;
    lane_close(&lane);
    EXPECT(kXSchedErrorNotFound, XQueueDestroy(stale.xq));
    EXPECT(kXSchedErrorNotFound, XQueueSuspend(stale.xq, 0));
    EXPECT(kXSchedErrorNotFound, HwQueueDestroy(stale.hwq));
    EXPECT(kXSchedErrorNotFound, XHintPriority(stale.xq, 3));
}

static void a_level_the_device_lacks_is_refused(void) {
    Lane lane = lane_open(kPreemptLevelDeactivate, kQueueCreateFlagNone);
    EXPECT(kXSchedErrorNotSupported, XQueueSetPreemptLevel(lane.xq, kPreemptLevelInterrupt));
    CHECK(strstr(XSchedLastError(), "supports level 2, not 3") != NULL);
    OK(XQueueSetPreemptLevel(lane.xq, kPreemptLevelBlock));
    OK(XQueueDestroy(lane.xq));
    EXPECT(kXSchedErrorNotSupported, XQueueCreate(&lane.xq, lane.hwq, kPreemptLevelInterrupt, 0));
    XQueueHandle none;
    EXPECT(kXSchedErrorNotFound, XQueueGet(&none, lane.hwq));
    OK(XQueueCreate(&lane.xq, lane.hwq, kPreemptLevelBlock, 0));
    lane_close(&lane);
    EXPECT(kXSchedErrorInvalidValue, HipQueueCreate(&lane.hwq, NULL));
}

static void *launch_ten(void *data) {
    for (int n = 0; n < 10; n++) CHECK(xsim_launch((xsim_queue_t)data, 50000) == XSIM_SUCCESS);
    return NULL;
}

static void a_suspended_queue_launches_nothing(void) {
    if (!hooked) return;
    for (int level = kPreemptLevelBlock; level <= kPreemptLevelDeactivate; level++) {
        Lane lane = lane_open(level, kQueueCreateFlagNone);
        pthread_t thread;
        for (int round = 0; round < 3; round++) {
            uint64_t before = finished(lane.queue);
            OK(XQueueSuspend(lane.xq, kQueueSuspendFlagNone));
            OK(XQueueSuspend(lane.xq, kQueueSuspendFlagMaskAll));
            CHECK(pthread_create(&thread, NULL, launch_ten, lane.queue) == 0);
            while (state_of(lane.xq) != kQueueStateReady) pause_ms(1);
            pause_ms(5);
            CHECK(finished(lane.queue) == before);
            OK(XQueueResume(lane.xq, kQueueResumeFlagNone));
            OK(XQueueResume(lane.xq, kQueueResumeFlagNone));
            CHECK(pthread_join(thread, NULL) == 0);
            OK(XQueueWaitAll(lane.xq));
            CHECK(finished(lane.queue) == before + 10);
            CHECK(state_of(lane.xq) == kQueueStateIdle);
        }
        /* Destroying a queue releases the threads that it held. */
        OK(XQueueSuspend(lane.xq, kQueueSuspendFlagNone));
        CHECK(pthread_create(&thread, NULL, launch_ten, lane.queue) == 0);
        while (state_of(lane.xq) != kQueueStateReady) pause_ms(1);
        OK(XQueueDestroy(lane.xq));
        CHECK(pthread_join(thread, NULL) == 0);
        OK(HwQueueSynchronize(lane.hwq));
        OK(XQueueCreate(&lane.xq, lane.hwq, level, 0));
        lane_close(&lane);
    }
}

static void suspending_waits_for_what_its_flags_say(void) {
    enum { COMMANDS = 12 };
    Work work[COMMANDS];
    HwCommandHandle commands[COMMANDS];
    Lane lane = lane_open(kPreemptLevelBlock, kQueueCreateFlagNone);
    const XQueueSuspendFlag waiting[] = {kQueueSuspendFlagWaitAll, kQueueSuspendFlagWaitIdle};
    uint64_t expected = 0;
    for (int n = 0; n < 2; n++) {
        forget_turns();
        submit_numbered(&lane, work, commands, COMMANDS, 200000);
        OK(XQueueSuspend(lane.xq, waiting[n]));
        expected += COMMANDS;
        CHECK(turns_so_far() == COMMANDS);
        CHECK(finished(lane.queue) == expected);
        CHECK(state_of(lane.xq) == kQueueStateIdle);
        OK(XQueueResume(lane.xq, kQueueResumeFlagNone));
        destroy_commands(commands, COMMANDS);
    }
    /* Waits for launched commands; other commands stay queued. */
    forget_turns();
    OK(XQueueSetLaunchConfig(lane.xq, 2, 1));
    submit_numbered(&lane, work, commands, COMMANDS, 2000000);
    while (turns_so_far() == 0) pause_ms(1);
    OK(XQueueSuspend(lane.xq, kQueueSuspendFlagSyncHwQueue));
    int launched = turns_so_far();
    CHECK(launched < COMMANDS);
    CHECK(finished(lane.queue) == expected + (uint64_t)launched);
    pause_ms(10);
    CHECK(turns_so_far() == launched);
    CHECK(state_of(lane.xq) == kQueueStateReady);
    OK(XQueueResume(lane.xq, kQueueResumeFlagNone));
    OK(XQueueWaitAll(lane.xq));
    CHECK(finished(lane.queue) == expected + COMMANDS);
    destroy_commands(commands, COMMANDS);
    lane_close(&lane);
}

static void commands_run_in_order_with_few_in_flight(void) {
    enum { COMMANDS = 200 };
    static Work work[COMMANDS];
    static HwCommandHandle commands[COMMANDS];
    const int64_t thresholds[] = {16, 3, 1, 8};
    Lane lane = lane_open(kPreemptLevelBlock, kQueueCreateFlagNone);
    forget_turns();
    submit_numbered(&lane, work, commands, COMMANDS, 20000);
    /* The window changes while the queue runs. */
    for (int n = 0; turns_so_far() < COMMANDS; n++) {
        int64_t threshold = thresholds[n % 4];
        OK(XQueueSetLaunchConfig(lane.xq, threshold, threshold > 1 ? threshold / 2 : 1));
        int64_t held;
        OK(XQueueProfileHwCommandCount(lane.xq, &held));
        CHECK(held >= 0 && held <= COMMANDS + 1);
        pause_ms(1);
    }
    OK(XQueueWaitAll(lane.xq));
    for (int n = 0; n < COMMANDS; n++) CHECK(turns[n] == n);
    CHECK(finished(lane.queue) == COMMANDS);
    destroy_commands(commands, COMMANDS);

    /* With a window of 4, the device is never more than 4 commands behind. */
    OK(XQueueSetLaunchConfig(lane.xq, 4, 2));
    forget_turns();
    submit_numbered(&lane, work, commands, 40, 300000);
    while (turns_so_far() < 40) {
        uint64_t done = finished(lane.queue) - COMMANDS;
        CHECK((uint64_t)turns_so_far() <= done + 4 + 1 || finished(lane.queue) - COMMANDS > done);
    }
    OK(XQueueWaitAll(lane.xq));
    int64_t held;
    OK(XQueueProfileHwCommandCount(lane.xq, &held));
    CHECK(held == 0);
    destroy_commands(commands, 40);
    lane_close(&lane);
}

static void waiting_commands_can_be_dropped(void) {
    enum { COMMANDS = 8 };
    Work work[COMMANDS];
    HwCommandHandle commands[COMMANDS];
    Lane lane = lane_open(kPreemptLevelBlock, kQueueCreateFlagNone);
    OK(XQueueSuspend(lane.xq, kQueueSuspendFlagNone));
    forget_turns();
    submit_numbered(&lane, work, commands, COMMANDS, 0);
    CHECK(state_of(lane.xq) == kQueueStateReady);
    int64_t held;
    OK(XQueueProfileHwCommandCount(lane.xq, &held));
    CHECK(held == COMMANDS);
    OK(XQueueResume(lane.xq, kQueueResumeFlagDropCommands));
    OK(XQueueWaitAll(lane.xq));
    CHECK(turns_so_far() == 0);
    EXPECT(kXSchedErrorNotFound, XQueueWait(lane.xq, commands[3]));
    /* Commands can be submitted again. */
    OK(XQueueSubmit(lane.xq, commands[3]));
    OK(XQueueSubmit(lane.xq, commands[3]));
    OK(XQueueWait(lane.xq, commands[3]));
    CHECK(turns_so_far() == 2 && turns[1] == 3);
    destroy_commands(commands, COMMANDS);
    lane_close(&lane);
}

static void waiting_for_a_command_waits_for_it_and_tells_its_answer(void) {
    Lane lane = lane_open(kPreemptLevelBlock, kQueueCreateFlagNone);
    Work work = {lane.queue, 3000000, 0};
    HwCommandHandle command, refused;
    OK(HwCommandCreateCallback(&command, take_turn, &work));
    OK(HwCommandCreateCallback(&refused, refuse, NULL));
    for (int n = 1; n <= 5; n++) {
        OK(XQueueSubmit(lane.xq, command));
        OK(XQueueWait(lane.xq, command));
        CHECK(finished(lane.queue) == (uint64_t)n);
    }
    OK(XQueueSubmit(lane.xq, refused));
    EXPECT(kXSchedErrorHardware, XQueueWait(lane.xq, refused));
    OK(XQueueWaitAll(lane.xq));
    /* A command that is destroyed after it was submitted runs. */
    OK(XQueueSubmit(lane.xq, command));
    OK(HwCommandDestroy(command));
    OK(XQueueWaitAll(lane.xq));
    CHECK(finished(lane.queue) == 6);
    OK(HwCommandDestroy(refused));
    lane_close(&lane);
}

typedef struct {
    Lane *lane;
    int number;
    int count;
} Submitter;

static int last_of[4];

static XResult in_its_order(HwQueueHandle hwq, void *data) {
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
        OK(HwCommandCreateCallback(&command, in_its_order, (void *)((intptr_t)self->number << 16 | n)));
        OK(XQueueSubmit(self->lane->xq, command));
        OK(HwCommandDestroy(command));
    }
    return NULL;
}

static void several_threads_use_one_queue(int64_t flags) {
    Lane lane = lane_open(kPreemptLevelBlock, flags);
    pthread_t threads[4];
    Submitter submitters[4];
    for (int n = 0; n < 4; n++) {
        last_of[n] = 0;
        submitters[n].lane = &lane;
        submitters[n].number = n;
        submitters[n].count = 2000;
        CHECK(pthread_create(&threads[n], NULL, submit_many, &submitters[n]) == 0);
    }
    for (int n = 0; n < 20; n++) {
        OK(XQueueSuspend(lane.xq, n % 2 ? kQueueSuspendFlagSyncHwQueue : kQueueSuspendFlagNone));
        pause_ms(1);
        OK(XQueueResume(lane.xq, kQueueResumeFlagNone));
    }
    for (int n = 0; n < 4; n++) CHECK(pthread_join(threads[n], NULL) == 0);
    OK(XQueueWaitAll(lane.xq));
    for (int n = 0; n < 4; n++) CHECK(last_of[n] == 2000);
    lane_close(&lane);
}

static void with_blocking_submit_the_submitter_launches(void) {
    Lane lane = lane_open(kPreemptLevelBlock, kQueueCreateFlagBlockingSubmit);
    Work work = {lane.queue, 100000, 5};
    HwCommandHandle command;
    forget_turns();
    OK(HwCommandCreateCallback(&command, take_turn, &work));
    OK(XQueueSubmit(lane.xq, command));
    CHECK(turns_so_far() == 1);
    OK(XQueueWait(lane.xq, command));
    CHECK(finished(lane.queue) == 1);
    OK(HwCommandDestroy(command));
    /* Suspended: the submitting thread waits. */
    OK(XQueueSuspend(lane.xq, kQueueSuspendFlagNone));
    pthread_t thread;
    Submitter submitter = {&lane, 0, 1};
    last_of[0] = 0;
    CHECK(pthread_create(&thread, NULL, submit_many, &submitter) == 0);
    pause_ms(10);
    CHECK(last_of[0] == 0);
    OK(XQueueResume(lane.xq, kQueueResumeFlagNone));
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(last_of[0] == 1);
    lane_close(&lane);
}

static Lane inner;
static HwCommandHandle inner_command;

static XResult from_inside(HwQueueHandle hwq, void *data) {
    (void)data;
    CHECK(hwq == inner.hwq);
    EXPECT(kXSchedErrorNotAllowed, XQueueWaitAll(inner.xq));
    EXPECT(kXSchedErrorNotAllowed, XQueueWait(inner.xq, inner_command));
    EXPECT(kXSchedErrorNotAllowed, XQueueSuspend(inner.xq, kQueueSuspendFlagWaitAll));
    OK(XQueueSubmit(inner.xq, inner_command));
    OK(XQueueSuspend(inner.xq, kQueueSuspendFlagNone));
    return kXSchedSuccess;
}

static XResult destroy_inside(HwQueueHandle hwq, void *data) {
    (void)hwq;
    (void)data;
    OK(XQueueDestroy(inner.xq));
    forget_turns();
    return kXSchedSuccess;
}

static void a_command_may_use_its_own_queue(void) {
    inner = lane_open(kPreemptLevelBlock, kQueueCreateFlagNone);
    Work work = {inner.queue, 0, 9};
    HwCommandHandle command, last;
    forget_turns();
    OK(HwCommandCreateCallback(&command, from_inside, NULL));
    OK(HwCommandCreateCallback(&inner_command, take_turn, &work));
    OK(HwCommandCreateCallback(&last, destroy_inside, NULL));
    OK(XQueueSubmit(inner.xq, command));
    OK(XQueueWait(inner.xq, command));
    pause_ms(5);
    CHECK(turns_so_far() == 0);
    OK(XQueueResume(inner.xq, kQueueResumeFlagNone));
    OK(XQueueWait(inner.xq, inner_command));
    CHECK(turns_so_far() == 1);
    OK(XQueueSubmit(inner.xq, last));
    while (turns_so_far() != 0) pause_ms(1);
    XQueueHandle xq;
    while (XQueueGet(&xq, inner.hwq) == kXSchedSuccess) pause_ms(1);
    destroy_commands(&command, 1);
    destroy_commands(&inner_command, 1);
    destroy_commands(&last, 1);
    OK(HwQueueDestroy(inner.hwq));
    CHECK(xsim_queue_destroy(inner.queue) == XSIM_SUCCESS);
    CHECK(xsim_close(inner.device) == XSIM_SUCCESS);
}

static void what_waits_in_a_queue_that_is_destroyed_runs_first(void) {
    enum { COMMANDS = 30 };
    Work work[COMMANDS];
    HwCommandHandle commands[COMMANDS];
    Lane lane = lane_open(kPreemptLevelBlock, kQueueCreateFlagNone);
    forget_turns();
    OK(XQueueSuspend(lane.xq, kQueueSuspendFlagNone));
    submit_numbered(&lane, work, commands, COMMANDS, 1000);
    OK(XQueueDestroy(lane.xq));
    CHECK(turns_so_far() == COMMANDS);
    for (int n = 0; n < COMMANDS; n++) CHECK(turns[n] == n);
    EXPECT(kXSchedErrorNotFound, XQueueSubmit(lane.xq, commands[0]));
    destroy_commands(commands, COMMANDS);
    OK(XQueueCreate(&lane.xq, lane.hwq, kPreemptLevelBlock, 0));
    lane_close(&lane);
}

static void schedulers_and_policies_change_while_queues_run(void) {
    enum { COMMANDS = 400 };
    static Work work[COMMANDS];
    static HwCommandHandle commands[COMMANDS];
    Lane lane = lane_open(kPreemptLevelBlock, kQueueCreateFlagNone);
    Lane other = lane_open(kPreemptLevelBlock, kQueueCreateFlagNone);
    OK(XHintPriority(lane.xq, 5));
    OK(XHintTimeslice(TIMESLICE_UNLIMITED));
    OK(XHintTimeslice(2000));
    OK(XHintKDeadline(2));
    forget_turns();
    submit_numbered(&lane, work, commands, COMMANDS, 50000);
    for (int n = 0; turns_so_far() < COMMANDS; n++) {
        OK(XHintSetScheduler(n % 4 ? kSchedulerLocal : kSchedulerAppManaged,
                             (XPolicyType)(kPolicyHighestPriorityFirst + n % 11)));
        OK(XHintUtilization(lane.xq, 10 + n % 90));
        OK(XHintLaxity(other.xq, n % 2 ? 1000 : NO_LAXITY, 0, 10));
        OK(XHintDeadline(lane.xq, n % 2 ? 1000 : NO_DEADLINE));
        pause_ms(1);
    }
    OK(XHintSetScheduler(kSchedulerLocal, kPolicyHighestPriorityFirst));
    OK(XQueueWaitAll(lane.xq));
    for (int n = 0; n < COMMANDS; n++) CHECK(turns[n] == n);
    CHECK(finished(lane.queue) == COMMANDS);
    destroy_commands(commands, COMMANDS);
    lane_close(&lane);
    lane_close(&other);
    OK(XHintSetScheduler(kSchedulerAppManaged, kPolicyUnknown));
}

static void hints_count_at_once(void) {
    enum { COMMANDS = 20 };
    Work low_work[COMMANDS];
    HwCommandHandle commands[COMMANDS];
    OK(XHintSetScheduler(kSchedulerLocal, kPolicyHighestPriorityFirst));
    Lane low = lane_open(kPreemptLevelBlock, kQueueCreateFlagNone);
    OK(XHintPriority(low.xq, PRIORITY_NO_EXECUTE));
    forget_turns();
    submit_numbered(&low, low_work, commands, COMMANDS, 1000);
    pause_ms(30);
    CHECK(turns_so_far() == 0);
    OK(XHintPriority(low.xq, PRIORITY_DEFAULT));
    OK(XQueueWaitAll(low.xq));
    CHECK(turns_so_far() == COMMANDS);
    /* The program schedules itself: no hint holds it. */
    OK(XHintPriority(low.xq, PRIORITY_NO_EXECUTE));
    OK(XHintSetScheduler(kSchedulerAppManaged, kPolicyUnknown));
    OK(XQueueSubmit(low.xq, commands[0]));
    OK(XQueueWait(low.xq, commands[0]));
    destroy_commands(commands, COMMANDS);
    lane_close(&low);
    /* Its hints were removed with it. */
    OK(XHintSetScheduler(kSchedulerLocal, kPolicyHighestPriorityFirst));
    Lane next = lane_open(kPreemptLevelBlock, kQueueCreateFlagNone);
    Work work = {next.queue, 1000, 0};
    OK(HwCommandCreateCallback(&commands[0], take_turn, &work));
    OK(XQueueSubmit(next.xq, commands[0]));
    OK(XQueueWait(next.xq, commands[0]));
    OK(HwCommandDestroy(commands[0]));
    lane_close(&next);
    OK(XHintSetScheduler(kSchedulerAppManaged, kPolicyUnknown));
}

static void a_child_has_none_of_its_parents_handles(void) {
    Lane lane = lane_open(kPreemptLevelBlock, kQueueCreateFlagNone);
    pid_t child = fork();
    if (child == 0) {
        EXPECT(kXSchedErrorNotFound, XQueueSuspend(lane.xq, 0));
        EXPECT(kXSchedErrorNotFound, XQueueDestroy(lane.xq));
        Lane own = lane_open(kPreemptLevelBlock, kQueueCreateFlagNone);
        OK(XQueueSuspend(own.xq, 0));
        OK(XQueueResume(own.xq, 0));
        lane_close(&own);
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    OK(XQueueSuspend(lane.xq, kQueueSuspendFlagSyncHwQueue));
    lane_close(&lane);
}

int main(int argc, char **argv) {
    hooked = argc > 1 && strcmp(argv[1], "hooked") == 0;
    CHECK(strlen(XSchedLastError()) == 0);
#define SHOW(promise) printf("%s\n", #promise), fflush(stdout), promise
    SHOW(rubbish_is_an_error_and_nothing_worse)();
    SHOW(a_level_the_device_lacks_is_refused)();
    SHOW(a_suspended_queue_launches_nothing)();
    SHOW(suspending_waits_for_what_its_flags_say)();
    SHOW(commands_run_in_order_with_few_in_flight)();
    SHOW(waiting_commands_can_be_dropped)();
    SHOW(waiting_for_a_command_waits_for_it_and_tells_its_answer)();
    SHOW(several_threads_use_one_queue)(kQueueCreateFlagNone);
    SHOW(several_threads_use_one_queue)(kQueueCreateFlagBlockingSubmit);
    SHOW(with_blocking_submit_the_submitter_launches)();
    SHOW(a_command_may_use_its_own_queue)();
    SHOW(what_waits_in_a_queue_that_is_destroyed_runs_first)();
    SHOW(a_child_has_none_of_its_parents_handles)();
    SHOW(schedulers_and_policies_change_while_queues_run)();
    SHOW(hints_count_at_once)();
    printf("all\n");
    return 0;
}
