/*
 * Launches COMMANDS commands of LENGTH_US each and waits for them, ROUNDS times. Prints a line for each round, and exits
 * with STATUS.
 *
 *   work [-q QUEUES] [-s STATUS] ROUNDS COMMANDS LENGTH_US
 */
#include <errno.h>
#include <unistd.h>
#include "device.h"

int main(int argc, char **argv) {
    int queues = 1, status = 0, option;
    while ((option = getopt(argc, argv, "+q:s:")) != -1) {
        if (option == 'q') queues = atoi(optarg);
        if (option == 's') status = atoi(optarg);
    }
    long rounds = atol(argv[optind]), commands = atol(argv[optind + 1]), length_us = atol(argv[optind + 2]);

    xsim_device_t device;
    xsim_queue_t queue[64];
    must(xsim_open(NULL, &device), "open");
    for (int q = 0; q < queues; q++) must(xsim_queue_create(device, &queue[q]), "create");
    for (long round = 0; round < rounds; round++) {
        for (long n = 0; n < commands; n++) {
            errno = EXDEV;
            must(xsim_launch(queue[n % queues], length_us * 1000), "launch");
            if (errno != EXDEV) {
                fprintf(stderr, "launching changed errno to %d\n", errno);
                return 71;
            }
        }
        for (int q = 0; q < queues; q++) must(xsim_synchronize(queue[q]), "synchronize");
        printf("round %ld\n", round);
        fflush(stdout);
    }
    unsigned long long finished = 0;
    for (int q = 0; q < queues; q++) {
        uint64_t here;
        must(xsim_finished(queue[q], &here), "finished");
        finished += here;
        must(xsim_queue_destroy(queue[q]), "destroy");
    }
    must(xsim_close(device), "close");
    printf("finished %llu\n", finished);
    return status;
}
