/*
 * XSched: queues that can be suspended and resumed, and commands to submit to them.
 *
 * Generated from the library's sources by `XSCHED_WRITE_HEADERS=1 cargo test -p xsched-lib headers`.
 */
#ifndef XSCHED_XQUEUE_H
#define XSCHED_XQUEUE_H

#include "xsched/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Creates an XQueue on a hardware queue. From then on, launches on the vendor's queue are scheduled.
 *
 * `level` is one of XPreemptLevel; kXSchedErrorNotSupported if the device lacks it. `flags` combines values of
 * XQueueCreateFlag. A hardware queue has at most one XQueue: kXSchedErrorNotAllowed if it has one.
 */
XResult XQueueCreate(XQueueHandle *xq, HwQueueHandle hwq, int64_t level, int64_t flags);

/**
 * Destroys an XQueue. Its waiting commands are launched first, also if it is suspended, and no command function runs
 * when this returns. The hardware queue continues unscheduled.
 */
XResult XQueueDestroy(XQueueHandle xq);

/** Returns the XQueue of a hardware queue; kXSchedErrorNotFound if it has none. */
XResult XQueueGet(XQueueHandle *xq, HwQueueHandle hwq);

/** Changes the preemption level of the queue, also while it is suspended. */
XResult XQueueSetPreemptLevel(XQueueHandle xq, XPreemptLevel level);

/**
 * Sets how many commands may be in flight (1 to 65536), and after how many commands a marker is placed (1 to
 * `threshold`). Commands that are in flight are not affected.
 */
XResult XQueueSetLaunchConfig(XQueueHandle xq, int64_t threshold, int64_t batch_size);

/**
 * Submits a command. Commands of a queue are launched in the order of submission. The function returns at once, with
 * two exceptions: with kQueueCreateFlagBlockingSubmit it launches the command on the calling thread, and if
 * thousands of commands wait in a queue that is not suspended, it waits for room.
 */
XResult XQueueSubmit(XQueueHandle xq, HwCommandHandle cmd);

/**
 * Waits until a command that was submitted to this queue has completed on the device, and returns the result of its
 * function. kXSchedErrorNotFound if it was dropped, or not submitted to this queue.
 */
XResult XQueueWait(XQueueHandle xq, HwCommandHandle cmd);

/** Waits until everything that was submitted or launched so far has completed on the device. */
XResult XQueueWaitAll(XQueueHandle xq);

/** Returns whether the queue has work: kQueueStateReady or kQueueStateIdle. */
XResult XQueueQuery(XQueueHandle xq, XQueueState *state);

/**
 * Suspends the queue: holds new launches at once, and preempts work on the device according to the preemption level.
 * Suspending a suspended queue has no effect. `flags` combines values of XQueueSuspendFlag.
 */
XResult XQueueSuspend(XQueueHandle xq, int64_t flags);

/** Resumes the queue. Resuming a queue that is not suspended has no effect. `flags` combines values of XQueueResumeFlag. */
XResult XQueueResume(XQueueHandle xq, int64_t flags);

/** Returns how many commands wait in the queue or are in flight, as far as they are counted. */
XResult XQueueProfileHwCommandCount(XQueueHandle xq, int64_t *count);

/** Destroys the handle of a hardware queue. Its XQueue has to be destroyed first. The vendor's queue is not changed. */
XResult HwQueueDestroy(HwQueueHandle hwq);

/** Calls a command's function for this hardware queue, at once and on this thread, and returns its result. */
XResult HwQueueLaunch(HwQueueHandle hwq, HwCommandHandle cmd);

/** Waits until everything that was launched on the hardware queue has completed. */
XResult HwQueueSynchronize(HwQueueHandle hwq);

/**
 * Creates a command from a function, which is called with the hardware queue to launch on and with `data`.
 *
 * The function is called on a thread of XSched, or on the submitting thread if the XQueue was created with
 * kQueueCreateFlagBlockingSubmit. It must not throw. A command may be submitted again, also while it is waiting.
 */
XResult HwCommandCreateCallback(HwCommandHandle *cmd, LaunchCallback launch, void *data);

/** Destroys a command. A submission that is waiting is still launched: keep `data` until then. */
XResult HwCommandDestroy(HwCommandHandle cmd);

#ifdef __cplusplus
}
#endif

#endif
