/* A program without XSched code: it launches work on an accelerator, here the simulated one, and waits for it. */
#include <stdio.h>
#include <stdlib.h>

#include "xsim.h"

int main(int argc, char **argv) {
    int commands = argc > 1 ? atoi(argv[1]) : 100;
    xsim_device_t device;
    xsim_queue_t queue;
    uint64_t finished = 0;
    if (xsim_open(NULL, &device) != XSIM_SUCCESS || xsim_queue_create(device, &queue) != XSIM_SUCCESS) {
        fprintf(stderr, "no device: %s\n", xsim_last_error());
        return 1;
    }
    for (int n = 0; n < commands; n++) xsim_launch(queue, 200 * 1000);
    xsim_synchronize(queue);
    xsim_finished(queue, &finished);
    printf("%llu of %d commands done\n", (unsigned long long)finished, commands);
    xsim_queue_destroy(queue);
    xsim_close(device);
    return 0;
}
