/* Devices, streams and memory, as PyTorch's libc10_hip.so uses them. */
#include <pthread.h>
#include "shape.h"

enum { MIB = 1 << 20, SMALL_SIZE = MIB, SMALL_SEGMENT = 2 * MIB, LARGE_SEGMENT = 20 * MIB, MAX_IN_LARGE_SEGMENT = 10 * MIB, MAX_BLOCKS = 4096 };

/* Is called before any context exists, also in forked children. */
int c10_device_count(void) {
    int count = 0;
    hipError_t error = hipGetDeviceCount(&count);
    if (error != hipSuccess) {
        (void)hipGetLastError();
        return -(int)error;
    }
    return count;
}

static void initialize(void) {
    size_t free_bytes = 0, total = 0;
    int device = -1;
    MUST(hipInit(0));
    MUST(hipSetDevice(0));
    MUST(hipGetDevice(&device));
#ifndef HIP_SUBSET
    hipDeviceProp_t properties;
    MUST(hipGetDeviceProperties(&properties, 0));
    printf("device: %s, %d\n", properties.gcnArchName, properties.multiProcessorCount > 0);
#endif
    MUST(hipMemGetInfo(&free_bytes, &total));
    printf("memory: %d\n", total >= free_bytes && free_bytes > 0);
}

void c10_lazy_init(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, initialize);
}

/* Streams: a pool for each priority, and a stream of it is created when it is first taken. */
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static hipStream_t pool[MAX_PRIORITIES][STREAMS_PER_POOL];
static unsigned next_stream[MAX_PRIORITIES];

int c10_priorities(void) {
    int least = 0, greatest = 0;
    MUST(hipDeviceGetStreamPriorityRange(&least, &greatest));
    int count = least - greatest + 1;
    return count > MAX_PRIORITIES ? MAX_PRIORITIES : count;
}

/* Priority 0 is the lowest that PyTorch uses; -1 is the next. */
hipStream_t c10_stream_from_pool(int priority) {
    c10_lazy_init();
    pthread_mutex_lock(&pool_lock);
    int number = -priority;
    unsigned index = next_stream[number]++ % STREAMS_PER_POOL;
    if (pool[number][index] == NULL) MUST(hipStreamCreateWithPriority(&pool[number][index], hipStreamNonBlocking, priority));
    hipStream_t stream = pool[number][index];
    pthread_mutex_unlock(&pool_lock);
    return stream;
}

/* Memory: segments, split into blocks, which belong to the stream that they were allocated for. */
struct block {
    char *at;
    size_t bytes;
    void *segment;
    int used;
    hipStream_t stream;
    hipEvent_t pending;
};
static struct block blocks[MAX_BLOCKS];
static unsigned block_count, segments, retries;
static size_t reserved;
static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;

static struct block *add_block(void) {
    for (unsigned n = 0; n < block_count; n++)
        if (blocks[n].at == NULL) return &blocks[n];
    if (block_count == MAX_BLOCKS) exit(71);
    return &blocks[block_count++];
}

/* Blocks that another stream used are free when its event has completed. */
static void process_events(void) {
    for (unsigned n = 0; n < block_count; n++) {
        if (blocks[n].pending == NULL || blocks[n].used) continue;
        hipError_t error = hipEventQuery(blocks[n].pending);
        if (error == hipErrorNotReady) {
            (void)hipGetLastError();
            continue;
        }
        MUST(error);
        MUST(hipEventDestroy(blocks[n].pending));
        blocks[n].pending = NULL;
    }
}

static void release_cached(void) {
    MUST(hipDeviceSynchronize());
    process_events();
    for (unsigned n = 0; n < block_count; n++) {
        void *segment = blocks[n].segment;
        if (segment == NULL || blocks[n].at != segment) continue;
        int in_use = 0;
        size_t bytes = 0;
        for (unsigned m = 0; m < block_count; m++) {
            if (blocks[m].segment != segment) continue;
            in_use |= blocks[m].used || blocks[m].pending;
            bytes += blocks[m].bytes;
        }
        if (in_use) continue;
        MUST(hipFree(segment));
        reserved -= bytes;
        segments--;
        for (unsigned m = 0; m < block_count; m++)
            if (blocks[m].segment == segment) memset(&blocks[m], 0, sizeof blocks[m]);
    }
}

/* Other threads may be capturing: an allocation that is not part of their graphs is allowed in the relaxed mode. */
static hipError_t allocate_segment(void **out, size_t bytes) {
    hipStreamCaptureMode mode = hipStreamCaptureModeRelaxed;
    MUST(hipThreadExchangeStreamCaptureMode(&mode));
    hipError_t error = hipMalloc(out, bytes);
    MUST(hipThreadExchangeStreamCaptureMode(&mode));
    return error;
}

void *c10_allocate(size_t requested, hipStream_t stream) {
    size_t bytes = (requested + 511) / 512 * 512, segment_bytes = (bytes + SMALL_SEGMENT - 1) / SMALL_SEGMENT * SMALL_SEGMENT;
    if (bytes <= SMALL_SIZE) segment_bytes = SMALL_SEGMENT;
    else if (bytes < MAX_IN_LARGE_SEGMENT) segment_bytes = LARGE_SEGMENT;
    c10_lazy_init();
    pthread_mutex_lock(&memory_lock);
    process_events();
    struct block *best = NULL;
    for (unsigned n = 0; n < block_count; n++) {
        struct block *block = &blocks[n];
        if (block->at == NULL || block->used || block->pending || block->stream != stream || block->bytes < bytes) continue;
        if (best == NULL || block->bytes < best->bytes) best = block;
    }
    if (best == NULL) {
        void *segment = NULL;
        hipError_t error = allocate_segment(&segment, segment_bytes);
        if (error == hipErrorOutOfMemory) {
            (void)hipGetLastError();
            retries++;
            release_cached();
            error = allocate_segment(&segment, segment_bytes);
        }
        if (error == hipErrorOutOfMemory) {
            (void)hipGetLastError();
            pthread_mutex_unlock(&memory_lock);
            return NULL;
        }
        MUST(error);
        best = add_block();
        *best = (struct block){segment, segment_bytes, segment, 0, stream, NULL};
        segments++;
        reserved += segment_bytes;
    }
    if (best->bytes > bytes) {
        struct block *rest = add_block();
        *rest = (struct block){best->at + bytes, best->bytes - bytes, best->segment, 0, stream, NULL};
        best->bytes = bytes;
    }
    best->used = 1;
    pthread_mutex_unlock(&memory_lock);
    return best->at;
}

static struct block *find_block(const void *memory) {
    for (unsigned n = 0; n < block_count; n++)
        if (blocks[n].at == memory && blocks[n].used) return &blocks[n];
    exit(72);
}

void c10_free(void *memory) {
    pthread_mutex_lock(&memory_lock);
    find_block(memory)->used = 0;
    pthread_mutex_unlock(&memory_lock);
}

void c10_record_stream(void *memory, hipStream_t stream) {
    pthread_mutex_lock(&memory_lock);
    struct block *block = find_block(memory);
    if (block->pending == NULL) MUST(hipEventCreateWithFlags(&block->pending, hipEventDisableTiming));
    MUST(hipEventRecord(block->pending, stream));
    pthread_mutex_unlock(&memory_lock);
}

void c10_empty_cache(void) {
    pthread_mutex_lock(&memory_lock);
    release_cached();
    pthread_mutex_unlock(&memory_lock);
}

void c10_memory_statistics(unsigned *out_segments, unsigned *out_retries, size_t *out_reserved) {
    pthread_mutex_lock(&memory_lock);
    *out_segments = segments, *out_retries = retries, *out_reserved = reserved;
    pthread_mutex_unlock(&memory_lock);
}

/* Pinned memory: blocks of powers of two, reused when the copy that used them has completed. */
static struct pinned { void *at; size_t bytes; int used; hipEvent_t pending; } pinned[64];
static pthread_mutex_t pinned_lock = PTHREAD_MUTEX_INITIALIZER;

void *c10_allocate_pinned(size_t requested) {
    size_t bytes = 4096;
    while (bytes < requested) bytes *= 2;
    c10_lazy_init();
    pthread_mutex_lock(&pinned_lock);
    struct pinned *found = NULL;
    for (unsigned n = 0; n < 64 && found == NULL; n++) {
        if (pinned[n].at == NULL) {
            MUST(hipHostMalloc(&pinned[n].at, bytes, hipHostMallocDefault));
            pinned[n].bytes = bytes;
            found = &pinned[n];
        } else if (!pinned[n].used && pinned[n].bytes == bytes) {
            hipError_t error = pinned[n].pending ? hipEventQuery(pinned[n].pending) : hipSuccess;
            if (error == hipErrorNotReady) (void)hipGetLastError();
            else found = &pinned[n];
        }
    }
    if (found == NULL) exit(73);
    found->used = 1;
    pthread_mutex_unlock(&pinned_lock);
    return found->at;
}

void c10_free_pinned(void *memory, hipStream_t stream) {
    pthread_mutex_lock(&pinned_lock);
    for (unsigned n = 0; n < 64; n++) {
        if (pinned[n].at != memory) continue;
        if (pinned[n].pending == NULL) MUST(hipEventCreateWithFlags(&pinned[n].pending, hipEventDisableTiming));
        MUST(hipEventRecord(pinned[n].pending, stream));
        pinned[n].used = 0;
    }
    pthread_mutex_unlock(&pinned_lock);
}
