/*
 * Many empty commands through several queues, one thread each: the cost of a command, and the growth of memory.
 *
 *   many COMMANDS QUEUES [reuse]
 *
 * Prints the nanoseconds per command, from its submission until all have completed, and the kilobytes of memory in use
 * after a tenth of the commands and at the end. With `reuse` one command is submitted repeatedly; without, each is
 * created and destroyed.
 */
#include "check.h"

static long commands;
static int reuse;

typedef struct {
    TestQueue test;
    uint64_t calls;
} Queue;

static XResult count(HwQueueHandle hwq, void *data) {
    (void)hwq;
    *(uint64_t *)data += 1;
    return kXSchedSuccess;
}

static long resident_kb(void) {
    long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%ld %ld", &pages, &resident) == 2);
    fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static void submit(Queue *queue, long number) {
    HwCommandHandle command = 0;
    if (reuse) OK(HwCommandCreateCallback(&command, count, &queue->calls));
    for (long n = 0; n < number; n++) {
        if (!reuse) OK(HwCommandCreateCallback(&command, count, &queue->calls));
        OK(XQueueSubmit(queue->test.xq, command));
        if (!reuse) OK(HwCommandDestroy(command));
    }
    if (reuse) OK(HwCommandDestroy(command));
}

static void *work(void *data) {
    Queue *queue = (Queue *)data;
    submit(queue, commands);
    OK(XQueueWaitAll(queue->test.xq));
    return NULL;
}

static void run(Queue *queues, int number) {
    pthread_t threads[64];
    for (int n = 0; n < number; n++) CHECK(pthread_create(&threads[n], NULL, work, &queues[n]) == 0);
    for (int n = 0; n < number; n++) CHECK(pthread_join(threads[n], NULL) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc >= 3);
    long total = atol(argv[1]);
    int number = atoi(argv[2]);
    reuse = argc > 3;
    static Queue queues[64];
    for (int n = 0; n < number; n++) queues[n].test = open_test_queue(kPreemptLevelBlock, kQueueCreateFlagNone);
    commands = total / number / 10;
    run(queues, number);
    long before = resident_kb();
    unsigned long long began = now_ns();
    commands = total / number - commands;
    run(queues, number);
    unsigned long long span = now_ns() - began;
    long after = resident_kb();
    uint64_t calls = 0;
    for (int n = 0; n < number; n++) {
        calls += queues[n].calls;
        close_test_queue(&queues[n].test);
    }
    CHECK(calls == (uint64_t)(total / number) * (uint64_t)number);
    printf("ns %llu\nbefore %ld\nafter %ld\n", span / (unsigned long long)(commands * number), before, after);
    return 0;
}
