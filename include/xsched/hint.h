/*
 * XSched: hints for the scheduler. A hint is in effect when its function returns.
 *
 * Generated from the library's sources by `XSCHED_WRITE_HEADERS=1 cargo test -p xsched-lib headers`.
 */
#ifndef XSCHED_HINT_H
#define XSCHED_HINT_H

#include <stddef.h>
#include "xsched/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The queue does not run at all. */
#define PRIORITY_NO_EXECUTE (-256)
/** The least important. */
#define PRIORITY_MIN (-255)
/** What a queue has unless told otherwise. */
#define PRIORITY_DEFAULT 0
/** The most important. */
#define PRIORITY_MAX 255
/** Percent of the device. */
#define UTILIZATION_MIN 0
#define UTILIZATION_DEFAULT 100
#define UTILIZATION_MAX 100
/** Microseconds of a turn. */
#define TIMESLICE_MIN 100
#define TIMESLICE_DEFAULT 5000
#define TIMESLICE_MAX 10000000
/** Counts as TIMESLICE_MAX. */
#define TIMESLICE_UNLIMITED UINT64_MAX
/** Takes a laxity back. */
#define NO_LAXITY (-1)
/** Takes a deadline back. */
#define NO_DEADLINE (-1)

/**
 * Chooses who schedules the program's XQueues, now and while they run: the program itself, a scheduler inside the
 * process with this policy, or the service, which has its own policy. Hints given before go along.
 */
XResult XHintSetScheduler(XSchedulerType scheduler, XPolicyType policy);

/**
 * How important the queue is, PRIORITY_MIN to PRIORITY_MAX; with PRIORITY_NO_EXECUTE it does not run at all.
 *
 * Queues of a program are scheduled together until one of them is given a hint of its own. The service may refuse
 * more than the user is allowed, with kXSchedErrorNotAllowed.
 */
XResult XHintPriority(XQueueHandle xq, int32_t prio);

/** The queue's share of the device in percent, UTILIZATION_MIN to UTILIZATION_MAX. */
XResult XHintUtilization(XQueueHandle xq, int32_t util);

/**
 * The length of a turn in microseconds, TIMESLICE_MIN to TIMESLICE_MAX, for policies that take turns.
 * TIMESLICE_UNLIMITED counts as TIMESLICE_MAX. The service's is changed only where the service allows it.
 */
XResult XHintTimeslice(int64_t ts_us);

/** How long the queue can wait, and its priority before and after; NO_LAXITY takes it back. */
XResult XHintLaxity(XQueueHandle xq, int64_t lax_us, int32_t lax_prio, int32_t crit_prio);

/** How long the queue may take from the moment it has work, in microseconds; NO_DEADLINE takes it back. */
XResult XHintDeadline(XQueueHandle xq, int64_t ddl_us);

/** How many queues run at once under kPolicyKEarliestDeadlineFirst, 1 or more. */
XResult XHintKDeadline(size_t k);

#ifdef __cplusplus
}
#endif

#endif
