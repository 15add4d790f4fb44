/*
  * libxsim: a simulated accelerator, as its vendor would provide it.
  *
  * Commands are launched on queues and run asynchronously, in the order of their queue. The device runs the queues of one
  * process in the order of submission, and switches between processes by time slices. All functions may be called from any
  * thread. Handles are valid only in the process that created them: a child must open the device again after fork. The
  * pending commands of a process are dropped when it exits.
 */
#ifndef XSIM_H
#define XSIM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct xsim_device *xsim_device_t;
typedef struct xsim_queue *xsim_queue_t;
typedef struct xsim_event *xsim_event_t;

typedef enum xsim_result {
    XSIM_SUCCESS = 0,
    XSIM_ERROR_INVALID_VALUE = 1,  /* a null pointer, an invalid handle, a number out of range */
    XSIM_ERROR_NOT_READY = 2,      /* not complete yet; not a failure */
    XSIM_ERROR_NO_DEVICE = 3,      /* the device can be neither opened nor created */
    XSIM_ERROR_OUT_OF_QUEUES = 4,
    XSIM_ERROR_FORKED = 5,         /* the handle belongs to the parent of this process */
    XSIM_ERROR_DEVICE_LOST = 6,
    XSIM_ERROR_NOT_SUPPORTED = 7,  /* the device lacks the requested preemption level */
    XSIM_ERROR_UNKNOWN = 999
} xsim_result;

/* Opens the device at `path`, or at $XSIM_DEVICE if `path` is NULL. Creates it if the file does not exist. */
xsim_result xsim_open(const char *path, xsim_device_t *device);
/* Queues and events of the device stay valid. */
xsim_result xsim_close(xsim_device_t device);

xsim_result xsim_queue_create(xsim_device_t device, xsim_queue_t *queue);
/* Pending commands run to completion. */
xsim_result xsim_queue_destroy(xsim_queue_t queue);

/* Launches a command that runs for `length_ns`. Blocks only while the queue is full. */
xsim_result xsim_launch(xsim_queue_t queue, uint64_t length_ns);
/* Waits until all commands launched on the queue have completed. */
xsim_result xsim_synchronize(xsim_queue_t queue);
/* XSIM_SUCCESS if all launched commands have completed, else XSIM_ERROR_NOT_READY. */
xsim_result xsim_query(xsim_queue_t queue);
/* How many launched commands have completed. */
xsim_result xsim_finished(xsim_queue_t queue, uint64_t *commands);

xsim_result xsim_event_create(xsim_event_t *event);
xsim_result xsim_event_destroy(xsim_event_t event);
/* Records the event behind the commands launched so far. */
xsim_result xsim_event_record(xsim_event_t event, xsim_queue_t queue);
/* Whether the last recording has completed; an event that was never recorded has. */
xsim_result xsim_event_query(xsim_event_t event);
xsim_result xsim_event_synchronize(xsim_event_t event);
/* Makes what is launched on the queue after this wait until the last recording has completed. */
xsim_result xsim_queue_wait_event(xsim_queue_t queue, xsim_event_t event);

/* The message of this thread's last failure. Valid until its next failure. */
const char *xsim_last_error(void);

/* For system software. A marker is a number that the device reports when everything launched before it has completed. */
xsim_result xsim_queue_device(xsim_queue_t queue, uint64_t *device);
/* Costs in nanoseconds: stop at level 2, restore, stop at level 3, restore; UINT64_MAX for a level the device lacks. */
xsim_result xsim_queue_levels(xsim_queue_t queue, uint64_t costs_ns[4]);
xsim_result xsim_queue_mark(xsim_queue_t queue, uint64_t *marker);
/* The last reported marker, and its time on the monotonic clock; 0 before the first. */
xsim_result xsim_queue_progress(xsim_queue_t queue, uint64_t *marker, uint64_t *at_ns);
/* XSIM_SUCCESS if the marker was reported before the timeout, else XSIM_ERROR_NOT_READY. */
xsim_result xsim_queue_wait(xsim_queue_t queue, uint64_t marker, uint64_t timeout_ns);
/* Stops the queue: commands that have not started (level 2), and also the running command (level 3). */
xsim_result xsim_queue_preempt(xsim_queue_t queue, uint32_t level);
xsim_result xsim_queue_restore(xsim_queue_t queue);

#ifdef __cplusplus
}
#endif
#endif
