/*
 * Uses HIP, as a program, or as a library opened with RTLD_LOCAL, as Python opens its modules:
 *
 *   forms                                          launches in every form; prints how many arrived
 *   work ROUNDS COMMANDS LENGTH_US [DEVICE]        launches and waits in rounds
 *   requests COUNT COMMANDS LENGTH_US PERIOD_MS    prints the latency of each request in microseconds, then waits for input
 *   cost BATCHES                                   nanoseconds for one launch of an empty kernel, the best of so many batches
 *   errors                                         prints the last error after valid and invalid calls
 *   own [DEVICE]                                   launches on both default streams, and waits for input, not for the device
 *   churn STREAMS                                  creates, uses and destroys streams, one at a time
 *   resets ROUNDS COMMANDS LENGTH_US               runs commands, and resets the device
 *   memory [OPERATION]                             copies and fills once and prints the data, or one operation in rounds
 *   tensors                                        random numbers, a matrix product and a new stream, as in PyTorch
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "hip.h"

static char spin, increment, fill, add, nothing, stranger;
static const dim3 one = {1, 1, 1};

static void must(hipError_t error, const char *what) {
    if (error != 0) {
        printf("%s: error %d\n", what, error);
        exit(70);
    }
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void launch_spin(uint64_t ns, hipStream_t stream) {
    void *args[] = {&ns};
    must(hipLaunchKernel(&spin, one, one, args, 0, stream), "launch");
}

static int forms(void) {
    int devices = 0;
    uint64_t *counter, zero = 0, counted = 0;
    must(hipGetDeviceCount(&devices), "count");
    must(hipMalloc((void **)&counter, 8), "malloc");
    must(hipMemcpy(counter, &zero, 8, 1), "copy");
    hipStream_t plain, flagged, important, masked;
    uint32_t mask = 1;
    must(hipStreamCreate(&plain), "create");
    must(hipStreamCreateWithFlags(&flagged, 1), "create");
    must(hipStreamCreateWithPriority(&important, 1, -1), "create");
    must(hipExtStreamCreateWithCUMask(&masked, 1, &mask), "create");
    hipModule_t module;
    hipFunction_t function;
    must(hipModuleLoadData(&module, &module), "load");
    must(hipModuleGetFunction(&function, module, "increment"), "function");
    void *args[] = {&counter};
    hipStream_t streams[] = {NULL, plain, flagged, important, masked, (hipStream_t)1, (hipStream_t)2};
    int launched = 0;
    for (size_t n = 0; n < sizeof streams / sizeof *streams; n++) {
        hipStream_t s = streams[n];
        hipLaunchConfig_t config = {one, one, 0, s, NULL, 0};
        must(hipLaunchKernel(&increment, one, one, args, 0, s), "hipLaunchKernel");
        must(hipLaunchKernel_spt(&increment, one, one, args, 0, s), "hipLaunchKernel_spt");
        must(hipExtLaunchKernel(&increment, one, one, args, 0, s, NULL, NULL, 0), "hipExtLaunchKernel");
        must(hipLaunchCooperativeKernel(&increment, one, one, args, 0, s), "hipLaunchCooperativeKernel");
        must(hipLaunchCooperativeKernel_spt(&increment, one, one, args, 0, s), "hipLaunchCooperativeKernel_spt");
        must(hipLaunchKernelExC(&config, &increment, args), "hipLaunchKernelExC");
        must(hipModuleLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, s, args, NULL), "hipModuleLaunchKernel");
        must(hipModuleLaunchCooperativeKernel(function, 1, 1, 1, 1, 1, 1, 0, s, args), "hipModuleLaunchCooperativeKernel");
        must(hipExtModuleLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, s, args, NULL, NULL, NULL, 0), "hipExtModuleLaunchKernel");
        must(hipHccModuleLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, s, args, NULL, NULL, NULL), "hipHccModuleLaunchKernel");
        must(MANGLED(function, 1, 1, 1, 1, 1, 1, 0, s, args, NULL, NULL, NULL, 0), "hipExtModuleLaunchKernel, mangled");
        must(hipConfigureCall(one, one, 0, s), "hipConfigureCall");
        must(hipSetupArgument(&counter, 8, 0), "hipSetupArgument");
        must(hipLaunchByPtr(&increment), "hipLaunchByPtr");
        launched += 12;
    }
    hipLaunchParams several[2] = {{&increment, one, one, args, 0, plain}, {&increment, one, one, args, 0, flagged}};
    if (devices > 1) {
        must(hipSetDevice(1), "device");
        must(hipStreamCreate(&several[1].stream), "create");
        must(hipSetDevice(0), "device");
    }
    must(hipLaunchCooperativeKernelMultiDevice(several, 2, 0), "hipLaunchCooperativeKernelMultiDevice");
    must(hipExtLaunchMultiKernelMultiDevice(several, 2, 0), "hipExtLaunchMultiKernelMultiDevice");
    launched += 4;

    hipGraph_t graph;
    void *executable;
    size_t nodes = 0;
    must(hipStreamBeginCapture(plain, 0), "begin");
    for (int n = 0; n < 5; n++) {
        /* This device runs captured work at once; the graph itself does nothing. */
        must(hipLaunchKernel(&increment, one, one, args, 0, plain), "captured");
        must(hipLaunchKernel(&increment, one, one, args, 0, flagged), "beside it");
    }
    must(hipStreamEndCapture(plain, &graph), "end");
    launched += 10;
    must(hipGraphGetNodes(graph, NULL, &nodes), "nodes");
    must(hipGraphInstantiate(&executable, graph, NULL, NULL, 0), "instantiate");
    must(hipGraphLaunch(executable, plain), "graph");
    must(hipGraphLaunch_spt(executable, NULL), "graph");

    for (size_t n = 0; n < sizeof streams / sizeof *streams; n++) must(hipStreamSynchronize(streams[n]), "synchronize");
    must(hipStreamSynchronize_spt(NULL), "synchronize");
    must(hipMemcpy(&counted, counter, 8, 2), "copy");
    int priority = 0;
    must(hipStreamGetPriority(important, &priority), "priority");
    for (size_t n = 1; n < 5; n++) must(hipStreamDestroy(streams[n]), "destroy");
    printf("%d launched, %llu arrived, %zu nodes, priority %d, last error %d\n", launched, (unsigned long long)counted, nodes, priority, hipGetLastError());
    return 0;
}

static int work(long rounds, long commands, long length_us, int device) {
    hipStream_t streams[3] = {NULL};
    must(hipSetDevice(device), "device");
    must(hipStreamCreate(&streams[1]), "create");
    must(hipStreamCreate(&streams[2]), "create");
    for (long round = 0; round < rounds; round++) {
        for (long n = 0; n < commands; n++) launch_spin((uint64_t)length_us * 1000, streams[n % 3]);
        for (int n = 0; n < 3; n++) must(hipStreamSynchronize(streams[n]), "synchronize");
        printf("round %ld\n", round);
        fflush(stdout);
    }
    return 0;
}

static int requests(long count, long commands, long length_us, long period_ms) {
    uint64_t next = now_ns();
    for (long request = 0; request < count; request++) {
        uint64_t arrived = now_ns();
        for (long n = 0; n < commands; n++) launch_spin((uint64_t)length_us * 1000, NULL);
        must(hipStreamSynchronize(NULL), "synchronize");
        printf("%llu\n", (unsigned long long)(now_ns() - arrived) / 1000);
        fflush(stdout);
        next += (uint64_t)period_ms * 1000000;
        if (next < now_ns()) next = now_ns();
        struct timespec when = {.tv_sec = (time_t)(next / 1000000000), .tv_nsec = (long)(next % 1000000000)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) != 0) {
        }
    }
    printf("idle\n");
    fflush(stdout);
    getchar();
    return 0;
}

/* Reads results back: at once, and after a pause. */
static int reads(long commands, long length_us, long pause_us) {
    uint64_t *counter, counted = 0;
    void *args[] = {&counter};
    must(hipMalloc((void **)&counter, sizeof *counter), "malloc");
    must(hipMemcpy(counter, &counted, sizeof counted, 1), "copy");
    for (uint64_t round = 1;; round++) {
        for (long n = 0; n < commands; n++) launch_spin((uint64_t)length_us * 1000, NULL);
        must(hipLaunchKernel(&increment, one, one, args, 0, NULL), "launch");
        for (int time = 0; time < 2; time++) {
            must(hipMemcpy(&counted, counter, sizeof counted, 2), "copy");
            if (counted != round) return 70;
            struct timespec pause = {.tv_nsec = pause_us * 1000};
            nanosleep(&pause, NULL);
        }
        printf("round %llu\n", (unsigned long long)round);
    }
}

static int cost(long batches) {
    uint64_t best[2] = {UINT64_MAX, UINT64_MAX};
    hipStream_t streams[2] = {NULL};
    must(hipStreamCreate(&streams[1]), "create");
    for (long batch = 0; batch < batches; batch++) {
        for (int s = 0; s < 2; s++) {
            uint64_t begin = now_ns();
            for (int n = 0; n < 1000; n++) hipLaunchKernel(&nothing, one, one, NULL, 0, streams[s]);
            uint64_t took = now_ns() - begin;
            if (took < best[s]) best[s] = took;
        }
    }
    printf("%.1f %.1f\n", (double)best[0] / 1000, (double)best[1] / 1000);
    return 0;
}

static int errors(void) {
    hipStream_t stream;
    uint64_t none = 0;
    void *args[] = {&none};
    must(hipStreamCreate(&stream), "create");
    for (int n = 0; n < 200; n++) launch_spin(20000, stream);
    printf("after launches: %d\n", hipPeekAtLastError());
    int code = hipLaunchKernel(&stranger, one, one, args, 0, stream);
    printf("an unregistered function: %d, last error %d\n", code, hipGetLastError());
    code = hipLaunchKernel(&spin, one, one, args, 0, (hipStream_t)&stranger);
    printf("an invalid stream: %d, last error %d\n", code, hipGetLastError());
    code = hipLaunchKernel(&stranger, one, one, args, 0, NULL);
    printf("once more, on the default stream: %d, last error %d\n", code, hipGetLastError());
    code = hipSetDevice(77);
    for (int n = 0; n < 200; n++) launch_spin(20000, stream);
    printf("an error before launches: %d, last error %d\n", code, hipPeekAtLastError());
    must(hipStreamSynchronize(stream), "synchronize");
    must(hipStreamDestroy(stream), "destroy");
    return 0;
}

/* The arguments of the launch are invalid after it returns. */
static hipError_t launch_fill(float *to, float value, uint64_t count, hipStream_t stream) {
    void *args[] = {&to, &value, &count};
    return hipLaunchKernel(&fill, one, one, args, 0, stream);
}

static hipError_t launch_add(float *to, float *from, uint64_t count, hipStream_t stream) {
    void *args[] = {&to, &from, &count};
    return hipLaunchKernel(&add, one, one, args, 0, stream);
}

__attribute__((noinline)) static void overwrite_stack(void) {
    volatile char bytes[4096];
    memset((char *)bytes, 0x55, sizeof bytes);
}

static int tensors(void) {
    enum { COUNT = 1000 };
    float *a, *b, result[COUNT];
    hipStream_t stream;
    must(hipMalloc((void **)&a, sizeof result), "malloc");
    must(hipMalloc((void **)&b, sizeof result), "malloc");
    int code = launch_fill(a, 1, COUNT, NULL);
    overwrite_stack();
    printf("randn: %d\n", code);
    /* Like rocBLAS: launches a module's function, and fails if the last error is set. */
    hipModule_t module = NULL;
    hipFunction_t function = NULL;
    code = hipModuleLoadData(&module, &module);
    if (code == 0) code = hipModuleGetFunction(&function, module, "gemm");
    if (code == 0) code = hipGetLastError();
    if (code == 0) code = hipExtModuleLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL, NULL, NULL, 0);
    printf("matmul: %d\n", code);
    code = launch_fill(b, 0, COUNT, NULL);
    overwrite_stack();
    if (code == 0) code = hipDeviceSynchronize();
    if (code == 0) code = hipGetLastError();
    printf("conv: %d\n", code);
    code = hipStreamCreateWithFlags(&stream, 1);
    if (code == 0) code = hipStreamSynchronize(stream);
    printf("stream: %d\n", code);
    if (code == 0) code = launch_fill(b, 2, COUNT, stream);
    overwrite_stack();
    code = hipDeviceSynchronize();
    if (code == 0) code = launch_add(a, b, COUNT, NULL);
    overwrite_stack();
    if (code == 0) code = hipDeviceSynchronize();
    int wrong = 0;
    if (code == 0) code = hipMemcpy(result, a, sizeof result, 2);
    for (int n = 0; n < COUNT; n++) wrong += result[n] != 3;
    printf("sum: %d, %d wrong\n", code, wrong);
    return 0;
}

static int own(int device) {
    uint64_t ns = 1000000;
    void *args[] = {&ns};
    must(hipSetDevice(device), "device");
    for (int n = 0; n < 5; n++) must(hipLaunchKernel_spt(&spin, one, one, args, 0, NULL), "launch");
    for (int n = 0; n < 5; n++) launch_spin(ns, NULL);
    printf("launched\n");
    getchar();
    return 0;
}

static int churn(long count) {
    for (long n = 0; n < count; n++) {
        hipStream_t stream;
        must(hipStreamCreate(&stream), "create");
        for (int m = 0; m < 3; m++) launch_spin(1000, stream);
        if (n % 2 == 0) must(hipStreamSynchronize(stream), "synchronize");
        must(hipStreamDestroy(stream), "destroy");
    }
    printf("%ld streams, last error %d\n", count, hipGetLastError());
    return 0;
}

static int resets(long rounds, long commands, long length_us) {
    for (long round = 1; round <= rounds; round++) {
        hipStream_t streams[3] = {NULL};
        uint64_t *counter, counted = 0;
        must(hipMalloc((void **)&counter, sizeof *counter), "malloc");
        must(hipMemcpy(counter, &counted, sizeof counted, 1), "copy");
        void *args[] = {&counter};
        for (int n = 1; n < 3; n++) must(hipStreamCreate(&streams[n]), "create");
        for (long n = 0; n < commands; n++) {
            launch_spin((uint64_t)length_us * 1000, streams[n % 3]);
            must(hipLaunchKernel(&increment, one, one, args, 0, streams[n % 3]), "launch");
        }
        for (int n = 0; n < 3; n++) must(hipStreamSynchronize(streams[n]), "synchronize");
        must(hipMemcpy(&counted, counter, sizeof counted, 2), "copy");
        must(hipDeviceReset(), "reset");
        printf("round %ld: %llu, last error %d\n", round, (unsigned long long)counted, hipGetLastError());
    }
    return 0;
}

enum { ROW = 64, ROWS = 4, LARGE = 1 << 20 };

static unsigned sum_of(const unsigned char *bytes, size_t count) {
    unsigned sum = 0;
    for (size_t n = 0; n < count; n++) sum += bytes[n];
    return sum;
}

/* Runs one copy or fill on a stream. The number is printed by `memory`, so that a wrong result shows. */
static void operate(const char *name, unsigned char *a, unsigned char *b, unsigned char *host, hipStream_t stream) {
    hipPitchedPtr pitched = {a, ROW, ROW, ROWS};
    hipExtent extent = {ROW / 2, ROWS / 2, 2};
    int code = -1;
    if (strcmp(name, "memset") == 0) code = hipMemsetAsync(a, 3, ROW, stream);
    if (strcmp(name, "memset-default") == 0) code = hipMemset(a, 5, ROW);
    if (strcmp(name, "memset-32") == 0) code = hipMemsetD32Async(a, 0x01010101, ROW / 4, stream);
    if (strcmp(name, "memset-2d") == 0) code = hipMemset2DAsync(a, ROW, 7, ROW / 2, ROWS, stream);
    if (strcmp(name, "memset-3d") == 0) code = hipMemset3DAsync(pitched, 9, extent, stream);
    if (strcmp(name, "copy-device") == 0) code = hipMemcpyAsync(b, a, ROW * ROWS, 3, stream);
    if (strcmp(name, "copy-driver") == 0) code = hipMemcpyDtoDAsync(b, a, ROW, stream);
    if (strcmp(name, "copy-small") == 0) code = hipMemcpyAsync(host, a, ROW, 2, stream);
    if (strcmp(name, "copy-2d") == 0) code = hipMemcpy2DAsync(b, ROW, a, ROW, ROW / 2, ROWS, 3, stream);
    if (strcmp(name, "copy-wait") == 0) code = hipMemcpyWithStream(host, a, ROW, 2, stream);
    if (strcmp(name, "copy-default") == 0) code = hipMemcpy(host, a, ROW, 2);
    if (strcmp(name, "copy-large") == 0) code = hipMemcpyAsync(host, a, LARGE, 2, stream);
    must(code, name);
}

static int memory(const char *operation) {
    static const char *const ALL[] = {"memset", "memset-default", "memset-32", "memset-2d", "memset-3d", "copy-device",
        "copy-driver", "copy-small", "copy-2d", "copy-wait", "copy-default", "copy-large"};
    unsigned char *a, *b, *host = calloc(1, LARGE);
    hipStream_t stream;
    must(hipMalloc((void **)&a, LARGE), "malloc");
    must(hipMalloc((void **)&b, LARGE), "malloc");
    must(hipStreamCreateWithFlags(&stream, 1), "create");
    for (long round = 0; operation != NULL; round++) {
        for (int n = 0; n < 20; n++) operate(operation, a, b, host, stream);
        must(hipStreamSynchronize(stream), "synchronize");
        printf("round %ld\n", round);
    }
    for (size_t n = 0; n < sizeof ALL / sizeof *ALL; n++) {
        operate(ALL[n], a, b, host, stream);
        must(hipStreamSynchronize(stream), "synchronize");
        printf("%s: %u %u %u\n", ALL[n], sum_of(a, ROW * ROWS), sum_of(b, ROW * ROWS), sum_of(host, ROW * ROWS));
    }
    /* Recorded, not held. */
    hipGraph_t graph;
    size_t nodes = 0;
    must(hipStreamBeginCapture(stream, 0), "begin");
    operate("memset", a, b, host, stream);
    operate("copy-device", a, b, host, stream);
    must(hipStreamEndCapture(stream, &graph), "end");
    must(hipGraphGetNodes(graph, NULL, &nodes), "nodes");
    /* Fails without an effect on later calls. */
    int code = hipMemcpy(NULL, a, ROW, 2);
    printf("%zu nodes, error %d, last error %d\n", nodes, code, hipGetLastError());
    operate("memset-default", a, b, host, stream);
    must(hipDeviceSynchronize(), "synchronize");
    printf("at the end: %u, last error %d\n", sum_of(a, ROW), hipGetLastError());
    return 0;
}

int run(int argc, char **argv) {
    static const struct { void *address; const char *name; } KERNELS[] = {
        {&spin, "spin"}, {&increment, "increment"}, {&fill, "fill"}, {&add, "add"}, {&nothing, "nothing"},
    };
    look_up();
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t n = 0; n < sizeof KERNELS / sizeof *KERNELS; n++)
        __hipRegisterFunction(NULL, KERNELS[n].address, KERNELS[n].name, KERNELS[n].name, 0, NULL, NULL, NULL, NULL, NULL);
    long number[4] = {0};
    for (int n = 2; n < argc && n < 6; n++) number[n - 2] = atol(argv[n]);
    if (argc < 2) return 64;
    if (strcmp(argv[1], "forms") == 0) return forms();
    if (strcmp(argv[1], "work") == 0) return work(number[0], number[1], number[2], (int)number[3]);
    if (strcmp(argv[1], "requests") == 0) return requests(number[0], number[1], number[2], number[3]);
    if (strcmp(argv[1], "reads") == 0) return reads(number[0], number[1], number[2]);
    if (strcmp(argv[1], "cost") == 0) return cost(number[0]);
    if (strcmp(argv[1], "errors") == 0) return errors();
    if (strcmp(argv[1], "own") == 0) return own((int)number[0]);
    if (strcmp(argv[1], "churn") == 0) return churn(number[0]);
    if (strcmp(argv[1], "memory") == 0) return memory(argc > 2 ? argv[2] : NULL);
    if (strcmp(argv[1], "tensors") == 0) return tensors();
    if (strcmp(argv[1], "resets") == 0) return resets(number[0], number[1], number[2]);
    return 64;
}
