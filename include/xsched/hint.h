/*
 * XSched: hints for the scheduler. A hint is in effect when its function returns.
 *
 * Generated from the library's sources by `XSCHED_WRITE_HEADERS=1 cargo test -p xsched-lib headers`.
 */
#ifndef XSCHED_HINT_H
#define XSCHED_HINT_H

#include "xsched/types.h"

#ifdef __cplusplus
extern "C" {
#endif

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
XResult XHintPriority(XQueueHandle xq, Priority prio);

/** Requests a share of the device for the queue, in percent, UTILIZATION_MIN to UTILIZATION_MAX. */
XResult XHintUtilization(XQueueHandle xq, Utilization util);

/**
 * Sets the time slice in microseconds, TIMESLICE_MIN to TIMESLICE_MAX, for policies with time slices.
 * TIMESLICE_UNLIMITED stands for TIMESLICE_MAX. The service changes its time slice only if its configuration allows it.
 */
XResult XHintTimeslice(Timeslice ts_us);

/**
 * Sets how long the queue's work can wait, in microseconds, and its priority before and after that time. NO_LAXITY removes
 * the hint.
 */
XResult XHintLaxity(XQueueHandle xq, Laxity lax_us, Priority lax_prio, Priority crit_prio);

/** Sets the deadline of the queue's work in microseconds after the queue becomes busy. NO_DEADLINE removes the hint. */
XResult XHintDeadline(XQueueHandle xq, Deadline ddl_us);

/** Sets how many queues run at once under kPolicyKEarliestDeadlineFirst, at least 1. */
XResult XHintKDeadline(size_t k);

#ifdef __cplusplus
}
#endif

#endif
