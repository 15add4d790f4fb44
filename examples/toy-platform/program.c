/*
 * A program that uses libtoy. `program plain` launches kernels and prints how many ran. `program suspended` also suspends its
 * queue through XSched's C interface and checks that a launch waits until the queue is resumed.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "toy.h"
#include "xsched/toy/hal.h"
#include "xsched/xsched.h"

#define KERNELS 200
#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            return 1; \
        } \
    } while (0)

static atomic_int ran, returned;

static void kernel(void *argument) {
    (void)argument;
    atomic_fetch_add(&ran, 1);
}

static void *launch_one(void *queue) {
    toy_launch(queue, kernel, NULL);
    atomic_store(&returned, 1);
    return NULL;
}

static int suspend_and_resume(toy_queue_t queue) {
    HwQueueHandle hw_queue;
    XQueueHandle xqueue;
    pthread_t thread;
    CHECK(ToyQueueCreate(&hw_queue, queue) == kXSchedSuccess);
    CHECK(XQueueCreate(&xqueue, hw_queue, kPreemptLevelDeactivate, kQueueCreateFlagNone) == kXSchedErrorNotSupported);
    CHECK(XQueueCreate(&xqueue, hw_queue, kPreemptLevelBlock, kQueueCreateFlagNone) == kXSchedSuccess);
    CHECK(XQueueSuspend(xqueue, kQueueSuspendFlagNone) == kXSchedSuccess);
    CHECK(pthread_create(&thread, NULL, launch_one, queue) == 0);
    /* A launch that is not held returns within microseconds. */
    usleep(200 * 1000);
    CHECK(!atomic_load(&returned) && atomic_load(&ran) == KERNELS);
    CHECK(XQueueResume(xqueue, kQueueResumeFlagNone) == kXSchedSuccess);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(XQueueWaitAll(xqueue) == kXSchedSuccess && atomic_load(&ran) == KERNELS + 1);
    CHECK(XQueueDestroy(xqueue) == kXSchedSuccess && HwQueueDestroy(hw_queue) == kXSchedSuccess);
    return 0;
}

int main(int count, char **arguments) {
    toy_queue_t queue;
    CHECK(count == 2 && toy_queue_create(&queue) == TOY_SUCCESS);
    for (int n = 0; n < KERNELS; n++)
        CHECK(toy_launch(queue, kernel, NULL) == TOY_SUCCESS);
    CHECK(toy_synchronize(queue) == TOY_SUCCESS && atomic_load(&ran) == KERNELS);
    CHECK(toy_launch(NULL, kernel, NULL) == TOY_ERROR_INVALID_VALUE);
    if (!strcmp(arguments[1], "suspended") && suspend_and_resume(queue))
        return 1;
    CHECK(toy_queue_destroy(queue) == TOY_SUCCESS);
    printf("%d kernels\n", atomic_load(&ran));
    return 0;
}
