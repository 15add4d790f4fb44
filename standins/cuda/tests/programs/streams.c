/*
 * Several streams in one program.
 *
  *   streams order              kernels on a stream of low and then on one of high priority: prints the order of completion
  *   streams pair KERNEL_US     two threads with a stream each, until killed: each prints "a" or "b" and the number of its round
  *   streams server KERNEL_US   a stream with requests and pauses, beside one without pauses: prints the us that each took
 */
#include <pthread.h>
#include "gpu.h"

enum { EACH = 8 };

static void order(void) {
    CUstream stream[2];
    CUevent begin, end[2 * EACH];
    float ms[2 * EACH];
    char order_text[2 * EACH + 1];
    MUST(cuStreamCreateWithPriority(&stream[0], CU_STREAM_NON_BLOCKING, 0));
    MUST(cuStreamCreateWithPriority(&stream[1], CU_STREAM_NON_BLOCKING, -5));
    MUST(cuEventCreate(&begin, 0));
    MUST(cuEventRecord(begin, stream[0]));
    for (int n = 0; n < 2 * EACH; n++) {
        MUST(cuEventCreate(&end[n], 0));
        /* The first kernel has started before the others are launched, and runs until all of them are launched. */
        MUST(spin(stream[n / EACH], n == 0 ? 100000000 : 2000000));
        MUST(cuEventRecord(end[n], stream[n / EACH]));
        if (n == 0) sleep_until(now_ns() + 20000000);
    }
    MUST(cuCtxSynchronize());
    for (int n = 0; n < 2 * EACH; n++) MUST(cuEventElapsedTime(&ms[n], begin, end[n]));
    for (int n = 0; n < 2 * EACH; n++) {
        int place = 0;
        for (int other = 0; other < 2 * EACH; other++) place += ms[other] < ms[n] || (ms[other] == ms[n] && other < n);
        order_text[place] = n < EACH ? 'l' : 'h';
    }
    order_text[2 * EACH] = 0;
    puts(order_text);
}

static CUcontext context;
static uint64_t ns;

static void *rounds(void *name) {
    CUstream stream;
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (long round = 1;; round++) {
        for (int n = 0; n < (name == NULL ? 24 : 4); n++) MUST(spin(stream, ns));
        MUST(cuStreamSynchronize(stream));
        if (name == NULL) continue;
        printf("%s %ld\n", (const char *)name, round);
        fflush(stdout);
    }
    return NULL;
}

/* Requests of eight kernels, with pauses of the same length. The first one completes before the second stream exists. */
static void server(void) {
    CUstream stream;
    pthread_t other;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (long request = 0;; request++) {
        uint64_t begin = now_ns();
        for (int n = 0; n < 8; n++) MUST(spin(stream, ns));
        MUST(cuStreamSynchronize(stream));
        printf("%lu\n", (unsigned long)((now_ns() - begin) / 1000));
        fflush(stdout);
        if (request == 0) EXPECT(pthread_create(&other, NULL, rounds, NULL) == 0);
        sleep_until(now_ns() + 8 * ns);
    }
}

int main(int argc, char **argv) {
    if (argc < 2) return 64;
    context = open_gpu();
    if (strcmp(argv[1], "order") == 0) {
        order();
        return 0;
    }
    ns = strtoull(argv[2], NULL, 10) * 1000;
    if (strcmp(argv[1], "server") == 0) server();
    pthread_t a, b;
    EXPECT(pthread_create(&a, NULL, rounds, "a") == 0);
    EXPECT(pthread_create(&b, NULL, rounds, "b") == 0);
    pthread_join(a, NULL);
    return 0;
}
