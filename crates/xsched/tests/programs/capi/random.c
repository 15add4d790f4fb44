/*
 * Random calls from several threads on handles that all of them share, create and destroy. No call may crash, hang, or
 * return a code that the header does not document.
 *
 *   random CALLS THREADS SEED
 *
 * Prints how often each code was returned.
 */
#include <stdatomic.h>

#include "check.h"

enum { PLACES = 8 };

static xsim_device_t device;
/* The vendor's queues outlive every handle for them. */
static xsim_queue_t vendors[PLACES];
static _Atomic uint64_t hw_queues[PLACES], queues[PLACES], commands[PLACES];
static _Atomic long answers[8];
static long calls_each;

static XResult nothing(HwQueueHandle hwq, void *data) {
    (void)hwq;
    (void)data;
    return kXSchedSuccess;
}

static XResult work(HwQueueHandle hwq, void *data) {
    (void)hwq;
    return xsim_launch((xsim_queue_t)data, 500) == XSIM_SUCCESS ? kXSchedSuccess : kXSchedErrorHardware;
}

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void note(XResult answer) {
    if (answer == kXSchedErrorUnknown || (unsigned)answer > 6) {
        fprintf(stderr, "answered %d: %s\n", (int)answer, XSchedLastError());
        exit(72);
    }
    answers[answer]++;
}

/* Mostly a handle of the correct kind, valid or stale; sometimes an invalid value. */
static uint64_t some(_Atomic uint64_t *handles, uint64_t random) {
    if (random % 61 == 0) return random;
    if (random % 67 == 0) return 0;
    if (random % 53 == 0) return commands[random % PLACES];
    return handles[random % PLACES];
}

static void one_call(uint64_t random, uint64_t more) {
    uint64_t handle = 0;
    int64_t count;
    XQueueState state;
    unsigned place = (unsigned)(more % PLACES);
    uint64_t hwq = some(hw_queues, more >> 8), xq = some(queues, more >> 16), cmd = some(commands, more >> 24);
    switch (random % 32) {
        case 0: note(XsimQueueCreate(&handle, vendors[place])); if (handle) hw_queues[place] = handle; break;
        case 1: note(HwQueueDestroy(hwq)); break;
        case 2: case 3:
            note(XQueueCreate(&handle, hwq, (int64_t)(random >> 8) % 6 - 1, (int64_t)(random >> 16) % 8 == 0));
            if (handle) queues[place] = handle;
            break;
        case 4: if (random >> 8 & 1) note(XQueueDestroy(xq)); break;
        case 5: note(XQueueGet(&handle, hwq)); if (handle) queues[place] = handle; break;
        case 6: note(HwCommandCreateCallback(&handle, random & 256 ? nothing : work, vendors[place]));
            if (handle) commands[place] = handle;
            break;
        case 7: note(HwCommandDestroy(cmd)); break;
        case 8: case 9: case 10: case 11: case 12: case 13: note(XQueueSubmit(xq, cmd)); break;
        case 14: note(XQueueSetPreemptLevel(xq, (XPreemptLevel)(random >> 8 & 7))); break;
        case 15: note(XQueueSetLaunchConfig(xq, (int64_t)(random >> 8) % 20, (int64_t)(random >> 16) % 9)); break;
        case 16: note(XQueueQuery(xq, &state)); break;
        case 17: note(XQueueProfileHwCommandCount(xq, &count)); break;
        case 18: note(XQueueSuspend(xq, random & 256 ? kQueueSuspendFlagNone : kQueueSuspendFlagSyncHwQueue)); break;
        case 19: note(XQueueSuspend(xq, (int64_t)(random >> 8) % 16 & ~6)); break;
        case 20: case 21: case 22: note(XQueueResume(xq, random & 256 ? kQueueResumeFlagDropCommands : 0)); break;
        case 23: note(HwQueueLaunch(hwq, cmd)); break;
        case 24: note(HwQueueSynchronize(hwq)); break;
        case 25: note(XHintPriority(xq, (int32_t)(random >> 8 & 1023) - 512)); break;
        case 26: note(XHintUtilization(xq, (int32_t)(random >> 8 & 127))); break;
        case 27: note(XHintLaxity(xq, (int64_t)(random >> 8 & 4095) - 2, 0, (int32_t)(random >> 20 & 511))); break;
        case 28: note(XHintDeadline(xq, (int64_t)(random >> 8 & 4095) - 2)); break;
        case 29: note(random & 256 ? XHintTimeslice((int64_t)(random >> 9 & 8191)) : XHintKDeadline(random >> 9 & 3)); break;
        case 30:
            if ((random >> 8) % 32 == 0)
                note(XHintSetScheduler((XSchedulerType)((random >> 16) % 3), (XPolicyType)((random >> 20) % 14)));
            break;
        case 31: note(xsim_launch(vendors[place], 1000) == XSIM_SUCCESS ? kXSchedSuccess : kXSchedErrorHardware); break;
    }
}

/* Every queue is resumed regularly, also a queue whose handle was overwritten, so that no thread waits without end. */
static _Atomic int over;

static void *resume_queue(void *data) {
    (void)data;
    while (!over) {
        for (int n = 0; n < PLACES; n++) {
            HwQueueHandle hwq;
            XQueueHandle xq;
            if (XsimQueueCreate(&hwq, vendors[n]) != kXSchedSuccess || XQueueGet(&xq, hwq) != kXSchedSuccess) continue;
            XQueueResume(xq, kQueueResumeFlagNone);
            XHintPriority(xq, PRIORITY_DEFAULT);
            /* The strict share policy never runs a task with a share of 0. */
            XHintUtilization(xq, UTILIZATION_DEFAULT);
        }
        pause_ms(1);
    }
    return NULL;
}

static void *call(void *data) {
    uint64_t state = (uint64_t)(uintptr_t)data * 0x9e3779b97f4a7c15ull + 1;
    for (long n = 0; n < calls_each; n++) {
        uint64_t random = next(&state) >> 5;
        one_call(random, next(&state) >> 5);
    }
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    int number = atoi(argv[2]);
    pthread_t threads[64], friend;
    calls_each = atol(argv[1]) / number;
    CHECK(xsim_open(NULL, &device) == XSIM_SUCCESS);
    for (int n = 0; n < PLACES; n++) CHECK(xsim_queue_create(device, &vendors[n]) == XSIM_SUCCESS);
    CHECK(pthread_create(&friend, NULL, resume_queue, NULL) == 0);
    for (int n = 0; n < number; n++)
        CHECK(pthread_create(&threads[n], NULL, call, (void *)(uintptr_t)(atol(argv[3]) * 64 + n + 1)) == 0);
    for (int n = 0; n < number; n++) CHECK(pthread_join(threads[n], NULL) == 0);
    over = 1;
    CHECK(pthread_join(friend, NULL) == 0);
    for (int n = 0; n < PLACES; n++) {
        XQueueDestroy(queues[n]);
        HwQueueDestroy(hw_queues[n]);
        HwCommandDestroy(commands[n]);
    }
    for (int n = 0; n < 7; n++) printf("answered %d: %ld\n", n, answers[n]);
    return 0;
}
