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

/** The queue does not run. */
#define PRIORITY_NO_EXECUTE (-256)
/** The lowest priority. */
#define PRIORITY_MIN (-255)
/** The priority of a queue without a hint. */
#define PRIORITY_DEFAULT 0
/** The highest priority. */
#define PRIORITY_MAX 255
/** Percent of the device's time. */
#define UTILIZATION_MIN 0
#define UTILIZATION_DEFAULT 100
#define UTILIZATION_MAX 100
/** Microseconds of a time slice. */
#define TIMESLICE_MIN 100
#define TIMESLICE_DEFAULT 5000
#define TIMESLICE_MAX 10000000
/** Stands for TIMESLICE_MAX. */
#define TIMESLICE_UNLIMITED UINT64_MAX
/** Removes a laxity. */
#define NO_LAXITY (-1)
/** Removes a deadline. */
#define NO_DEADLINE (-1)

/**
 * Selects the scheduler of the program's XQueues, also while they run: the program itself, a scheduler inside the
 * process with this policy, or the service, which has its own policy. Earlier hints stay in effect.
 */
XResult XHintSetScheduler(XSchedulerType scheduler, XPolicyType policy);

/**
 * Sets the priority of the queue, PRIORITY_MIN to PRIORITY_MAX. A queue with PRIORITY_NO_EXECUTE does not run.
 *
 * The queues of a program are one task until one of them gets a hint of its own. kXSchedErrorNotAllowed if the service
 * does not allow the user this priority.
 */
XResult XHintPriority(XQueueHandle xq, int32_t prio);

/** Requests a share of the device for the queue, in percent, UTILIZATION_MIN to UTILIZATION_MAX. */
XResult XHintUtilization(XQueueHandle xq, int32_t util);

/**
 * Sets the time slice in microseconds, TIMESLICE_MIN to TIMESLICE_MAX, for policies with time slices.
 * TIMESLICE_UNLIMITED stands for TIMESLICE_MAX. The service changes its time slice only if its configuration allows it.
 */
XResult XHintTimeslice(int64_t ts_us);

/**
 * Sets how long the queue's work can wait, in microseconds, and its priority before and after that time. NO_LAXITY removes
 * the hint.
 */
XResult XHintLaxity(XQueueHandle xq, int64_t lax_us, int32_t lax_prio, int32_t crit_prio);

/** Sets the deadline of the queue's work in microseconds after the queue becomes busy. NO_DEADLINE removes the hint. */
XResult XHintDeadline(XQueueHandle xq, int64_t ddl_us);

/** Sets how many queues run at once under kPolicyKEarliestDeadlineFirst, at least 1. */
XResult XHintKDeadline(size_t k);

#ifdef __cplusplus
}
#endif

#endif
