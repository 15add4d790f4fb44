/*
 * Uses ROCr without HIP: writes packets into queues and rings their doorbells.
 *
 *   forms                                          packets in every form; prints how many completed
 *   work ROUNDS COMMANDS LENGTH_US                 kernels on two queues, in rounds
 *   requests COUNT COMMANDS LENGTH_US PERIOD_MS    prints the latency of each request in microseconds, then waits for input
 *   cost BATCHES                                   nanoseconds for one ring of a doorbell, the best of so many batches
 *   again                                          the same as forms, twice, with hsa_shut_down in between
 *
 * With HIP_RUNTIME, opens that library first, like a program that also uses HIP.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct { uint32_t type, features; void *base; uint64_t doorbell; uint32_t size, reserved; uint64_t id; } hsa_queue_t;
typedef struct { uint16_t header, setup, shape[3], none; uint32_t grid[3], private_size, group_size; uint64_t kernel; void *kernarg; uint64_t reserved, done; } kernel_packet;
typedef struct { uint16_t header, none; uint32_t reserved; uint64_t after[5], reserved_too, done; } barrier_packet;
_Static_assert(sizeof(kernel_packet) == 64 && sizeof(barrier_packet) == 64, "as AMD has them");

enum { MULTI = 0, SINGLE = 1, KERNEL = 2, BARRIER_AND = 3, IN_ORDER = 1 << 8, LESS = 2, SIZE = 256 };

int hsa_init(void);
int hsa_shut_down(void);
int hsa_iterate_agents(int (*)(uint64_t, void *), void *);
int hsa_agent_get_info(uint64_t, int, void *);
int hsa_queue_create(uint64_t, uint32_t, uint32_t, void *, void *, uint32_t, uint32_t, hsa_queue_t **);
int hsa_queue_destroy(hsa_queue_t *);
uint64_t hsa_queue_load_read_index_scacquire(const hsa_queue_t *);
uint64_t hsa_queue_load_write_index_relaxed(const hsa_queue_t *);
void hsa_queue_store_write_index_screlease(const hsa_queue_t *, uint64_t);
uint64_t hsa_queue_add_write_index_relaxed(const hsa_queue_t *, uint64_t);
int hsa_signal_create(int64_t, uint32_t, const uint64_t *, uint64_t *);
int hsa_signal_destroy(uint64_t);
int64_t hsa_signal_load_scacquire(uint64_t);
void hsa_signal_store_relaxed(uint64_t, int64_t);
void hsa_signal_store_screlease(uint64_t, int64_t);
int64_t hsa_signal_wait_scacquire(uint64_t, int, int64_t, uint64_t, int);

static uint64_t gpu;

static void must(int status, const char *what) {
    if (status != 0) {
        printf("%s: status %x\n", what, status);
        exit(70);
    }
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static int find_gpu(uint64_t agent, void *data) {
    uint32_t kind = 0;
    (void)data;
    if (hsa_agent_get_info(agent, 17, &kind) == 0 && kind == 1 && gpu == 0) gpu = agent;
    return 0;
}

static hsa_queue_t *make_queue(uint32_t type) {
    hsa_queue_t *queue = NULL;
    must(hsa_queue_create(gpu, SIZE, type, NULL, NULL, UINT32_MAX, UINT32_MAX, &queue), "create");
    return queue;
}

static uint64_t make_signal(int64_t value) {
    uint64_t signal;
    must(hsa_signal_create(value, 0, NULL, &signal), "signal");
    return signal;
}

static void wait_for(uint64_t signal) {
    while (hsa_signal_wait_scacquire(signal, LESS, 1, UINT64_MAX, 0) >= 1) {
    }
}

/* The slot of one packet. */
static uint64_t reserve(hsa_queue_t *queue) {
    uint64_t index;
    if (queue->type == SINGLE) {
        index = hsa_queue_load_write_index_relaxed(queue);
        hsa_queue_store_write_index_screlease(queue, index + 1);
    } else {
        index = hsa_queue_add_write_index_relaxed(queue, 1);
    }
    while (index - hsa_queue_load_read_index_scacquire(queue) >= queue->size) {
    }
    return index;
}

static void write_packet(hsa_queue_t *queue, uint64_t index, const void *packet, uint16_t header) {
    char *place = (char *)queue->base + index % queue->size * 64;
    memcpy(place + 4, (const char *)packet + 4, 60);
    __atomic_store_n((uint32_t *)place, header, __ATOMIC_RELEASE);
}

static void launch(hsa_queue_t *queue, uint64_t *length_ns, uint64_t done) {
    kernel_packet packet = {.kernel = 1, .kernarg = length_ns, .done = done};
    uint64_t index = reserve(queue);
    write_packet(queue, index, &packet, KERNEL | IN_ORDER);
    hsa_signal_store_screlease(queue->doorbell, (int64_t)index);
}

typedef struct { hsa_queue_t *queue; uint64_t length, done; } Share;

static void *launch_many(void *of) {
    Share *share = of;
    for (int n = 0; n < 100; n++) launch(share->queue, &share->length, share->done);
    return NULL;
}

static void *open_gate(void *gate) {
    struct timespec while_ago = {.tv_nsec = 50000000};
    nanosleep(&while_ago, NULL);
    hsa_signal_store_relaxed(*(uint64_t *)gate, 0);
    return NULL;
}

static int forms(void) {
    uint64_t length = 20000;
    int64_t expected = 0;
    hsa_queue_t *shared = make_queue(MULTI), *own = make_queue(SINGLE);
    uint64_t done = make_signal(1000000);

    /* Four threads on one queue, and this thread on a single-producer queue. */
    pthread_t threads[4];
    Share share = {shared, length, done};
    for (int n = 0; n < 4; n++) pthread_create(&threads[n], NULL, launch_many, &share);
    for (int n = 0; n < 100; n++) launch(own, &length, done);
    for (int n = 0; n < 4; n++) pthread_join(threads[n], NULL);
    expected += 500;

    /* Many packets with one doorbell. */
    kernel_packet packet = {.kernel = 1, .kernarg = &length, .done = done};
    uint64_t last = 0;
    for (int n = 0; n < 50; n++) write_packet(shared, last = reserve(shared), &packet, KERNEL | IN_ORDER);
    hsa_signal_store_relaxed(shared->doorbell, (int64_t)last);
    expected += 50;

    /* A packet that waits for a thread of this program, and more packets after it than the window allows. */
    uint64_t gate = make_signal(1);
    barrier_packet barrier = {.after = {gate}, .done = done};
    write_packet(shared, last = reserve(shared), &barrier, BARRIER_AND | IN_ORDER);
    hsa_signal_store_screlease(shared->doorbell, (int64_t)last);
    for (int n = 0; n < 100; n++) launch(shared, &length, done);
    pthread_create(&threads[0], NULL, open_gate, &gate);
    expected += 101;

    while (hsa_signal_load_scacquire(done) > 1000000 - expected) {
    }
    pthread_join(threads[0], NULL);
    printf("%lld packets, %lld done\n", (long long)expected, (long long)(1000000 - hsa_signal_load_scacquire(done)));
    must(hsa_queue_destroy(shared), "destroy");
    must(hsa_queue_destroy(own), "destroy");
    must(hsa_signal_destroy(done), "destroy");
    return 0;
}

static int work(long rounds, long commands, long length_us) {
    hsa_queue_t *queues[2] = {make_queue(MULTI), make_queue(MULTI)};
    uint64_t length = (uint64_t)length_us * 1000;
    for (long round = 0; round < rounds; round++) {
        uint64_t done = make_signal(commands);
        for (long n = 0; n < commands; n++) launch(queues[n % 2], &length, done);
        wait_for(done);
        must(hsa_signal_destroy(done), "destroy");
        printf("round %ld\n", round);
        fflush(stdout);
    }
    for (int n = 0; n < 2; n++) must(hsa_queue_destroy(queues[n]), "destroy");
    return 0;
}

static int requests(long count, long commands, long length_us, long period_ms) {
    hsa_queue_t *queue = make_queue(MULTI);
    uint64_t length = (uint64_t)length_us * 1000, next = now_ns();
    for (long request = 0; request < count; request++) {
        uint64_t arrived = now_ns(), done = make_signal(commands);
        for (long n = 0; n < commands; n++) launch(queue, &length, done);
        wait_for(done);
        printf("%llu\n", (unsigned long long)(now_ns() - arrived) / 1000);
        fflush(stdout);
        must(hsa_signal_destroy(done), "destroy");
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

static int cost(long batches) {
    uint64_t best = UINT64_MAX;
    hsa_queue_t *queue = make_queue(MULTI);
    for (long batch = 0; batch < batches; batch++) {
        uint64_t begin = now_ns();
        for (int n = 0; n < 1000; n++) hsa_signal_store_screlease(queue->doorbell, -1);
        uint64_t took = now_ns() - begin;
        if (took < best) best = took;
    }
    printf("%.1f\n", (double)best / 1000);
    return hsa_queue_destroy(queue);
}

int main(int argc, char **argv) {
    const char *hip = getenv("HIP_RUNTIME");
    if (hip != NULL && dlopen(hip, RTLD_NOW | RTLD_LOCAL) == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 70;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    long number[4] = {0};
    for (int n = 2; n < argc && n < 6; n++) number[n - 2] = atol(argv[n]);
    if (argc < 2) return 64;
    must(hsa_init(), "hsa_init");
    must(hsa_iterate_agents(find_gpu, NULL), "agents");
    int status = 64;
    if (strcmp(argv[1], "again") == 0) {
        status = forms();
        must(hsa_shut_down(), "hsa_shut_down");
        must(hsa_init(), "hsa_init");
        status |= forms();
    }
    if (strcmp(argv[1], "forms") == 0) status = forms();
    if (strcmp(argv[1], "work") == 0) status = work(number[0], number[1], number[2]);
    if (strcmp(argv[1], "cost") == 0) status = cost(number[0]);
    if (strcmp(argv[1], "requests") == 0) status = requests(number[0], number[1], number[2], number[3]);
    must(hsa_shut_down(), "hsa_shut_down");
    return status;
}
