/* The behaviour of any CUDA driver, stand-in or real: order, asynchrony, synchronization, capture, errors. */
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>
#include "gpu.h"

enum { MS = 1000000, COUNT = 64 };

static uint32_t at(CUdeviceptr memory, int index) {
    uint32_t value[COUNT];
    MUST(cuMemcpyDtoH_v2(value, memory, sizeof value));
    return value[index];
}

static CUdeviceptr words(void) {
    CUdeviceptr memory;
    MUST(cuMemAlloc_v2(&memory, COUNT * 4));
    MUST(cuMemsetD32_v2(memory, 0, COUNT));
    return memory;
}

/* A launch returns long before the kernel completes, and synchronizing takes as long as the kernels. */
static void asynchrony(void) {
    CUstream stream;
    CUdeviceptr memory = words();
    MUST(cuStreamCreate(&stream, 0));
    uint64_t begin = now_ns();
    for (int n = 0; n < 10; n++) MUST(fill(stream, 5 * MS, memory, n, COUNT));
    uint64_t launched = now_ns();
    EXPECT_RESULT(600, cuStreamQuery(stream));
    MUST(cuStreamSynchronize(stream));
    uint64_t ended = now_ns();
    MUST(cuStreamQuery(stream));
    EXPECT(ended - begin >= 50 * MS);
    EXPECT((launched - begin) * 2 < ended - begin);
    EXPECT(at(memory, 0) == 9);
    MUST(cuMemFree_v2(memory));
    MUST(cuStreamDestroy_v2(stream));
}

/* Arguments are copied when a kernel is launched. */
static void arguments_are_copied(void) {
    CUdeviceptr memory = words(), to = memory;
    uint64_t ns = 10 * MS, count = COUNT;
    uint32_t value = 7;
    void *parameters[] = {&ns, &to, &value, &count};
    MUST(cuLaunchKernel(fill_kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    value = 8, to = 0, count = 0;
    EXPECT(at(memory, COUNT - 1) == 7);
    CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, NULL, NULL, 0};
    to = memory, count = COUNT;
    MUST(cuLaunchKernelEx(&config, fill_kernel, parameters, NULL));
    EXPECT(at(memory, 0) == 8);
    value = 9;
    MUST(cuLaunchCooperativeKernel(fill_kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters));
    EXPECT(at(memory, 0) == 9);
    MUST(cuMemFree_v2(memory));
}

/* An event makes a stream wait for another stream; the legacy default stream waits for all blocking streams. */
static void streams_and_events(void) {
    CUstream first, second, apart;
    CUevent event, begin, end;
    CUdeviceptr memory = words(), result = words();
    float ms;
    MUST(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    MUST(cuEventCreate(&begin, 0));
    MUST(cuEventCreate(&end, 0));
    MUST(cuEventQuery(event));
    MUST(cuEventRecord(begin, first));
    MUST(fill(first, 20 * MS, memory, 5, COUNT));
    MUST(cuEventRecord(event, first));
    EXPECT_RESULT(600, cuEventQuery(event));
    MUST(cuStreamWaitEvent(second, event, 0));
    MUST(add(second, 0, result, memory, 1, COUNT));
    MUST(cuEventRecord(end, second));
    MUST(cuEventSynchronize(end));
    MUST(cuEventElapsedTime(&ms, begin, end));
    EXPECT(ms >= 20);
    EXPECT(at(result, 3) == 6);

    CUstream blocking;
    MUST(cuStreamCreate(&blocking, 0));
    MUST(fill(blocking, 20 * MS, memory, 50, COUNT));
    MUST(add(NULL, 0, result, memory, 1, COUNT));
    MUST(add(blocking, 0, memory, result, 1, COUNT));
    MUST(cuStreamSynchronize(blocking));
    EXPECT(at(memory, 0) == 52);

    void *flag;
    CUdeviceptr word;
    MUST(cuStreamCreate(&apart, CU_STREAM_NON_BLOCKING));
    MUST(cuMemHostAlloc(&flag, 64, 0));
    memset(flag, 0, 64);
    MUST(cuMemHostGetDevicePointer_v2(&word, flag, 0));
    MUST(cuStreamWaitValue32_v2(apart, word, 1, CU_STREAM_WAIT_VALUE_EQ));
    MUST(fill(apart, 0, memory, 77, COUNT));
    MUST(fill(NULL, 0, result, 3, COUNT));
    EXPECT(at(result, 0) == 3);
    EXPECT_RESULT(600, cuStreamQuery(apart));
    EXPECT(at(memory, 0) == 52);
    *(volatile uint32_t *)flag = 1;
    MUST(cuStreamSynchronize(apart));
    EXPECT(at(memory, 0) == 77);

    /* The thread's default stream does not wait for a stalled blocking stream, the legacy default stream does. */
    MUST(cuStreamWaitValue32_v2(blocking, word, 2, CU_STREAM_WAIT_VALUE_GEQ));
    MUST(fill(blocking, 0, memory, 78, COUNT));
    uint64_t ns = 0, count = COUNT;
    uint32_t value = 4;
    void *parameters[] = {&ns, &result, &value, &count};
    MUST(cuLaunchKernel_ptsz(fill_kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    MUST(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    EXPECT(*(volatile uint32_t *)flag == 1);
    MUST(fill(CU_STREAM_LEGACY, 0, result, 5, COUNT));
    EXPECT_RESULT(600, cuStreamQuery(NULL));
    *(volatile uint32_t *)flag = 2;
    MUST(cuStreamWriteValue32_v2(NULL, word, 3, 0));
    MUST(cuStreamSynchronize(NULL));
    EXPECT(*(volatile uint32_t *)flag == 3 && at(result, 0) == 5 && at(memory, 0) == 78);
    MUST(cuMemFreeHost(flag));
    MUST(cuStreamDestroy_v2(first));
    MUST(cuStreamDestroy_v2(second));
    MUST(cuStreamDestroy_v2(apart));
    MUST(cuStreamDestroy_v2(blocking));
    MUST(cuEventDestroy_v2(event));
}

static void set(void *flag) { *(volatile int *)flag = 1; }

/* A host function runs in stream order. */
static void host_functions(void) {
    volatile int called = 0;
    CUstream stream;
    CUdeviceptr memory = words();
    MUST(cuStreamCreate(&stream, 0));
    MUST(spin(stream, 20 * MS));
    MUST(cuLaunchHostFunc(stream, set, (void *)&called));
    MUST(fill(stream, 0, memory, 1, COUNT));
    EXPECT(!called);
    MUST(cuStreamSynchronize(stream));
    EXPECT(called);
    MUST(cuStreamDestroy_v2(stream));
    MUST(cuMemFree_v2(memory));
}

struct query { CUcontext context; CUevent event; int relaxed, result; };

static void *query_event(void *argument) {
    struct query *query = argument;
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    MUST(cuCtxSetCurrent(query->context));
    if (query->relaxed) MUST(cuThreadExchangeStreamCaptureMode(&mode));
    query->result = cuEventQuery(query->event);
    return NULL;
}

static int query_in_thread(CUevent event, int relaxed) {
    struct query query = {.event = event, .relaxed = relaxed};
    pthread_t thread;
    MUST(cuCtxGetCurrent(&query.context));
    pthread_create(&thread, NULL, query_event, &query);
    pthread_join(thread, NULL);
    return query.result;
}

/* Captured work does not run, and the resulting graph runs each time it is launched. */
static void capture(void) {
    CUstream stream, other;
    CUevent fork, join;
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr memory = words();
    int status;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    MUST(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    MUST(cuStreamIsCapturing(stream, &status));
    EXPECT(status == 1);
    MUST(add(stream, MS, memory, memory, 1, COUNT));
    MUST(cuEventRecord(fork, stream));
    MUST(cuStreamWaitEvent(other, fork, 0));
    MUST(add(other, MS, memory, memory, 10, COUNT));
    MUST(cuEventRecord(join, other));
    MUST(cuStreamWaitEvent(stream, join, 0));
    MUST(add(stream, MS, memory, memory, 100, COUNT));
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuStreamSynchronize(stream));
    EXPECT(at(memory, 0) == 0);
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int n = 0; n < 3; n++) MUST(cuGraphLaunch(exec, stream));
    MUST(add(stream, 0, memory, memory, 1000, COUNT));
    MUST(cuStreamSynchronize(stream));
    EXPECT(at(memory, COUNT - 1) == 1333);
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));

    /* A call that a capture forbids invalidates it. */
    MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT_RESULT(900, cuStreamSynchronize(stream));
    EXPECT_RESULT(901, cuStreamEndCapture(stream, &graph));
    MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    MUST(cuEventRecord(fork, stream));
    MUST(cuStreamWaitEvent(other, fork, 0));
    MUST(add(other, 0, memory, memory, 1, COUNT));
    EXPECT_RESULT(904, cuStreamEndCapture(stream, &graph));
    /* In global mode other threads may not query an event either, unless they switch to relaxed mode. */
    MUST(cuEventRecord(join, other));
    MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT(query_in_thread(join, 0) == 900);
    EXPECT_RESULT(901, cuStreamEndCapture(stream, &graph));
    MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT(query_in_thread(join, 1) != 900);
    MUST(cuStreamEndCapture(stream, &graph));
    CUstream blocking;
    MUST(cuStreamCreate(&blocking, 0));
    MUST(cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT_RESULT(906, spin(NULL, 0));
    EXPECT_RESULT(901, cuStreamEndCapture(blocking, &graph));
    EXPECT_RESULT(900, cuStreamBeginCapture_v2(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL));
    MUST(spin(NULL, 0));
    MUST(cuStreamDestroy_v2(blocking));
    MUST(cuStreamDestroy_v2(stream));
    MUST(cuStreamDestroy_v2(other));
    MUST(cuMemFree_v2(memory));
}

struct flood { CUcontext context; CUstream stream; CUdeviceptr memory; volatile int launched; };

static void *pour(void *into) {
    struct flood *flood = into;
    MUST(cuCtxSetCurrent(flood->context));
    for (int n = 0; n < 5000; n++) {
        MUST(add(flood->stream, 1000, flood->memory, flood->memory, 1, COUNT));
        flood->launched++;
    }
    return NULL;
}

/* A stream has a limited capacity: when it is full, a launch blocks until there is room. */
static void full_queue(void) {
    struct flood flood = {.memory = words()};
    void *flag;
    CUdeviceptr word;
    pthread_t thread;
    MUST(cuCtxGetCurrent(&flood.context));
    MUST(cuStreamCreate(&flood.stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemHostAlloc(&flag, 64, 0));
    memset(flag, 0, 64);
    MUST(cuMemHostGetDevicePointer_v2(&word, flag, 0));
    MUST(cuStreamWaitValue32_v2(flood.stream, word, 1, CU_STREAM_WAIT_VALUE_EQ));
    pthread_create(&thread, NULL, pour, &flood);
    /* The stream is full when the thread has launched something and then nothing more for 50 ms. */
    for (int before = -1; before == 0 || before != flood.launched;) {
        before = flood.launched;
        sleep_until(now_ns() + 50 * MS);
    }
    EXPECT(flood.launched > 0 && flood.launched < 5000);
    *(volatile uint32_t *)flag = 1;
    pthread_join(thread, NULL);
    MUST(cuStreamSynchronize(flood.stream));
    EXPECT(at(flood.memory, 9) == 5000);
    MUST(cuMemFreeHost(flag));
    MUST(cuMemFree_v2(flood.memory));
    MUST(cuStreamDestroy_v2(flood.stream));
}

#ifndef REACH
typedef CUresult (*Launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);

/* cuGetProcAddress: a name means the form of the CUDA version that a program was built for. */
static void look_up(void) {
    void *found, *other;
    int status;
    MUST(cuGetProcAddress_v2("cuLaunchKernel", &found, 12000, 0, &status));
    EXPECT(found == dlsym(RTLD_DEFAULT, "cuLaunchKernel") && status == 0);
    MUST(cuGetProcAddress_v2("cuLaunchKernel", &found, 12000, 2, &status));
    EXPECT(found == dlsym(RTLD_DEFAULT, "cuLaunchKernel_ptsz"));
    MUST(cuGetProcAddress_v2("cuMemAlloc", &found, 12000, 2, &status));
    EXPECT(found == dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
    MUST(cuGetProcAddress_v2("cuStreamWaitValue32", &found, 11000, 0, &status));
    MUST(cuGetProcAddress_v2("cuStreamWaitValue32", &other, 12000, 0, &status));
    EXPECT(found == dlsym(RTLD_DEFAULT, "cuStreamWaitValue32") && other == dlsym(RTLD_DEFAULT, "cuStreamWaitValue32_v2"));
    MUST(cuGetProcAddress_v2("cuNoSuchFunction", &found, 12000, 0, &status));
    EXPECT(found == NULL && status == 1);
    MUST(cuGetProcAddress_v2("cuMemAlloc_v2", &found, 12000, 0, &status));
    EXPECT(found == NULL && status == 1);
    MUST(cuGetProcAddress_v2("cuLaunchKernelEx", &found, 10000, 0, &status));
    EXPECT(found == NULL && status == 2);
    Launch launch;
    uint64_t ns = 0;
    void *parameters[] = {&ns};
    MUST(cuGetProcAddress_v2("cuLaunchKernel", (void **)&launch, 12000, 2, &status));
    MUST(launch(spin_kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    const char *text;
    MUST(cuGetErrorName(600, &text));
    EXPECT(strcmp(text, "CUDA_ERROR_NOT_READY") == 0);
}

#else
/* Nothing to compare with: the program is not linked to the driver. */
static void look_up(void) {}
#endif

/* Kernels on a stream of high priority run before waiting kernels on other streams. */
static void priorities(void) {
    CUstream low, high;
    MUST(cuStreamCreateWithPriority(&low, CU_STREAM_NON_BLOCKING, 0));
    MUST(cuStreamCreateWithPriority(&high, CU_STREAM_NON_BLOCKING, -5));
    for (int n = 0; n < 10; n++) MUST(spin(low, 20 * MS));
    MUST(spin(high, 5 * MS));
    MUST(cuStreamSynchronize(high));
    EXPECT_RESULT(600, cuStreamQuery(low));
    MUST(cuStreamDestroy_v2(low));
    MUST(cuStreamDestroy_v2(high));
    MUST(cuCtxSynchronize());
}

static void errors(void) {
    CUcontext context, popped;
    CUstream stream;
    uint64_t ns = 0;
    void *parameters[] = {&ns};
    int value;
    EXPECT_RESULT(101, cuDeviceGetAttribute(&value, 34, 99));
    EXPECT_RESULT(1, cuLaunchKernel(spin_kernel, 0, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    MUST(cuCtxPopCurrent_v2(&context));
    EXPECT_RESULT(201, cuStreamCreate(&stream, 0));
    EXPECT_RESULT(201, cuLaunchKernel(spin_kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    MUST(cuCtxPushCurrent_v2(context));
    MUST(cuCtxGetCurrent(&popped));
    EXPECT(popped == context);
    uint32_t memory[16];
    MUST(cuMemHostRegister_v2(memory, sizeof memory, 0));
    EXPECT_RESULT(712, cuMemHostRegister_v2(memory, sizeof memory, 0));
    MUST(cuMemHostUnregister(memory));
    EXPECT_RESULT(713, cuMemHostUnregister(memory));
}

/* A kernel with an invalid address makes its context fail. */
static void fault(void) {
    MUST(fill(NULL, 0, 64, 1, 16));
    EXPECT_RESULT(700, cuCtxSynchronize());
    EXPECT_RESULT(700, spin(NULL, 0));
}

int main(int argc, char **argv) {
    static const struct { const char *name; void (*run)(void); } ALL[] = {
        {"asynchrony", asynchrony}, {"arguments", arguments_are_copied}, {"streams", streams_and_events},
        {"host", host_functions}, {"capture", capture}, {"full", full_queue}, {"look_up", look_up},
        {"priorities", priorities}, {"errors", errors}, {"fault", fault},
    };
    open_gpu();
    for (size_t n = 0; n < sizeof ALL / sizeof *ALL; n++) {
        if (argc > 1 && strcmp(argv[1], ALL[n].name) != 0) continue;
        ALL[n].run();
        printf("%s\n", ALL[n].name);
        fflush(stdout);
    }
    return 0;
}
