/*
 * libtoy: the smallest vendor library that can be scheduled. A "device" is a thread for each queue, and a "kernel" is a C
 * function that the thread calls. All functions return TOY_SUCCESS or an error, and may be called from any thread.
 */
#ifndef TOY_H
#define TOY_H

enum { TOY_SUCCESS = 0, TOY_NOT_READY = 1, TOY_ERROR_INVALID_VALUE = 2, TOY_ERROR_NO_MEMORY = 3, TOY_ERROR_UNKNOWN = 99 };

typedef struct toy_queue *toy_queue_t;
typedef struct toy_event *toy_event_t;

int toy_queue_create(toy_queue_t *queue);
/* Waits for the launched kernels. */
int toy_queue_destroy(toy_queue_t queue);

/* Calls `kernel(argument)` after all kernels that were launched on the queue before. Returns at once. */
int toy_launch(toy_queue_t queue, void (*kernel)(void *), void *argument);
/* Waits until all kernels launched on the queue have completed. */
int toy_synchronize(toy_queue_t queue);

/* Creates an event that completes after all kernels that were launched on the queue before. */
int toy_event_record(toy_queue_t queue, toy_event_t *event);
/* TOY_SUCCESS if the event has completed, TOY_NOT_READY if not. */
int toy_event_query(toy_event_t event);
int toy_event_destroy(toy_event_t event);

#endif
