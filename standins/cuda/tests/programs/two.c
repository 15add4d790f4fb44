/*
  * Works on two devices at once, with a thread for each, until killed. On each line of input it prints the time slices of its
  * compute channel groups in microseconds, in the order of the devices.
  *
  *   two KERNEL_US      needs two devices; prints their PCI slots first
 */
#include <pthread.h>
#include "manager.h"
#include "gpu.h"

static uint64_t ns;

static void *work(void *context) {
    MUST(cuCtxSetCurrent(context));
    for (;;) {
        for (int n = 0; n < 4; n++) MUST(spin(NULL, ns));
        MUST(cuCtxSynchronize());
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 2) return 64;
    ns = strtoull(argv[1], NULL, 10) * 1000;
    CUcontext contexts[2];
    uint32_t groups[2];
    int slot[2];
    pthread_t thread;
    contexts[0] = open_gpu();
    groups[0] = seen.group;
    /* Only the first channel group of a device is for compute. */
    seen.groups = 0;
    MUST(cuDevicePrimaryCtxRetain(&contexts[1], 1));
    groups[1] = seen.group;
    for (int n = 0; n < 2; n++) MUST(cuDeviceGetAttribute(&slot[n], 34, n));
    for (int n = 0; n < 2; n++) EXPECT(pthread_create(&thread, NULL, work, contexts[n]) == 0);
    printf("%d %d\n", slot[0], slot[1]);
    fflush(stdout);
    while (getchar() != EOF) {
        for (int n = 0; n < 2; n++) {
            uint64_t us = 0;
            EXPECT_RESULT(0, control(groups[n], 0xa06c0104, &us, 8));
            printf("%llu%c", (unsigned long long)us, n == 0 ? ' ' : '\n');
        }
        fflush(stdout);
    }
    return 0;
}
