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
 * Makes an XQueue on a hardware queue. From now on launches on the vendor's queue are under control.
 *
 * `level` is one of XPreemptLevel; one the device lacks is answered with kXSchedErrorNotSupported. `flags` is made
 * of XQueueCreateFlag. A hardware queue has one XQueue at most: a second is answered with kXSchedErrorNotAllowed.
 */
XResult XQueueCreate(XQueueHandle *xq, HwQueueHandle hwq, int64_t level, int64_t flags);

/**
 * Destroys an XQueue. What waits in it is launched first, whether it was suspended or not, and none of its commands
 * runs when this returns. The hardware queue goes on without control.
 */
XResult XQueueDestroy(XQueueHandle xq);

/** Finds the XQueue of a hardware queue; kXSchedErrorNotFound if it has none. */
XResult XQueueGet(XQueueHandle *xq, HwQueueHandle hwq);

/** Changes how deep the queue is stopped when it is suspended, also while it is. */
XResult XQueueSetPreemptLevel(XQueueHandle xq, XPreemptLevel level);

/**
 * Changes how many commands may be in flight (1 to 65536) and after how many the device is asked how far it is
 * (1 to `threshold`). What is in flight already stays there.
 */
XResult XQueueSetLaunchConfig(XQueueHandle xq, int64_t threshold, int64_t batch_size);

/**
 * Hands over a command, to be launched when it is its turn. Commands of a queue are launched in the order they
 * were submitted. Returns at once, but for two cases: with kQueueCreateFlagBlockingSubmit it is launched here,
 * and with some thousand commands waiting in a queue that is not suspended it waits for room.
 */
XResult XQueueSubmit(XQueueHandle xq, HwCommandHandle cmd);

/**
 * Dependencies until a command that was submitted to this queue has completed on the device, and answers what its
 * function answered. kXSchedErrorNotFound if it was dropped, or never submitted here.
 */
XResult XQueueWait(XQueueHandle xq, HwCommandHandle cmd);

/** Dependencies until everything that was submitted or launched so far has completed on the device. */
XResult XQueueWaitAll(XQueueHandle xq);

/** Whether the queue has work: kQueueStateReady or kQueueStateIdle. */
XResult XQueueQuery(XQueueHandle xq, XQueueState *state);

/**
 * Stops new launches at once, and what is on the device as deep as the level reaches. May be repeated. `flags` is
 * made of XQueueSuspendFlag.
 */
XResult XQueueSuspend(XQueueHandle xq, int64_t flags);

/** Lets launches go on where they were stopped. May be repeated. `flags` is made of XQueueResumeFlag. */
XResult XQueueResume(XQueueHandle xq, int64_t flags);

/** How many commands wait in the queue or are in flight, as far as they are counted. */
XResult XQueueProfileHwCommandCount(XQueueHandle xq, int64_t *count);

/** Forgets a hardware queue. Its XQueue has to be destroyed before; the vendor's queue is not touched. */
XResult HwQueueDestroy(HwQueueHandle hwq);

/** Calls a command's function for this hardware queue, at once and on this thread, and answers what it answers. */
XResult HwQueueLaunch(HwQueueHandle hwq, HwCommandHandle cmd);

/** Dependencies until the device has finished everything that was launched on the hardware queue. */
XResult HwQueueSynchronize(HwQueueHandle hwq);

/**
 * Makes a command of a function, to be called with the hardware queue it is to launch on, and with `data`.
 *
 * The function is called on a thread of XSched's, or of the program's if the XQueue was created with
 * kQueueCreateFlagBlockingSubmit. It must not throw. A command may be submitted again, also while it waits.
 */
XResult HwCommandCreateCallback(HwCommandHandle *cmd, XResult (*launch)(HwQueueHandle hwq, void *data), void *data);

/** Forgets a command. If it was submitted and waits, it is launched all the same: keep `data` until then. */
XResult HwCommandDestroy(HwCommandHandle cmd);

#ifdef __cplusplus
}
#endif

#endif
