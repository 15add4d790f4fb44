/* Functions that the test programs share. */
#ifndef DEVICE_H
#define DEVICE_H

#include <stdio.h>
#include <stdlib.h>
#include "xsim.h"

static void must(xsim_result result, const char *what) {
    if (result != XSIM_SUCCESS) {
        fprintf(stderr, "%s: %d: %s\n", what, result, xsim_last_error());
        exit(70);
    }
}

/* Opens the device, runs commands on a new queue, and prints how many completed. */
static inline void use_device(const char *label, int commands, long length_us) {
    xsim_device_t device;
    xsim_queue_t queue;
    uint64_t finished;
    must(xsim_open(NULL, &device), "open");
    must(xsim_queue_create(device, &queue), "create");
    for (int n = 0; n < commands; n++) must(xsim_launch(queue, length_us * 1000), "launch");
    must(xsim_synchronize(queue), "synchronize");
    must(xsim_finished(queue, &finished), "finished");
    must(xsim_queue_destroy(queue), "destroy");
    must(xsim_close(device), "close");
    printf("%s: %llu\n", label, (unsigned long long)finished);
    fflush(stdout);
}

#endif
