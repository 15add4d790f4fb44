/* See toy.h. */
#include "toy.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* A kernel, or an event to complete. */
struct command {
    void (*kernel)(void *);
    void *argument;
    struct toy_event *event;
    struct command *next;
};

struct toy_event {
    atomic_int is_complete;
    /* The queue's and the program's. */
    atomic_int references;
};

struct toy_queue {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct command *first, **last;
    int is_running, is_ending;
};

static void release(struct toy_event *event) {
    if (atomic_fetch_sub(&event->references, 1) == 1)
        free(event);
}

static void *run(void *argument) {
    struct toy_queue *queue = argument;
    pthread_mutex_lock(&queue->lock);
    for (;;) {
        while (!queue->first && !queue->is_ending)
            pthread_cond_wait(&queue->changed, &queue->lock);
        struct command *command = queue->first;
        if (!command)
            break;
        queue->first = command->next;
        if (!queue->first)
            queue->last = &queue->first;
        queue->is_running = 1;
        pthread_mutex_unlock(&queue->lock);
        if (command->kernel)
            command->kernel(command->argument);
        if (command->event) {
            atomic_store(&command->event->is_complete, 1);
            release(command->event);
        }
        free(command);
        pthread_mutex_lock(&queue->lock);
        queue->is_running = 0;
        pthread_cond_broadcast(&queue->changed);
    }
    pthread_mutex_unlock(&queue->lock);
    return NULL;
}

static int submit(struct toy_queue *queue, struct command content) {
    struct command *command = malloc(sizeof *command);
    if (!command)
        return TOY_ERROR_NO_MEMORY;
    *command = content;
    pthread_mutex_lock(&queue->lock);
    *queue->last = command;
    queue->last = &command->next;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
    return TOY_SUCCESS;
}

int toy_queue_create(toy_queue_t *place) {
    if (!place)
        return TOY_ERROR_INVALID_VALUE;
    struct toy_queue *queue = calloc(1, sizeof *queue);
    if (!queue)
        return TOY_ERROR_NO_MEMORY;
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->changed, NULL);
    queue->last = &queue->first;
    if (pthread_create(&queue->thread, NULL, run, queue)) {
        free(queue);
        return TOY_ERROR_NO_MEMORY;
    }
    *place = queue;
    return TOY_SUCCESS;
}

int toy_queue_destroy(toy_queue_t queue) {
    if (!queue)
        return TOY_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&queue->lock);
    queue->is_ending = 1;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
    pthread_join(queue->thread, NULL);
    free(queue);
    return TOY_SUCCESS;
}

int toy_launch(toy_queue_t queue, void (*kernel)(void *), void *argument) {
    if (!queue || !kernel)
        return TOY_ERROR_INVALID_VALUE;
    return submit(queue, (struct command){.kernel = kernel, .argument = argument});
}

int toy_synchronize(toy_queue_t queue) {
    if (!queue)
        return TOY_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&queue->lock);
    while (queue->first || queue->is_running)
        pthread_cond_wait(&queue->changed, &queue->lock);
    pthread_mutex_unlock(&queue->lock);
    return TOY_SUCCESS;
}

int toy_event_record(toy_queue_t queue, toy_event_t *place) {
    if (!queue || !place)
        return TOY_ERROR_INVALID_VALUE;
    struct toy_event *event = malloc(sizeof *event);
    if (!event)
        return TOY_ERROR_NO_MEMORY;
    atomic_init(&event->is_complete, 0);
    atomic_init(&event->references, 2);
    int code = submit(queue, (struct command){.event = event});
    if (code != TOY_SUCCESS) {
        free(event);
        return code;
    }
    *place = event;
    return TOY_SUCCESS;
}

int toy_event_query(toy_event_t event) {
    if (!event)
        return TOY_ERROR_INVALID_VALUE;
    return atomic_load(&event->is_complete) ? TOY_SUCCESS : TOY_NOT_READY;
}

int toy_event_destroy(toy_event_t event) {
    if (!event)
        return TOY_ERROR_INVALID_VALUE;
    release(event);
    return TOY_SUCCESS;
}
