/*
 * Commands that wait for commands of other queues, for the program, and for callbacks. Prints "ready", waits for a line of
 * input with -w, and runs everything ROUNDS times.
 *
 *   cl_graph [-w] ROUNDS
 */
#include <pthread.h>
#include <stdatomic.h>
#include "cl.h"

enum { BEHIND = 100, CALLS = 3 };

static cl_kernel spin;
static atomic_int called;

/* A kernel on a queue, after these events. */
static cl_event behind(cl_command_queue queue, cl_uint count, const cl_event *events) {
    cl_event event;
    must(CALL(clEnqueueNDRangeKernel)(queue, spin, 1, NULL, &SPIN_ITEMS, &SPIN_GROUP, count, count ? events : NULL, &event), "launch");
    return event;
}

static void release(cl_event event) { must(CALL(clReleaseEvent)(event), "release"); }

/* Alternates between queues; each command waits for the previous one. */
static void chain(cl_command_queue *queues, int count) {
    cl_event last = behind(queues[0], 0, NULL);
    for (int n = 1; n < BEHIND; n++) {
        cl_event next = behind(queues[n % count], 1, &last);
        release(last);
        last = next;
    }
    for (int n = 0; n < count; n++) must(CALL(clFlush)(queues[n]), "flush");
    must(CALL(clWaitForEvents)(1, &last), "wait");
    release(last);
}

/* Many commands wait for an event that this thread completes after it has enqueued them all. */
static void behind_the_program(cl_command_queue first, cl_command_queue second) {
    cl_int code;
    cl_event ours = CALL(clCreateUserEvent)(context, &code);
    must(code, "user event");
    must(CALL(clEnqueueBarrierWithWaitList)(first, 1, &ours, NULL), "barrier");
    cl_event last = behind(first, 0, NULL);
    for (int n = 0; n < BEHIND; n++) enqueue_spin(first, spin);
    release(behind(second, 1, &last));
    for (int n = 0; n < BEHIND; n++) enqueue_spin(second, spin);
    must(CALL(clFlush)(first), "flush");
    must(CALL(clFlush)(second), "flush");
    must(CALL(clSetUserEventStatus)(ours, CL_COMPLETE), "complete");
    must(CALL(clFinish)(second), "finish");
    must(CALL(clFinish)(first), "finish");
    release(last);
    release(ours);
}

struct pair { cl_command_queue queue; cl_event ours; };

/* Runs commands on its own queue, then completes the event that the first thread's queue waits for. */
static void *other_thread(void *argument) {
    struct pair *pair = argument;
    for (int n = 0; n < 20; n++) enqueue_spin(pair->queue, spin);
    must(CALL(clFinish)(pair->queue), "finish");
    must(CALL(clSetUserEventStatus)(pair->ours, CL_COMPLETE), "complete");
    return NULL;
}

/* A queue waits for an event that another thread completes after its own commands. */
static void behind_a_thread(cl_command_queue waits, cl_command_queue works) {
    cl_int code;
    pthread_t thread;
    struct pair pair = {works, CALL(clCreateUserEvent)(context, &code)};
    must(code, "user event");
    cl_event last = behind(waits, 1, &pair.ours);
    must(CALL(clFlush)(waits), "flush");
    pthread_create(&thread, NULL, other_thread, &pair);
    must(CALL(clWaitForEvents)(1, &last), "wait");
    pthread_join(thread, NULL);
    release(last);
    release(pair.ours);
}

/* Enqueues commands, and is called again when the first of them completes, a limited number of times. */
static void CL_CALLBACK enqueue_more(cl_event event, cl_int status, void *queue) {
    (void)event;
    if (status != CL_COMPLETE) return;
    if (++called % CALLS == 0) {
        must(CALL(clReleaseCommandQueue)(queue), "release");
        return;
    }
    cl_event first = behind(queue, 0, NULL);
    for (int n = 0; n < BEHIND; n++) enqueue_spin(queue, spin);
    must(CALL(clSetEventCallback)(first, CL_COMPLETE, enqueue_more, queue), "callback");
    must(CALL(clFlush)(queue), "flush");
    release(first);
}

/* Commands that a callback enqueues, possibly on the thread that runs the commands. */
static void from_a_callback(cl_command_queue queue) {
    int goal = called + CALLS;
    cl_event first = behind(queue, 0, NULL);
    must(CALL(clRetainCommandQueue)(queue), "retain");
    must(CALL(clFlush)(queue), "flush");
    /* If the command has completed already, this thread runs the callback. */
    if (goal % 2) must(CALL(clWaitForEvents)(1, &first), "wait");
    must(CALL(clSetEventCallback)(first, CL_COMPLETE, enqueue_more, queue), "callback");
    while (called < goal) usleep(100);
    must(CALL(clFinish)(queue), "finish");
    release(first);
}

int main(int argc, char **argv) {
    int option, waits = 0;
    while ((option = getopt(argc, argv, "w")) != -1) waits = option == 'w';
    long rounds = atol(argv[optind]);
    open_device(SPIN);
    cl_command_queue queues[] = {queue_with(0), queue_with(0), queue_with(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE)};
    spin = spin_of(queues[0], 200);
    spin_of(queues[1], 200);
    printf("ready\n");
    fflush(stdout);
    if (waits) getchar();
    for (long round = 0; round < rounds; round++) {
        chain(queues, 3);
        behind_the_program(queues[0], queues[1]);
        behind_the_program(queues[2], queues[0]);
        behind_a_thread(queues[0], queues[1]);
        from_a_callback(queues[1]);
        printf("round %ld\n", round);
        fflush(stdout);
    }
    return 0;
}
