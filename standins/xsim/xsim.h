/*
 * libxsim: a simulated accelerator, as its vendor would ship it.
 *
 * Work is launched on queues and runs in the background, in the order of its queue. Queues of one process share the
 * device freely, processes take turns. All functions may be called from any thread; handles belong to the process
 * that made them, and a child after fork has to open the device anew. What a process leaves behind when it ends
 * vanishes.
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
    XSIM_ERROR_INVALID_VALUE = 1,  /* a null pointer, a handle that is none, a number out of range */
    XSIM_ERROR_NOT_READY = 2,      /* not finished yet; not a failure */
    XSIM_ERROR_NO_DEVICE = 3,      /* it can be neither opened nor made */
    XSIM_ERROR_OUT_OF_QUEUES = 4,
    XSIM_ERROR_FORKED = 5,         /* the handle belongs to the parent of this process */
    XSIM_ERROR_DEVICE_LOST = 6,
    XSIM_ERROR_NOT_SUPPORTED = 7,  /* the device lacks the level asked for */
    XSIM_ERROR_UNKNOWN = 999
} xsim_result;

/* Opens the device at `path`, made if it is missing; NULL: the one that $XSIM_DEVICE names. */
xsim_result xsim_open(const char *path, xsim_device_t *device);
/* Queues and events of the device stay valid. */
xsim_result xsim_close(xsim_device_t device);

xsim_result xsim_queue_create(xsim_device_t device, xsim_queue_t *queue);
/* What was launched runs to its end. */
xsim_result xsim_queue_destroy(xsim_queue_t queue);

/* Launches a command that uses the device for so long. Waits only while the queue is full. */
xsim_result xsim_launch(xsim_queue_t queue, uint64_t length_ns);
/* Waits until everything launched on the queue has finished. */
xsim_result xsim_synchronize(xsim_queue_t queue);
/* XSIM_SUCCESS if everything launched has finished, else XSIM_ERROR_NOT_READY. */
xsim_result xsim_query(xsim_queue_t queue);
/* How many launched commands have run to their end. */
xsim_result xsim_finished(xsim_queue_t queue, uint64_t *commands);

xsim_result xsim_event_create(xsim_event_t *event);
xsim_result xsim_event_destroy(xsim_event_t event);
/* Notes the place the queue has come to. */
xsim_result xsim_event_record(xsim_event_t event, xsim_queue_t queue);
/* Whether the place last recorded has been reached; an event never recorded has. */
xsim_result xsim_event_query(xsim_event_t event);
xsim_result xsim_event_synchronize(xsim_event_t event);
/* Holds back what is launched on the queue after this until the place last recorded has been reached. */
xsim_result xsim_queue_wait_event(xsim_queue_t queue, xsim_event_t event);

/* What the last failure of this thread was, in words. Valid until its next failure. */
const char *xsim_last_error(void);

/* For system software. A marker is a number the device reports when everything before it has finished. */
xsim_result xsim_queue_device(xsim_queue_t queue, uint64_t *device);
/* Costs in nanoseconds: stop at level 2, resume, stop at level 3, resume; UINT64_MAX for a level the device lacks. */
xsim_result xsim_queue_levels(xsim_queue_t queue, uint64_t costs_ns[4]);
xsim_result xsim_queue_mark(xsim_queue_t queue, uint64_t *marker);
/* The last marker reported, and when on the monotonic clock; 0 before the first. */
xsim_result xsim_queue_progress(xsim_queue_t queue, uint64_t *marker, uint64_t *at_ns);
/* XSIM_SUCCESS when the marker was reported in time, else XSIM_ERROR_NOT_READY. */
xsim_result xsim_queue_wait(xsim_queue_t queue, uint64_t marker, uint64_t timeout_ns);
/* Stops the queue: what has not begun (level 2), the running command too (level 3). */
xsim_result xsim_queue_preempt(xsim_queue_t queue, uint32_t level);
xsim_result xsim_queue_restore(xsim_queue_t queue);

#ifdef __cplusplus
}
#endif
#endif
