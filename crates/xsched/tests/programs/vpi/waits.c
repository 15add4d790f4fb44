/*
 * Streams that wait: one for an event of the other, and that one for a function of the program, which returns only when everything was
 * launched. After each wait follow KERNELS algorithms of 0.2 ms, more than may be in flight.
 *
 *   waits ROUNDS KERNELS [wait]
 */
#include <semaphore.h>

#include "vpi.h"

static void wait_for(void *semaphore) { sem_wait(semaphore); }

int main(int argc, char **argv) {
    if (argc < 3) return 64;
    long rounds = atol(argv[1]), kernels = atol(argv[2]);
    VPIStream first = new_stream(), second = new_stream();
    VPIEvent event = new_event();
    VPIImage image = new_image(200), other = new_image(200);
    sem_t launched;
    sem_init(&launched, 0, 0);
    printf("ready\n");
    fflush(stdout);
    if (argc > 3) getchar();
    for (long round = 0; round < rounds; round++) {
        must(CALL(vpiSubmitHostFunction)(first, wait_for, &launched), "host function");
        for (long n = 0; n < kernels; n++) increment(image, VPI_BACKEND_PVA, first);
        must(CALL(vpiEventRecord)(event, first), "record");
        must(CALL(vpiStreamWaitEvent)(second, event), "wait");
        for (long n = 0; n < kernels; n++) increment(other, VPI_BACKEND_PVA, second);
        sem_post(&launched);
        must(CALL(vpiStreamSync)(second), "synchronize");
        int is_correct = take(image, (float)kernels) && take(other, (float)kernels);
        printf("round %ld: %s\n", round, is_correct ? "correct" : "wrong");
        fflush(stdout);
    }
    return 0;
}
