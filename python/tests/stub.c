/*
  * A stand-in for the C interface of libxsched.so that records its calls. Handles encode their origin: hardware queues are
  * 0x1000 (CUDA), 0x2000 (HIP) or 0x3000 (OpenCL) plus the stream, queues are 0x9000 plus the stream.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

typedef int XResult;

static char calls[1 << 16];
static int failure, silent, has_queue, hold;
static int highest_level = 3;
static const char *last_error = "";
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static XResult record(const char *format, ...) {
    if (silent) return failure;
    pthread_mutex_lock(&lock);
    va_list arguments;
    va_start(arguments, format);
    size_t used = strlen(calls);
    vsnprintf(calls + used, sizeof calls - used, format, arguments);
    va_end(arguments);
    strncat(calls, " ", sizeof calls - strlen(calls) - 1);
    pthread_mutex_unlock(&lock);
    return failure;
}

const char *stub_calls(void) { return calls; }
void stub_fail_with(int code) { failure = code; }
void stub_silent(int on) { silent = on; }
void stub_set_error(int on) { last_error = on ? "the reason from the stand-in" : ""; }
void stub_highest_level(int level) { highest_level = level; }
void stub_has_queue(int on) { has_queue = on; }
void stub_hold_waiters(int on) {
    pthread_mutex_lock(&lock);
    hold = on;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

const char *XSchedLastError(void) { return last_error; }

#define HEX "0x%llx"
#define U(n) ((unsigned long long)(n))
#define D(n) ((long long)(n))

XResult CudaQueueCreate(uint64_t *hw, void *stream) {
    *hw = 0x1000 + (uint64_t)stream;
    return record("CudaQueueCreate(" HEX ")", U(stream));
}
XResult CudaQueueGet(uint64_t *hw, void *stream) {
    if (!has_queue) return 3;
    *hw = 0x1000 + (uint64_t)stream;
    return record("CudaQueueGet(" HEX ")", U(stream));
}
XResult HipQueueCreate(uint64_t *hw, void *stream) {
    *hw = 0x2000 + (uint64_t)stream;
    return record("HipQueueCreate(" HEX ")", U(stream));
}
XResult OclQueueCreate(uint64_t *hw, void *queue) {
    *hw = 0x3000 + (uint64_t)queue;
    return record("OclQueueCreate(" HEX ")", U(queue));
}
XResult XQueueCreate(uint64_t *queue, uint64_t hw, int64_t level, int64_t flags) {
    *queue = 0x9000 + (hw & 0xfff);
    if (level < 1 || level > 3) return 2;
    if (level > highest_level) return 5;
    return record("XQueueCreate(" HEX ",%lld,%lld)", U(hw), D(level), D(flags));
}
XResult XQueueGet(uint64_t *queue, uint64_t hw) {
    *queue = 0x9000 + (hw & 0xfff);
    return record("XQueueGet(" HEX ")", U(hw));
}
XResult XQueueDestroy(uint64_t queue) { return record("XQueueDestroy(" HEX ")", U(queue)); }
XResult HwQueueDestroy(uint64_t hw) { return record("HwQueueDestroy(" HEX ")", U(hw)); }
XResult XQueueSuspend(uint64_t queue, int64_t flags) { return record("XQueueSuspend(" HEX ",%lld)", U(queue), D(flags)); }
XResult XQueueResume(uint64_t queue, int64_t flags) { return record("XQueueResume(" HEX ",%lld)", U(queue), D(flags)); }
XResult XQueueWaitAll(uint64_t queue) {
    XResult result = record("XQueueWaitAll(" HEX ")", U(queue));
    pthread_mutex_lock(&lock);
    while (hold) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return result;
}
XResult XQueueQuery(uint64_t queue, int *state) {
    *state = 2;
    return record("XQueueQuery(" HEX ")", U(queue));
}
XResult XQueueSetPreemptLevel(uint64_t queue, int level) { return record("XQueueSetPreemptLevel(" HEX ",%d)", U(queue), level); }
XResult XQueueSetLaunchConfig(uint64_t queue, int64_t threshold, int64_t batch) {
    return record("XQueueSetLaunchConfig(" HEX ",%lld,%lld)", U(queue), D(threshold), D(batch));
}
XResult XHintPriority(uint64_t queue, int32_t n) { return record("XHintPriority(" HEX ",%d)", U(queue), n); }
XResult XHintUtilization(uint64_t queue, int32_t n) { return record("XHintUtilization(" HEX ",%d)", U(queue), n); }
XResult XHintDeadline(uint64_t queue, int64_t us) { return record("XHintDeadline(" HEX ",%lld)", U(queue), D(us)); }
XResult XHintLaxity(uint64_t queue, int64_t us, int32_t before, int32_t after) {
    return record("XHintLaxity(" HEX ",%lld,%d,%d)", U(queue), D(us), before, after);
}

/* The cost of a suspend and a resume for a C program. */
double stub_pair_ns(int pairs) {
    XResult (*volatile suspend)(uint64_t, int64_t) = XQueueSuspend;
    XResult (*volatile resume)(uint64_t, int64_t) = XQueueResume;
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int n = 0; n < pairs; n++) {
        suspend(0x9007, 0);
        resume(0x9007, 0);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    return ((double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec)) / pairs;
}
