/*
 * Serves requests: every PERIOD_MS, COMMANDS commands of LENGTH_US each. Prints the microseconds from the arrival of each
 * request to its completion on the device. Then waits for a line of input.
 *
 *   requests COUNT COMMANDS LENGTH_US PERIOD_MS
 */
#include <time.h>
#include "device.h"

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void sleep_until(uint64_t when_ns) {
    struct timespec when = {.tv_sec = (time_t)(when_ns / 1000000000), .tv_nsec = (long)(when_ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) != 0) {
    }
}

int main(int argc, char **argv) {
    if (argc < 5) return 64;
    long count = atol(argv[1]), commands = atol(argv[2]), length_us = atol(argv[3]), period_ms = atol(argv[4]);

    xsim_device_t device;
    xsim_queue_t queue;
    must(xsim_open(NULL, &device), "open");
    must(xsim_queue_create(device, &queue), "create");
    uint64_t next = now_ns();
    for (long request = 0; request < count; request++) {
        uint64_t end, mark, reached, arrived = now_ns();
        for (long n = 0; n < commands; n++) must(xsim_launch(queue, length_us * 1000), "launch");
        must(xsim_queue_mark(queue, &mark), "mark");
        must(xsim_synchronize(queue), "synchronize");
        must(xsim_queue_progress(queue, &reached, &end), "progress");
        if (reached < mark) {
            fprintf(stderr, "the device is at %llu, not at %llu\n", (unsigned long long)reached, (unsigned long long)mark);
            return 71;
        }
        printf("%llu\n", (unsigned long long)(end - arrived) / 1000);
        fflush(stdout);
        /* A request that takes longer than the period delays the next one, whose latency starts then. */
        next += (uint64_t)period_ms * 1000000;
        if (next < now_ns()) next = now_ns();
        sleep_until(next);
    }
    printf("idle\n");
    fflush(stdout);
    getchar();
    must(xsim_queue_destroy(queue), "destroy");
    must(xsim_close(device), "close");
    return 0;
}
