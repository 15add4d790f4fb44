/* Launches commands on two queues of the simulated device. The result is how many have completed. */
#include "rounds.h"
#include "xsim.h"

int main(int argc, char **argv) {
    struct options with = options(argc, argv);
    xsim_device_t device;
    xsim_queue_t queues[2];
    uint32_t round = 0;
    uint64_t completed[2];
    must(xsim_open(NULL, &device), "open");
    for (int q = 0; q < 2; q++) must(xsim_queue_create(device, &queues[q]), "create a queue");
    do {
        round++;
        for (uint32_t k = 0; k < with.kernels; k++) must(xsim_launch(queues[k % 2], with.kernel_ns), "launch");
        for (int q = 0; q < 2; q++) {
            must(xsim_synchronize(queues[q]), "synchronize");
            must(xsim_finished(queues[q], &completed[q]), "count");
        }
    } while (end_round(round, (uint32_t)(completed[0] + completed[1]), with.pause_us));
    for (int q = 0; q < 2; q++) must(xsim_queue_destroy(queues[q]), "destroy a queue");
    must(xsim_close(device), "close");
    return 0;
}
