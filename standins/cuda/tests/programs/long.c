/*
  * One long kernel, with data that shows whether it ran correctly.
  *
  *   long KERNEL_MS [exit]    prints "launched", then the milliseconds that it took and the sum, which must be 5
  *
  * With exit, it exits on a line of input, and waits for the kernel again in an exit handler that runs last.
 */
#include <pthread.h>
#include <unistd.h>
#include "gpu.h"

static CUcontext context;
static CUstream stream;

static void *leave(void *nothing) {
    getchar();
    exit(3);
    return nothing;
}

static void at_exit(void) {
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamSynchronize(stream));
    puts("ended at exit");
}

int main(int argc, char **argv) {
    if (argc < 2) return 64;
    uint64_t ms = strtoull(argv[1], NULL, 10);
    CUdeviceptr memory;
    uint32_t sum;
    pthread_t thread;
    int exits = argc > 2;
    /* Exit handlers run in reverse order of registration. */
    if (exits) atexit(at_exit);
    context = open_gpu();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemAlloc_v2(&memory, 64));
    MUST(fill(stream, 1000, memory, 3, 16));
    MUST(cuStreamSynchronize(stream));
    /* By now the scheduler has marked it as the only task, if it is. */
    sleep_until(now_ns() + 200000000);
    uint64_t start = now_ns();
    MUST(add(stream, ms * 1000000, memory, memory, 1, 16));
    MUST(add(stream, 1000, memory, memory, 1, 16));
    puts("launched");
    fflush(stdout);
    if (exits) EXPECT(pthread_create(&thread, NULL, leave, NULL) == 0);
    while (exits) pause();
    MUST(cuStreamSynchronize(stream));
    uint64_t took = (now_ns() - start) / 1000000;
    MUST(cuMemcpyDtoH_v2(&sum, memory + 60, 4));
    printf("%llu %u\n", (unsigned long long)took, sum);
    return 0;
}
