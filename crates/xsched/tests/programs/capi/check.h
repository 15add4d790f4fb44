/* Functions that the test programs share: checks that print where they failed, and a queue of the simulated device. */
#ifndef CHECK_H
#define CHECK_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "xsched/xsched.h"
#include "xsched/xsim/hal.h"
#include "xsim.h"

#define CHECK(what)                                                                                        \
    do {                                                                                                   \
        if (!(what)) {                                                                                     \
            fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__, #what,             \
                    XSchedLastError());                                                                    \
            exit(70);                                                                                      \
        }                                                                                                  \
    } while (0)

#define EXPECT(code, call)                                                                                 \
    do {                                                                                                   \
        int answered_ = (int)(call);                                                                       \
        if (answered_ != (int)(code)) {                                                                    \
            fprintf(stderr, "%s:%d: %s answered %d, not %d: %s\n", __FILE__, __LINE__, #call, answered_,   \
                    (int)(code), XSchedLastError());                                                       \
            exit(71);                                                                                      \
        }                                                                                                  \
    } while (0)

#define OK(call) EXPECT(kXSchedSuccess, call)

typedef struct {
    xsim_device_t device;
    xsim_queue_t queue;
    HwQueueHandle hwq;
    XQueueHandle xq;
} TestQueue;

static inline void pause_ms(long ms) {
    struct timespec span;
    span.tv_sec = ms / 1000;
    span.tv_nsec = ms % 1000 * 1000000;
    nanosleep(&span, NULL);
}

static inline unsigned long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)now.tv_sec * 1000000000ull + (unsigned long long)now.tv_nsec;
}

static inline uint64_t finished(xsim_queue_t queue) {
    uint64_t commands = 0;
    CHECK(xsim_finished(queue, &commands) == XSIM_SUCCESS);
    return commands;
}

static inline TestQueue open_test_queue(int64_t level, int64_t flags) {
    TestQueue test;
    CHECK(xsim_open(NULL, &test.device) == XSIM_SUCCESS);
    CHECK(xsim_queue_create(test.device, &test.queue) == XSIM_SUCCESS);
    OK(XsimQueueCreate(&test.hwq, test.queue));
    OK(XQueueCreate(&test.xq, test.hwq, level, flags));
    return test;
}

static inline void close_test_queue(TestQueue *test) {
    OK(XQueueDestroy(test->xq));
    OK(HwQueueDestroy(test->hwq));
    CHECK(xsim_queue_destroy(test->queue) == XSIM_SUCCESS);
    CHECK(xsim_close(test->device) == XSIM_SUCCESS);
}

static inline XQueueState state_of(XQueueHandle xq) {
    XQueueState state = kQueueStateUnknown;
    OK(XQueueQuery(xq, &state));
    return state;
}

#endif
