/*
  * Launches kernels one by one with pauses in between, then waits for them, in each of the ways in which a program can wait. Prints a
  * line for each wait: the way, and the microseconds it took. The results of all kernels are checked.
  *
  *   waits ROUNDS
 */
#include <pthread.h>
#include <stdatomic.h>
#include "gpu.h"

enum { PAUSE_US = 250, KERNEL_NS = 10000 };

static CUcontext context;
static CUstream stream, other;
static CUevent event, begin, end;
static CUdeviceptr memory, host_address;
static volatile uint32_t *host;
static uint32_t value;

static atomic_int was_called;
static void called(void *data) {
    (void)data;
    atomic_store(&was_called, 1);
}

static void pause_us(long us) { sleep_until(now_ns() + (uint64_t)us * 1000); }

static void by_stream(void) { MUST(cuStreamSynchronize(stream)); }
static void by_context(void) { MUST(cuCtxSynchronize()); }
static void by_named_context(void) { MUST(cuCtxSynchronize_v2(context)); }
static void by_event(void) {
    MUST(cuEventRecord(event, stream));
    MUST(cuEventSynchronize(event));
}
static void by_polling_an_event(void) {
    MUST(cuEventRecord(event, stream));
    while (cuEventQuery(event) != 0) pause_us(50);
}
static void by_polling_a_span(void) {
    float ms;
    MUST(cuEventRecord(end, stream));
    while (cuEventElapsedTime(&ms, begin, end) != 0) pause_us(50);
}
static void by_polling_the_stream(void) {
    while (cuStreamQuery(stream) != 0) pause_us(50);
}
static void by_another_stream(void) {
    MUST(cuEventRecord(event, stream));
    MUST(cuStreamWaitEvent(other, event, 0));
    MUST(cuStreamSynchronize(other));
}
static void by_a_host_function(void) {
    atomic_store(&was_called, 0);
    MUST(cuLaunchHostFunc(stream, called, NULL));
    while (!atomic_load(&was_called)) pause_us(50);
}
static void by_a_copy_in_the_stream(void) {
    uint32_t copy = 0;
    MUST(cuMemcpyDtoHAsync_v2(&copy, memory, sizeof copy, stream));
    MUST(cuStreamSynchronize(stream));
    EXPECT(copy == value);
}
static void by_freeing_memory(void) {
    CUdeviceptr more;
    MUST(cuMemAlloc_v2(&more, 4096));
    MUST(cuMemFree_v2(more));
}
static void by_reading_memory(void) {
    /* The library does not see this wait. */
    while (*host != value) pause_us(50);
}
static void *synchronize(void *data) {
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamSynchronize(data));
    return NULL;
}
static void by_another_thread(void) {
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, synchronize, stream) == 0);
    EXPECT(pthread_join(thread, NULL) == 0);
}

static const struct {
    const char *name;
    void (*wait)(void);
} WAYS[] = {
    {"stream", by_stream},
    {"context", by_context},
    {"named-context", by_named_context},
    {"event", by_event},
    {"event-query", by_polling_an_event},
    {"elapsed-time", by_polling_a_span},
    {"stream-query", by_polling_the_stream},
    {"another-stream", by_another_stream},
    {"host-function", by_a_host_function},
    {"copy", by_a_copy_in_the_stream},
    {"free", by_freeing_memory},
    {"another-thread", by_another_thread},
    {"memory", by_reading_memory},
};

int main(int argc, char **argv) {
    /* No two successive stretches have the same length: the end of one is not foreseen. */
    static const int LAUNCHES[] = {10, 14, 20, 28};
    void *pinned;
    if (argc < 2) return 64;
    context = open_gpu();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    MUST(cuEventCreate(&begin, 0));
    MUST(cuEventCreate(&end, 0));
    MUST(cuEventRecord(begin, stream));
    MUST(cuMemAlloc_v2(&memory, 4096));
    MUST(cuMemHostAlloc(&pinned, 4096, 2));
    MUST(cuMemHostGetDevicePointer_v2(&host_address, pinned, 0));
    host = pinned;
    for (long round = 0, stretch = 0; round < atol(argv[1]); round++) {
        for (size_t way = 0; way < sizeof WAYS / sizeof *WAYS; way++, stretch++) {
            int launches = LAUNCHES[stretch % 4];
            for (int launch = 0; launch < launches; launch++) {
                value++;
                MUST(fill(stream, KERNEL_NS, launch + 1 < launches ? memory : host_address, value, 1));
                if (launch + 1 < launches) pause_us(PAUSE_US);
            }
            /* The last launch of all wrote to the host's memory; the copy reads the device's. */
            value++;
            MUST(fill(stream, KERNEL_NS, memory, value, 1));
            MUST(add(stream, KERNEL_NS, host_address, memory, 0, 1));
            uint64_t begun = now_ns();
            WAYS[way].wait();
            printf("%s %llu\n", WAYS[way].name, (unsigned long long)(now_ns() - begun) / 1000);
            fflush(stdout);
            MUST(cuStreamSynchronize(stream));
            EXPECT(*host == value);
        }
    }
    puts("done");
    return 0;
}
