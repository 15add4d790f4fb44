/*
  * Threads that use their default streams and exit. On each line of input, HOW_MANY threads start, and each launches and
  * synchronizes; then the program prints "done". On the next line the threads exit, and it prints "ended".
 *
 *   threads HOW_MANY
 */
#include <pthread.h>
#include "gpu.h"

static CUcontext context;
static CUdeviceptr memory;
static pthread_barrier_t barrier;

static void *work(void *number) {
    uint64_t ns = 500000, count = 1;
    uint32_t delta = 1;
    CUdeviceptr its = memory + 4 * (uintptr_t)number;
    void *parameters[] = {&ns, &its, &its, &delta, &count};
    MUST(cuCtxSetCurrent(context));
    for (int n = 0; n < 10; n++) {
        MUST(cuLaunchKernel_ptsz(add_kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
        if (n % 3 == 2) MUST(cuStreamSynchronize_ptsz(NULL));
    }
    MUST(cuStreamSynchronize_ptsz(CU_STREAM_PER_THREAD));
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 2) return 64;
    unsigned many = (unsigned)atoi(argv[1]), rounds = 0;
    pthread_t threads[32];
    uint32_t sums[32];
    EXPECT(many > 0 && many <= 32);
    context = open_gpu();
    MUST(cuMemAlloc_v2(&memory, sizeof sums));
    MUST(cuMemsetD32_v2(memory, 0, 32));
    EXPECT(pthread_barrier_init(&barrier, NULL, many + 1) == 0);
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF) {
        for (uintptr_t n = 0; n < many; n++) EXPECT(pthread_create(&threads[n], NULL, work, (void *)n) == 0);
        pthread_barrier_wait(&barrier);
        rounds++;
        puts("done");
        fflush(stdout);
        if (getchar() == EOF) break;
        pthread_barrier_wait(&barrier);
        for (unsigned n = 0; n < many; n++) pthread_join(threads[n], NULL);
        MUST(cuMemcpyDtoH_v2(sums, memory, sizeof sums));
        for (unsigned n = 0; n < many; n++) EXPECT(sums[n] == 10 * rounds);
        puts("ended");
        fflush(stdout);
    }
    return 0;
}
