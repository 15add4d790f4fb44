/*
 * The module that Python imports, and the scripts:
 *
 *   train EXIT                     every step once; EXIT is return, os_exit, uncaught, left_open
 *   worker                         a spawned data loader that uses the GPU
 *   extension [USED]               imports a module whose constructor uses the GPU, as the first or after the program
 *   loop KERNELS LENGTH_US [DIES [STREAMS]]
 *                                  kernels without end on one or two streams, a line for each round; SIGTERM ends it through its
 *                                  exit handlers, or at once
 *   requests COUNT KERNELS LENGTH_US PERIOD_MS    prints the latency of each request in ns
 *   cost BATCHES                   ns for one launch in each batch of 1000 on a stream of the pool: on the clock, and of CPU time
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "shape.h"

extern char **environ;

/* A constructor of the framework, which runs before or after those that register device code. */
static unsigned registered_operators;
__attribute__((constructor)) static void register_operators(void) {
    for (unsigned n = 0; n < 2000; n++) registered_operators += n % 2;
}

static uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static uint64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

static int wait_for(pid_t child) {
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* The framework asks a forked child for the number of devices, so that the parent stays uninitialized. */
static void count_devices(void) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) _exit(c10_device_count() & 0xff);
    printf("devices: %d in a child, ", wait_for(child));
    printf("%d here\n", c10_device_count());
}

struct task { void (*run)(uint64_t, hipStream_t); hipStream_t stream; int done; };

/* A thread of the autograd engine: one for the device. */
static void *backward(void *data) {
    struct task *task = data;
    MUST(hipSetDevice(0));
    for (int n = 0; n < 10; n++) task->run(10000, task->stream);
    at_math_libraries(task->stream);
    vision_spin_per_thread(10000);
    MUST(hipStreamSynchronize(hipStreamPerThread));
    MUST(hipStreamSynchronize(task->stream));
    task->done = 1;
    return NULL;
}

static void autograd(hipStream_t stream) {
    struct task task = {at_backward_spin, stream, 0};
    pthread_t thread;
    for (int n = 0; n < 10; n++) at_spin(10000, stream);
    if (pthread_create(&thread, NULL, backward, &task) != 0) exit(74);
    pthread_join(thread, NULL);
    printf("autograd: %d\n", task.done);
}

/* Data loaders: forked children that never use the GPU send batches through a pipe; the parent copies them to the device. */
static void forked_loaders(hipStream_t stream) {
    enum { LOADERS = 2, BATCHES = 8, BYTES = 4096 };
    unsigned right = 0;
    int status = 0;
    for (int loader = 0; loader < LOADERS; loader++) {
        int ends[2];
        if (pipe(ends) != 0) exit(75);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            unsigned char batch[BYTES];
            for (int n = 0; n < BATCHES; n++) {
                memset(batch, loader * BATCHES + n + 1, sizeof batch);
                if (write(ends[1], batch, sizeof batch) != sizeof batch) _exit(1);
            }
            _exit(0);
        }
        close(ends[1]);
        for (int n = 0; n < BATCHES; n++) {
            unsigned char *host = c10_allocate_pinned(BYTES), *back = c10_allocate_pinned(BYTES);
            void *device = c10_allocate(BYTES, stream);
            for (size_t got = 0; got < BYTES;) {
                ssize_t bytes = read(ends[0], host + got, BYTES - got);
                if (bytes <= 0) exit(75);
                got += (size_t)bytes;
            }
            MUST(hipMemcpyAsync(device, host, BYTES, hipMemcpyHostToDevice, stream));
            at_spin(10000, stream);
            MUST(hipMemcpyAsync(back, device, BYTES, hipMemcpyDeviceToHost, stream));
            MUST(hipStreamSynchronize(stream));
            right += back[BYTES - 1] == loader * BATCHES + n + 1;
            c10_free_pinned(host, stream);
            c10_free_pinned(back, stream);
            c10_free(device);
        }
        close(ends[0]);
        status |= wait_for(child);
    }
    printf("forked loaders: status %d, %u batches right\n", status, right);
}

static void spawned_loaders(const char *program) {
    const char *const scripts[] = {"plain-worker", "worker"};
    int statuses[2];
    pid_t children[2];
    fflush(stdout);
    for (int n = 0; n < 2; n++) {
        char *const arguments[] = {(char *)program, (char *)scripts[n], NULL};
        if (posix_spawn(&children[n], program, NULL, NULL, arguments, environ) != 0) exit(75);
        statuses[n] = wait_for(children[n]);
    }
    printf("spawned loaders: status %d and %d\n", statuses[0], statuses[1]);
}

static void memory(hipStream_t stream, hipStream_t other) {
    enum { COUNT = 40 };
    void *tensors[COUNT], *pooled = NULL;
    unsigned segments, retries;
    size_t reserved, free_bytes, total;
    for (int n = 0; n < COUNT; n++) tensors[n] = c10_allocate((size_t)(n + 1) * 100000, n % 2 ? stream : other);
    for (int n = 0; n < COUNT; n++) {
        at_spin(5000, n % 2 ? other : stream);
        c10_record_stream(tensors[n], n % 2 ? other : stream);
        c10_free(tensors[n]);
    }
    /* More than the device has: the allocator frees what it caches, retries, and fails. */
    MUST(hipMemGetInfo(&free_bytes, &total));
    void *refused = c10_allocate(total * 4096, stream);
    c10_memory_statistics(&segments, &retries, &reserved);
    printf("memory: %s, %u segments, %zu MiB, %u retries\n", refused ? "too much" : "refused", segments, reserved >> 20, retries);
    void *small = c10_allocate(1000, stream), *large = c10_allocate(50 << 20, stream);
    c10_free(small);
    c10_free(large);
    c10_empty_cache();
    c10_memory_statistics(&segments, &retries, &reserved);
    /* The other backend of the allocator. */
    hipError_t pool_error = hipMallocAsync(&pooled, 1 << 20, stream);
    (void)hipGetLastError();
    at_spin(5000, stream);
    if (pool_error == hipSuccess) MUST(hipFreeAsync(pooled, stream));
    MUST(hipStreamSynchronize(stream));
    printf("pool: %d\n", (int)pool_error);
    printf("cache: %u segments, %zu MiB, last error %d\n", segments, reserved >> 20, (int)hipGetLastError());
}

/* Takes every stream of the pools: each is created when it is first taken. */
static void streams(void) {
    int priorities = c10_priorities(), taken = 0;
    for (int priority = 0; priority < priorities && priority < 2; priority++) {
        for (int n = 0; n < STREAMS_PER_POOL; n++, taken++) at_spin(1000, c10_stream_from_pool(-priority));
    }
    MUST(hipDeviceSynchronize());
    printf("streams: %d, %d priorities\n", taken, priorities);
}

static void close_library(void) { printf("exit handler: %d devices\n", c10_device_count()); }

static int train(const char *program, const char *way_to_exit) {
    printf("import: %u operators, managed %d\n", registered_operators, at_managed_value());
    count_devices();
    atexit(close_library);
    c10_lazy_init();
    streams();
    hipStream_t stream = c10_stream_from_pool(0), other = c10_stream_from_pool(-1);
    memory(stream, other);
    at_copies(stream);
    at_math_libraries(NULL);
    at_math_libraries(stream);
    at_events(stream, other);
    at_graphs(stream);
    at_compiled_kernels(stream);
    autograd(stream);
    at_collectives_start();
    for (int n = 0; n < 4; n++) at_collectives_all_reduce(stream);
    forked_loaders(stream);
    spawned_loaders(program);
    at_collectives_end();
    printf("trained, last error %d\n", (int)hipGetLastError());
    /* Streams stay open, and the last one still has work. */
    for (int n = 0; n < 20; n++) at_spin(200000, stream);
    fflush(stdout);
    if (strcmp(way_to_exit, "os_exit") == 0) _exit(3);
    if (strcmp(way_to_exit, "uncaught") == 0) raise_uncaught();
    if (strcmp(way_to_exit, "left_open") == 0) exit(4);
    MUST(hipDeviceSynchronize());
    return 0;
}

static int worker(void) {
    c10_lazy_init();
    hipStream_t stream = c10_stream_from_pool(0);
    for (int n = 0; n < 10; n++) vision_spin(10000, stream);
    at_copies(stream);
    return 0;
}

/* A module beside this program. */
static int extension(const char *program) {
    char path[4096];
    const char *slash = strrchr(program, '/');
    snprintf(path, sizeof path, "%.*slibextension.so", slash ? (int)(slash - program) + 1 : 0, program);
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    int (*loaded)(void) = module ? (int (*)(void))dlsym(module, "extension_loaded") : NULL;
    if (loaded == NULL) {
        printf("%s\n", dlerror());
        return 70;
    }
    printf("extension: %d, last error %d\n", loaded(), (int)hipGetLastError());
    return 0;
}

static volatile sig_atomic_t terminated;

static void terminate(int signal) { terminated = signal; }

static int loop(long kernels, uint64_t length_us, int dies, int used) {
    if (!dies) signal(SIGTERM, terminate);
    atexit(close_library);
    hipStream_t streams[] = {c10_stream_from_pool(0), c10_stream_from_pool(-1)};
    hipEvent_t events[2][2];
    for (int n = 0; n < 4; n++) MUST(hipEventCreateWithFlags(&events[n / 2][n % 2], hipEventDisableTiming));
    /* A round is launched before the previous one is waited for: the device always has work. */
    for (unsigned long round = 0; !terminated; round++) {
        for (long n = 0; n < kernels; n++) at_spin(length_us * 1000, streams[n % used]);
        for (int n = 0; n < used; n++) MUST(hipEventRecord(events[round % 2][n], streams[n]));
        for (int n = 0; n < used && round > 0 && !terminated; n++) MUST(hipEventSynchronize(events[(round - 1) % 2][n]));
        printf("round %lu\n", round);
    }
    exit(15);
}

static int requests(long count, long kernels, uint64_t length_us, uint64_t period_ms) {
    hipStream_t stream = c10_stream_from_pool(-1);
    uint64_t next = now_ns();
    for (long request = 0; request < count; request++) {
        uint64_t arrived = now_ns();
        for (long n = 0; n < kernels; n++) at_spin(length_us * 1000, stream);
        MUST(hipStreamSynchronize(stream));
        printf("%llu\n", (unsigned long long)(now_ns() - arrived));
        next += period_ms * 1000000;
        if (next < now_ns()) next = now_ns();
        const struct timespec when = {(time_t)(next / 1000000000), (long)(next % 1000000000)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) != 0) {
        }
    }
    return 0;
}

static int cost(long batches) {
    enum { LAUNCHES = 1000 };
    hipStream_t stream = c10_stream_from_pool(0);
    for (long batch = 0; batch < batches; batch++) {
        uint64_t begin = now_ns(), begin_cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        for (int n = 0; n < LAUNCHES; n++) at_spin(0, stream);
        uint64_t cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin_cpu;
        printf("%.1f %.1f\n", (double)(now_ns() - begin) / LAUNCHES, (double)cpu / LAUNCHES);
        MUST(hipStreamSynchronize(stream));
    }
    return 0;
}

__attribute__((visibility("default"))) int PyInit__C(int argc, char **argv) {
    long number[4] = {0};
    for (int n = 2; n < argc && n < 6; n++) number[n - 2] = atol(argv[n]);
    if (argc < 2) return 64;
    if (strcmp(argv[1], "train") == 0) return train(argv[0], argc > 2 ? argv[2] : "return");
    if (strcmp(argv[1], "worker") == 0) return worker();
    if (strcmp(argv[1], "extension") == 0) return (number[0] && worker()) || extension(argv[0]);
    if (strcmp(argv[1], "loop") == 0) return loop(number[0], (uint64_t)number[1], number[2] != 0, number[3] == 1 ? 1 : 2);
    if (strcmp(argv[1], "requests") == 0) return requests(number[0], number[1], (uint64_t)number[2], (uint64_t)number[3]);
    if (strcmp(argv[1], "cost") == 0) return cost(number[0]);
    return 64;
}
