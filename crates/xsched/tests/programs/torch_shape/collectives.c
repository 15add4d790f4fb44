/*
 * The threads of collectives: a proxy thread that polls memory, as RCCL's does, and a watchdog that polls the events of the
 * operations, as PyTorch's does. With HAVE_RCCL, also a communicator of one rank.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include "shape.h"

enum { MAX_OPERATIONS = 64 };
static pthread_t proxy, watchdog;
static atomic_int ended, proxied;
static atomic_uint posted;
static hipEvent_t operations[MAX_OPERATIONS];
static int completed[MAX_OPERATIONS];
static unsigned operation_count;
static pthread_mutex_t operations_lock = PTHREAD_MUTEX_INITIALIZER;
static hipStream_t collective_stream;

static void pause_us(long us) {
    const struct timespec pause = {.tv_nsec = us * 1000};
    nanosleep(&pause, NULL);
}

static void *poll_memory(void *unused) {
    unsigned seen = 0;
    (void)unused;
    while (!atomic_load(&ended)) {
        unsigned now = atomic_load(&posted);
        if (now != seen) atomic_fetch_add(&proxied, (int)(now - seen));
        else pause_us(50);
        seen = now;
    }
    return NULL;
}

static void *poll_events(void *unused) {
    (void)unused;
    MUST(hipSetDevice(0));
    while (!atomic_load(&ended)) {
        pthread_mutex_lock(&operations_lock);
        for (unsigned n = 0; n < operation_count; n++) {
            if (completed[n]) continue;
            hipError_t error = hipEventQuery(operations[n]);
            if (error == hipErrorNotReady) (void)hipGetLastError();
            else MUST(error);
            completed[n] = error == hipSuccess;
        }
        pthread_mutex_unlock(&operations_lock);
        pause_us(500);
    }
    return NULL;
}

#ifdef HAVE_RCCL
int ncclCommInitAll(void **, int, const int *);
int ncclAllReduce(const void *, void *, size_t, int, int, void *, hipStream_t);
int ncclCommDestroy(void *);
static void *communicator;
#endif

static void post(void *data) {
    (void)data;
    atomic_fetch_add(&posted, 1);
}

void at_collectives_start(void) {
    collective_stream = c10_stream_from_pool(-1);
    if (pthread_create(&proxy, NULL, poll_memory, NULL) || pthread_create(&watchdog, NULL, poll_events, NULL)) exit(74);
#ifdef HAVE_RCCL
    const int device = 0;
    int status = ncclCommInitAll(&communicator, 1, &device);
    if (status != 0) communicator = NULL;
    (void)hipGetLastError();
    printf("RCCL: %d\n", status);
#endif
}

/* The collective's stream waits for the tensor's, and the tensor's stream for the collective. */
void at_collectives_all_reduce(hipStream_t stream) {
    hipEvent_t ready, done;
    MUST(hipEventCreateWithFlags(&ready, hipEventDisableTiming));
    MUST(hipEventCreateWithFlags(&done, hipEventDisableTiming));
    MUST(hipEventRecord(ready, stream));
    MUST(hipStreamWaitEvent(collective_stream, ready, 0));
#ifdef HAVE_RCCL
    enum { COUNT = 1024, FLOAT = 7, SUM = 0 };
    void *tensor = c10_allocate(COUNT * sizeof(float), stream);
    if (communicator) printf("all reduce: %d\n", ncclAllReduce(tensor, tensor, COUNT, FLOAT, SUM, communicator, collective_stream));
    else vision_spin(20000, collective_stream);
    c10_record_stream(tensor, collective_stream);
    c10_free(tensor);
#else
    vision_spin(20000, collective_stream);
#endif
    MUST(hipLaunchHostFunc(collective_stream, post, NULL));
    MUST(hipEventRecord(done, collective_stream));
    MUST(hipStreamWaitEvent(stream, done, 0));
    pthread_mutex_lock(&operations_lock);
    if (operation_count < MAX_OPERATIONS) operations[operation_count++] = done;
    pthread_mutex_unlock(&operations_lock);
    MUST(hipStreamSynchronize(stream));
    MUST(hipEventDestroy(ready));
}

void at_collectives_end(void) {
    unsigned done = 0;
    MUST(hipStreamSynchronize(collective_stream));
    while (done < operation_count || (unsigned)atomic_load(&proxied) < operation_count) {
        pthread_mutex_lock(&operations_lock);
        done = 0;
        for (unsigned n = 0; n < operation_count; n++) done += completed[n] != 0;
        pthread_mutex_unlock(&operations_lock);
        pause_us(100);
    }
    atomic_store(&ended, 1);
    pthread_join(proxy, NULL);
    pthread_join(watchdog, NULL);
#ifdef HAVE_RCCL
    if (communicator) printf("RCCL destroyed: %d\n", ncclCommDestroy(communicator));
#endif
    printf("collectives: %u of %u, proxied %d\n", done, operation_count, atomic_load(&proxied));
}
