/*
 * Calls functions of ROCr whose behaviour programs depend on, and prints what they return. One feature for each first argument:
 *
 *   errors     what is rejected, and how
 *   doorbell   a doorbell that is written without a function call
 *   signals    waits for several signals, handlers on one thread, a signal that two processes share
 *   copies     copies after dependencies, with the right data and times
 *   fault      a copy to memory that does not exist; "fault handled" with a handler for it
 *   destruction  handlers that are due when a queue is destroyed
 *   threads    the threads that are left after hsa_shut_down
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <dirent.h>
#include <unistd.h>

typedef struct { uint32_t type, features; void *base; uint64_t doorbell; uint32_t size, reserved; uint64_t id; } hsa_queue_t;
typedef struct { uint16_t header, setup, shape[3], none; uint32_t grid[3], private_size, group_size; uint64_t kernel; void *kernarg; uint64_t reserved, done; } kernel_packet;
typedef struct { uint64_t kind; volatile uint64_t *hardware_doorbell; } amd_signal_t;
typedef struct { uint64_t start, end; } times_t;
typedef struct { uint32_t kind; uint64_t agent, address; uint32_t reasons; } event_t;
typedef struct { uint32_t words[8]; } ipc_t;

int hsa_init(void);
int hsa_shut_down(void);
int hsa_status_string(int, const char **);
int hsa_iterate_agents(int (*)(uint64_t, void *), void *);
int hsa_agent_get_info(uint64_t, int, void *);
int hsa_queue_create(uint64_t, uint32_t, uint32_t, void *, void *, uint32_t, uint32_t, hsa_queue_t **);
int hsa_queue_destroy(hsa_queue_t *);
uint64_t hsa_queue_add_write_index_relaxed(const hsa_queue_t *, uint64_t);
int hsa_signal_create(int64_t, uint32_t, const uint64_t *, uint64_t *);
int hsa_signal_destroy(uint64_t);
int64_t hsa_signal_load_scacquire(uint64_t);
void hsa_signal_store_relaxed(uint64_t, int64_t);
void hsa_signal_store_screlease(uint64_t, int64_t);
int64_t hsa_signal_wait_scacquire(uint64_t, int, int64_t, uint64_t, int);
int hsa_amd_signal_create(int64_t, uint32_t, const uint64_t *, uint64_t, uint64_t *);
int hsa_amd_signal_async_handler(uint64_t, int, int64_t, int (*)(int64_t, void *), void *);
uint32_t hsa_amd_signal_wait_any(uint32_t, uint64_t *, int *, int64_t *, uint64_t, int, int64_t *);
int hsa_amd_ipc_signal_create(uint64_t, ipc_t *);
int hsa_amd_ipc_signal_attach(const ipc_t *, uint64_t *);
int hsa_amd_agent_iterate_memory_pools(uint64_t, int (*)(uint64_t, void *), void *);
int hsa_amd_memory_pool_allocate(uint64_t, size_t, uint32_t, void **);
int hsa_amd_memory_pool_free(void *);
int hsa_amd_memory_async_copy(void *, uint64_t, const void *, uint64_t, size_t, uint32_t, const uint64_t *, uint64_t);
int hsa_amd_profiling_get_async_copy_time(uint64_t, times_t *);
int hsa_amd_register_system_event_handler(int (*)(const event_t *, void *), void *);
int hsa_amd_memory_unlock(void *);

enum { EQUAL = 0, LESS = 2 };

static uint64_t cpu, gpu, pool;

static void must(int status, const char *what) {
    if (status != 0) {
        printf("%s: status %x\n", what, status);
        exit(70);
    }
}

static int find_agents(uint64_t agent, void *data) {
    uint32_t kind = 0;
    (void)data;
    must(hsa_agent_get_info(agent, 17, &kind), "agent");
    if (kind == 1 && gpu == 0) gpu = agent;
    if (kind == 0) cpu = agent;
    return 0;
}

static int first_pool(uint64_t found, void *data) {
    (void)data;
    if (pool == 0) pool = found;
    return 0;
}

static uint64_t make_signal(int64_t value) {
    uint64_t signal;
    must(hsa_signal_create(value, 0, NULL, &signal), "signal");
    return signal;
}

static hsa_queue_t *make_queue(void) {
    hsa_queue_t *queue = NULL;
    must(hsa_queue_create(gpu, 256, 0, NULL, NULL, UINT32_MAX, UINT32_MAX, &queue), "create");
    return queue;
}

static uint64_t write_kernel(hsa_queue_t *queue, uint64_t *nanoseconds, uint64_t done) {
    kernel_packet packet = {.kernel = 1, .kernarg = nanoseconds, .done = done};
    uint64_t index = hsa_queue_add_write_index_relaxed(queue, 1);
    char *place = (char *)queue->base + index % queue->size * 64;
    memcpy(place + 4, (char *)&packet + 4, 60);
    __atomic_store_n((uint32_t *)place, 2 | 1 << 8, __ATOMIC_RELEASE);
    return index;
}

static void print_status(const char *what, int status) {
    const char *text = "unknown";
    hsa_status_string(status, &text);
    printf("%s: %.*s\n", what, (int)strcspn(text, ":"), text);
}

static void errors(void) {
    hsa_queue_t *queue;
    uint32_t word;
    void *memory;
    print_status("a size that is no power of two", hsa_queue_create(gpu, 100, 0, NULL, NULL, 0, 0, &queue));
    print_status("too many packets", hsa_queue_create(gpu, 1 << 30, 0, NULL, NULL, 0, 0, &queue));
    print_status("too few packets", hsa_queue_create(gpu, 32, 0, NULL, NULL, 0, 0, &queue));
    print_status("a queue of the CPU", hsa_queue_create(cpu, 256, 0, NULL, NULL, 0, 0, &queue));
    print_status("no agent", hsa_agent_get_info(77, 17, &word));
    print_status("no attribute", hsa_agent_get_info(gpu, 0x7777, &word));
    print_status("no queue", hsa_queue_destroy((hsa_queue_t *)&word));
    print_status("no pool", hsa_amd_memory_pool_allocate(7777, 4096, 0, &memory));
    print_status("no bytes", hsa_amd_memory_pool_allocate(pool, 0, 0, &memory));
    print_status("too many bytes", hsa_amd_memory_pool_allocate(pool, (size_t)1 << 46, 0, &memory));
    print_status("not allocated", hsa_amd_memory_pool_free(&word));
    print_status("not locked", hsa_amd_memory_unlock(&word));
    print_status("no signal", hsa_signal_destroy(0));
    size_t half = (size_t)40 << 30;
    must(hsa_amd_memory_pool_allocate(pool, half, 0, &memory), "allocate");
    void *more;
    print_status("no memory left", hsa_amd_memory_pool_allocate(pool, half, 0, &more));
    must(hsa_amd_memory_pool_free(memory), "free");
    must(hsa_amd_memory_pool_allocate(pool, half, 0, &memory), "allocate again");
    must(hsa_amd_memory_pool_free(memory), "free");
}

static void doorbell(void) {
    hsa_queue_t *queue = make_queue();
    uint64_t length = 20000, done = make_signal(10);
    for (int n = 0; n < 10; n++) {
        uint64_t index = write_kernel(queue, &length, done);
        *((amd_signal_t *)queue->doorbell)->hardware_doorbell = index;
        hsa_signal_wait_scacquire(done, LESS, 10 - n, UINT64_MAX, 0);
    }
    printf("%lld left\n", (long long)hsa_signal_load_scacquire(done));
    must(hsa_queue_destroy(queue), "destroy");
}

static pthread_t handlers[2];
static int calls;

static int handler(int64_t value, void *argument) {
    (void)value;
    handlers[calls % 2] = pthread_self();
    calls++;
    uint64_t *signals = argument;
    /* Called again after the first call: the signal still has its value. */
    if (calls < 3) return 1;
    hsa_signal_store_relaxed(signals[1], 0);
    return 0;
}

static void signals(void) {
    uint64_t list[3] = {make_signal(1), make_signal(1), make_signal(1)};
    int conditions[3] = {EQUAL, EQUAL, EQUAL};
    int64_t values[3] = {0, 0, 0}, value = 77;
    must(hsa_amd_signal_async_handler(list[0], EQUAL, 0, handler, list), "handler");
    hsa_signal_store_screlease(list[0], 0);
    uint32_t found = hsa_amd_signal_wait_any(2, list + 1, conditions, values, UINT64_MAX, 0, &value);
    printf("signal %u, value %lld, %d calls, one thread %d\n", found, (long long)value, calls, pthread_equal(handlers[0], handlers[1]) != 0);
    found = hsa_amd_signal_wait_any(1, list + 2, conditions, values, 1000000, 0, &value);
    printf("timeout %d\n", found == UINT32_MAX);

    /* A child with a runtime of its own waits for the parent, and answers. */
    uint64_t shared;
    ipc_t handle;
    must(hsa_amd_signal_create(0, 0, NULL, 2, &shared), "shared signal");
    must(hsa_amd_ipc_signal_create(shared, &handle), "export");
    char text[2 * sizeof handle + 1];
    for (size_t n = 0; n < sizeof handle; n++) sprintf(text + 2 * n, "%02x", ((unsigned char *)&handle)[n]);
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "hsa_interface", "signal-child", text, (char *)NULL);
        _exit(71);
    }
    hsa_signal_store_screlease(shared, 1);
    int64_t answer = hsa_signal_wait_scacquire(shared, EQUAL, 2, 30000000000, 0);
    int status;
    waitpid(child, &status, 0);
    printf("the child answers %lld and exits with %d\n", (long long)answer, WEXITSTATUS(status));
}

static int signal_child(const char *text) {
    ipc_t handle;
    for (size_t n = 0; n < sizeof handle; n++) {
        unsigned byte;
        sscanf(text + 2 * n, "%2x", &byte);
        ((unsigned char *)&handle)[n] = (unsigned char)byte;
    }
    uint64_t shared;
    must(hsa_amd_ipc_signal_attach(&handle, &shared), "attach");
    hsa_signal_wait_scacquire(shared, EQUAL, 1, 30000000000, 0);
    hsa_signal_store_screlease(shared, 2);
    return 0;
}

static void copies(void) {
    enum { SIZE = 1 << 20 };
    unsigned char *device, *from = malloc(SIZE), *to = malloc(SIZE);
    must(hsa_amd_memory_pool_allocate(pool, SIZE, 0, (void **)&device), "allocate");
    for (int n = 0; n < SIZE; n++) from[n] = (unsigned char)(n * 7);
    uint64_t gate = make_signal(1), first = make_signal(1), second = make_signal(1);
    must(hsa_amd_memory_async_copy(device, gpu, from, cpu, SIZE, 1, &gate, first), "copy");
    must(hsa_amd_memory_async_copy(to, cpu, device, gpu, SIZE, 1, &first, second), "copy");
    int64_t early = hsa_signal_wait_scacquire(first, EQUAL, 0, 20000000, 0);
    hsa_signal_store_screlease(gate, 0);
    hsa_signal_wait_scacquire(second, EQUAL, 0, UINT64_MAX, 0);
    times_t one, two;
    must(hsa_amd_profiling_get_async_copy_time(first, &one), "time");
    must(hsa_amd_profiling_get_async_copy_time(second, &two), "time");
    printf("waits %lld, data %s, in order %d\n", (long long)early, memcmp(from, to, SIZE) == 0 ? "right" : "wrong",
           one.start < one.end && one.end <= two.start && two.start < two.end);
    must(hsa_amd_memory_pool_free(device), "free");
}

static volatile int faults;

static int on_event(const event_t *event, void *address) {
    printf("event %u at the address %d\n", event->kind, event->address == (uint64_t)address);
    fflush(stdout);
    faults++;
    return 0;
}

static void fault(int handled) {
    void *missing = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *memory;
    munmap(missing, 4096);
    must(hsa_amd_memory_pool_allocate(pool, 4096, 0, &memory), "allocate");
    if (handled) must(hsa_amd_register_system_event_handler(on_event, missing), "handler");
    uint64_t done = make_signal(1);
    must(hsa_amd_memory_async_copy(missing, gpu, memory, gpu, 16, 0, NULL, done), "copy");
    hsa_signal_wait_scacquire(done, EQUAL, 0, handled ? 100000000 : UINT64_MAX, 0);
    printf("%d faults, done %lld\n", faults, (long long)hsa_signal_load_scacquire(done));
}

static int count_threads(void) {
    DIR *tasks = opendir("/proc/self/task");
    int count = -2; /* . and .. */
    while (readdir(tasks) != NULL) count++;
    closedir(tasks);
    return count;
}

static int nothing(int64_t value, void *argument) {
    (void)value;
    (void)argument;
    return 0;
}

static atomic_int begun, finished;

/* A handler that takes 50 ms. */
static int take_long(int64_t value, void *argument) {
    (void)value;
    (void)argument;
    atomic_fetch_add(&begun, 1);
    usleep(50000);
    atomic_fetch_add(&finished, 1);
    return 0;
}

/* HIP frees what its handlers use after it has destroyed its queues. */
static void destruction(void) {
    uint64_t satisfied = make_signal(0);
    hsa_queue_t *queue = make_queue();
    for (int n = 0; n < 3; n++) must(hsa_amd_signal_async_handler(satisfied, EQUAL, 0, take_long, NULL), "handler");
    while (atomic_load(&begun) == 0) sched_yield();
    must(hsa_queue_destroy(queue), "destroy");
    printf("%d handlers returned before the queue was destroyed\n", atomic_load(&finished));
}

static void threads(void) {
    int before = count_threads();
    uint64_t length = 1000, done = make_signal(1), never = make_signal(1);
    hsa_queue_t *queue = make_queue();
    hsa_signal_store_screlease(queue->doorbell, (int64_t)write_kernel(queue, &length, done));
    hsa_signal_wait_scacquire(done, EQUAL, 0, UINT64_MAX, 0);
    must(hsa_amd_signal_async_handler(never, EQUAL, 0, nothing, NULL), "handler");
    char *memory, word[8] = "";
    must(hsa_amd_memory_pool_allocate(pool, 4096, 0, (void **)&memory), "allocate");
    must(hsa_amd_memory_async_copy(memory, gpu, word, cpu, 8, 1, &never, done), "copy");
    int during = count_threads();
    must(hsa_shut_down(), "hsa_shut_down");
    printf("%d more threads, %d after the end\n", during - before, count_threads() - before);
    print_status("after the end", hsa_queue_create(gpu, 256, 0, NULL, NULL, 0, 0, &queue));
    must(hsa_init(), "hsa_init");
}

int main(int argc, char **argv) {
    if (argc < 2) return 64;
    must(hsa_init(), "hsa_init");
    must(hsa_iterate_agents(find_agents, NULL), "agents");
    must(hsa_amd_agent_iterate_memory_pools(gpu, first_pool, NULL), "pools");
    if (strcmp(argv[1], "errors") == 0) errors();
    if (strcmp(argv[1], "doorbell") == 0) doorbell();
    if (strcmp(argv[1], "signals") == 0) signals();
    if (strcmp(argv[1], "signal-child") == 0) return signal_child(argv[2]);
    if (strcmp(argv[1], "copies") == 0) copies();
    if (strcmp(argv[1], "fault") == 0) fault(argc > 2);
    if (strcmp(argv[1], "destruction") == 0) destruction();
    if (strcmp(argv[1], "threads") == 0) threads();
    must(hsa_shut_down(), "hsa_shut_down");
    return 0;
}
