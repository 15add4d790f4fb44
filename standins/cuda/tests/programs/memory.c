/*
 * Device memory in all its forms, compared with a model of what is in use. The expected amounts are those of the driver, or of a
 * library that counts for it, to one page.
 *
 *   memory forms               every way to allocate and to free memory
 *   memory random SEED STEPS   a random sequence of them
 *   memory limit               allocates until the device is full; prints how much that was, in MiB
 *   memory threads THREADS     the same amounts from several threads
 *   memory contexts            memory ends with its context
 *   memory family              a child after fork cannot use the memory of its parent
 *   memory info                prints the sizes that the driver and the management library report, in MiB
 *   memory time ROUNDS BYTES   prints the time of an allocation and a free, in ns
 */
#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include "gpu.h"

enum { SLOTS = 24, OUT_OF_MEMORY = 2 };
static const size_t MIB = 1 << 20, PAGE = 2 << 20;
static const CUmemAllocationProp PHYSICAL = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
static const CUmemAccessDesc ACCESS = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

static CUmemoryPool default_pool, own_pool;
static size_t total, used_before;

static size_t up(size_t size, size_t step) { return (size + step - 1) / step * step; }

/* What the driver allocates for so many bytes. */
static size_t taken(size_t size) { return size > MIB ? up(size, PAGE) : up(size, 512); }

static size_t in_use(void) {
    size_t left, all;
    MUST(cuMemGetInfo_v2(&left, &all));
    EXPECT(all == total && left <= all);
    return all - left;
}

static size_t reserved(CUmemoryPool pool) {
    uint64_t bytes = 0;
    if (pool != NULL) MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes));
    return bytes;
}

/* What a pool has reserved and the program does not use: the library gives it back before it refuses memory. */
static size_t spare(CUmemoryPool pool) {
    uint64_t used = 0;
    MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    return reserved(pool) - used;
}

/* Each form allocates `bytes` or fails; what it has allocated is `counted`. */
enum form { PLAIN, PITCH, MANAGED, ARRAY, ARRAY_3D, MIPMAPPED, CREATED, MAPPED, ASYNC, FROM_POOL, FORMS };

struct memory {
    enum form form;
    CUdeviceptr address;
    void *array;
    CUmemGenericAllocationHandle handle;
    size_t bytes, counted;
    uint32_t word;
};

/* How much the form counts besides the reserve of the pools. */
static size_t counted(enum form form, size_t bytes) {
    switch (form) {
        case PITCH: return taken(up(bytes / 64, 512) * 64);
        case MIPMAPPED: return taken(bytes + bytes / 4);
        case CREATED: case MAPPED: return up(bytes, PAGE);
        case ASYNC: case FROM_POOL: return 0;
        default: return taken(bytes);
    }
}

static CUresult allocate(struct memory *m, enum form form, size_t bytes, uint32_t word) {
    CUDA_ARRAY_DESCRIPTOR flat = {bytes / 1024, 256, CU_AD_FORMAT_UNSIGNED_INT8, 4};
    CUDA_ARRAY3D_DESCRIPTOR deep = {bytes / 1024, 16, 16, CU_AD_FORMAT_FLOAT, 1, 0};
    CUDA_ARRAY3D_DESCRIPTOR levels = {bytes / 1024, 256, 0, CU_AD_FORMAT_HALF, 2, 0};
    size_t pitch;
    CUresult result;
    *m = (struct memory){.form = form, .bytes = bytes, .counted = counted(form, bytes), .word = word};
    switch (form) {
        case PLAIN: result = cuMemAlloc_v2(&m->address, bytes); break;
        case PITCH: result = cuMemAllocPitch_v2(&m->address, &pitch, bytes / 64, 64, 4); break;
        case MANAGED: result = cuMemAllocManaged(&m->address, bytes, CU_MEM_ATTACH_GLOBAL); break;
        case ARRAY: return cuArrayCreate_v2((CUarray *)&m->array, &flat);
        case ARRAY_3D: return cuArray3DCreate_v2((CUarray *)&m->array, &deep);
        case MIPMAPPED: return cuMipmappedArrayCreate((CUmipmappedArray *)&m->array, &levels, 2);
        case CREATED: return cuMemCreate(&m->handle, m->counted, &PHYSICAL, 0);
        case MAPPED:
            result = cuMemCreate(&m->handle, m->counted, &PHYSICAL, 0);
            if (result != 0) break;
            MUST(cuMemAddressReserve(&m->address, m->counted, 0, 0, 0));
            MUST(cuMemMap(m->address, m->counted, 0, m->handle, 0));
            MUST(cuMemSetAccess(m->address, m->counted, &ACCESS, 1));
            /* Half of the programs keep the handle, half rely on the mapping. */
            if (word % 2 == 0) MUST(cuMemRelease(m->handle));
            break;
        case ASYNC: result = cuMemAllocAsync(&m->address, bytes, NULL); break;
        case FROM_POOL: result = cuMemAllocFromPoolAsync(&m->address, bytes, own_pool, NULL); break;
        default: return 1;
    }
    if (result == 0) {
        MUST(cuMemsetD32_v2(m->address, word, 1));
        MUST(cuMemsetD32_v2(m->address + bytes / 4 * 4 - 4, word, 1));
    }
    return result;
}

static void release(struct memory *m) {
    if (m->address != 0) {
        uint32_t first, last;
        MUST(cuMemcpyDtoH_v2(&first, m->address, sizeof first));
        MUST(cuMemcpyDtoH_v2(&last, m->address + m->bytes / 4 * 4 - 4, sizeof last));
        EXPECT(first == m->word && last == m->word);
    }
    switch (m->form) {
        case ARRAY: case ARRAY_3D: MUST(cuArrayDestroy(m->array)); break;
        case MIPMAPPED: MUST(cuMipmappedArrayDestroy(m->array)); break;
        case CREATED: MUST(cuMemRelease(m->handle)); break;
        case MAPPED: {
            CUmemGenericAllocationHandle again;
            MUST(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(m->address + PAGE / 2)));
            EXPECT(again == m->handle);
            MUST(cuMemUnmap(m->address, m->counted));
            MUST(cuMemAddressFree(m->address, m->counted));
            MUST(cuMemRelease(again));
            if (m->word % 2 != 0) MUST(cuMemRelease(m->handle));
            break;
        }
        case ASYNC: case FROM_POOL:
            if (m->word % 2 == 0) MUST(cuMemFree_v2(m->address));
            else {
                MUST(cuMemFreeAsync(m->address, NULL));
                MUST(cuStreamSynchronize(NULL));
            }
            break;
        default: MUST(cuMemFree_v2(m->address));
    }
    *m = (struct memory){0};
}

static void expect_in_use(size_t model) {
    size_t expected = used_before + model + reserved(default_pool) + reserved(own_pool), actual = in_use();
    if (actual + PAGE < expected || actual > expected + PAGE) {
        fprintf(stderr, "%zu bytes in use, not %zu\n", actual, expected);
        exit(70);
    }
}

static void open_pools(void) {
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    uint64_t keep = UINT64_MAX;
    MUST(cuDeviceGetDefaultMemPool(&default_pool, 0));
    MUST(cuMemPoolCreate(&own_pool, &properties));
    MUST(cuMemPoolSetAttribute(own_pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
}

static void graph_memory(void) {
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr address;
    uint64_t bytes = 0;
    size_t before = in_use();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    MUST(cuMemAllocAsync(&address, 48 * MIB, stream));
    MUST(fill(stream, 1000, address, 7, 16));
    MUST(cuMemFreeAsync(address, stream));
    MUST(cuStreamEndCapture(stream, &graph));
    EXPECT(in_use() == before);
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    MUST(cuGraphLaunch(exec, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes));
    EXPECT(bytes == 48 * MIB && in_use() == before + bytes);
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
    MUST(cuDeviceGraphMemTrim(0));
    EXPECT(in_use() == before);
    MUST(cuStreamDestroy_v2(stream));
}

static void forms(void) {
    static const size_t SIZES[] = {64 << 10, 3 << 20, 40 << 20};
    struct memory m;
    open_pools();
    for (int form = 0; form < FORMS; form++)
        for (int n = 0; n < 6; n++) {
            MUST(allocate(&m, form, SIZES[n % 3], 100 + n));
            expect_in_use(m.counted);
            release(&m);
            expect_in_use(0);
        }
    /* The pool of the program keeps its memory until it is trimmed. */
    EXPECT(reserved(own_pool) >= 40 * MIB);
    MUST(cuMemPoolTrimTo(own_pool, 0));
    EXPECT(reserved(own_pool) == 0);
    expect_in_use(0);
    /* The pool that the device uses by default can be replaced. */
    MUST(cuDeviceSetMemPool(0, own_pool));
    MUST(allocate(&m, ASYNC, 3 * MIB, 1));
    EXPECT(reserved(own_pool) >= 3 * MIB);
    expect_in_use(0);
    release(&m);
    MUST(cuMemPoolDestroy(own_pool));
    own_pool = NULL;
    expect_in_use(0);
    graph_memory();
    /* What fails changes nothing. */
    EXPECT(cuMemFree_v2(0x1234) != 0);
    MUST(cuMemFree_v2(0));
    EXPECT(cuMemAlloc_v2(&m.address, 0) != 0);
    EXPECT(cuMemAlloc_v2(NULL, 100) != 0);
    EXPECT(cuMemCreate(&m.handle, 100, &PHYSICAL, 0) != 0);
    EXPECT(cuMemCreate(&m.handle, PAGE, NULL, 0) != 0);
    EXPECT(cuMemRelease(0x1234) != 0);
    EXPECT(cuArrayCreate_v2((CUarray *)&m.array, NULL) != 0);
    EXPECT(cuArrayDestroy(NULL) != 0);
    EXPECT_RESULT(OUT_OF_MEMORY, cuMemAlloc_v2(&m.address, total + PAGE));
    EXPECT_RESULT(OUT_OF_MEMORY, cuMemAlloc_v2(&m.address, SIZE_MAX - 10));
    EXPECT_RESULT(OUT_OF_MEMORY, cuMemAllocAsync(&m.address, total + PAGE, NULL));
    EXPECT_RESULT(OUT_OF_MEMORY, cuMemAllocPitch_v2(&m.address, &m.bytes, SIZE_MAX / 2, 8, 4));
    expect_in_use(0);
}

static void random_sequence(unsigned seed, int steps) {
    struct memory all[SLOTS] = {0};
    size_t model = 0;
    int refused = 0;
    open_pools();
    for (int step = 0; step < steps; step++) {
        struct memory *m = &all[rand_r(&seed) % SLOTS], added;
        if (m->bytes != 0) {
            model -= m->counted;
            release(m);
        } else {
            enum form form = rand_r(&seed) % FORMS;
            size_t bytes = (1 + rand_r(&seed) % 1024) << (10 + rand_r(&seed) % 8);
            size_t needed = form == ASYNC || form == FROM_POOL ? bytes : counted(form, bytes), before = in_use();
            size_t unused = spare(default_pool) + spare(own_pool);
            CUresult result = allocate(&added, form, bytes, (uint32_t)step);
            if (result == 0) {
                EXPECT(before + needed <= total + unused + 2 * PAGE);
                *m = added;
                model += m->counted;
            } else {
                EXPECT(result == OUT_OF_MEMORY && before + needed + PAGE > total);
                refused++;
            }
        }
        expect_in_use(model);
    }
    for (int n = 0; n < SLOTS; n++)
        if (all[n].bytes != 0) release(&all[n]);
    MUST(cuMemPoolTrimTo(own_pool, 0));
    MUST(cuMemPoolTrimTo(default_pool, 0));
    expect_in_use(0);
    fprintf(stderr, "%d of %d steps were refused\n", refused, steps);
    EXPECT(refused > 0);
}

/* Returns how many pages could be allocated. */
static size_t fill_device(CUdeviceptr *pages, size_t most) {
    size_t count = 0;
    while (count < most && cuMemAlloc_v2(&pages[count], PAGE) == 0) count++;
    return count;
}

static void limit(void) {
    CUdeviceptr *pages = calloc(total / PAGE + 2, sizeof *pages), more;
    CUmemGenericAllocationHandle handle;
    size_t count = fill_device(pages, total / PAGE + 2);
    EXPECT_RESULT(OUT_OF_MEMORY, cuMemAlloc_v2(&more, PAGE));
    EXPECT_RESULT(OUT_OF_MEMORY, cuMemCreate(&handle, PAGE, &PHYSICAL, 0));
    EXPECT_RESULT(OUT_OF_MEMORY, cuMemAllocAsync(&more, PAGE, NULL));
    EXPECT_RESULT(OUT_OF_MEMORY, cuMemAllocManaged(&more, PAGE, CU_MEM_ATTACH_GLOBAL));
    EXPECT(total - in_use() < PAGE);
    /* Free memory can be allocated again, in another form. */
    MUST(cuMemFree_v2(pages[count - 1]));
    MUST(cuMemCreate(&handle, PAGE, &PHYSICAL, 0));
    EXPECT_RESULT(OUT_OF_MEMORY, cuMemAlloc_v2(&more, PAGE));
    MUST(cuMemRelease(handle));
    MUST(cuMemAlloc_v2(&pages[count - 1], PAGE));
    for (size_t n = 0; n < count; n++) MUST(cuMemFree_v2(pages[n]));
    EXPECT(in_use() == used_before);
    printf("%zu\n", count * PAGE / MIB);
}

static CUcontext shared_context;
static volatile size_t allocated;

static void *allocate_and_free(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument;
    struct memory all[8] = {0};
    MUST(cuCtxSetCurrent(shared_context));
    for (int step = 0; step < 400; step++) {
        struct memory *m = &all[rand_r(&seed) % 8];
        size_t bytes = (size_t)(1 + rand_r(&seed) % 8) * PAGE;
        if (m->bytes != 0) {
            /* Subtracted before it is free, added after it was allocated: never more than is allocated. */
            __atomic_sub_fetch(&allocated, m->counted, __ATOMIC_SEQ_CST);
            release(m);
        } else {
            CUresult result = allocate(m, step % 3 == 0 ? CREATED : PLAIN, bytes, (uint32_t)step);
            EXPECT(result == 0 || result == OUT_OF_MEMORY);
            if (result != 0) *m = (struct memory){0};
            else EXPECT(__atomic_add_fetch(&allocated, m->counted, __ATOMIC_SEQ_CST) <= total);
        }
    }
    for (int n = 0; n < 8; n++)
        if (all[n].bytes != 0) {
            __atomic_sub_fetch(&allocated, all[n].counted, __ATOMIC_SEQ_CST);
            release(&all[n]);
        }
    return NULL;
}

static void threads(int count) {
    pthread_t all[64];
    MUST(cuCtxGetCurrent(&shared_context));
    for (int n = 0; n < count; n++) EXPECT(pthread_create(&all[n], NULL, allocate_and_free, (void *)(uintptr_t)(n + 1)) == 0);
    for (int n = 0; n < count; n++) pthread_join(all[n], NULL);
    EXPECT(allocated == 0 && in_use() == used_before);
}

static void contexts(void) {
    CUcontext primary, own;
    CUdeviceptr address;
    CUarray array;
    CUmemGenericAllocationHandle handle;
    CUDA_ARRAY_DESCRIPTOR flat = {4096, 4096, CU_AD_FORMAT_UNSIGNED_INT8, 4};
    MUST(cuCtxGetCurrent(&primary));
    for (int round = 0; round < 3; round++) {
        MUST(cuMemAlloc_v2(&address, 10 * MIB));
        MUST(cuCtxCreate_v2(&own, 0, 0));
        MUST(cuMemAlloc_v2(&address, 20 * MIB));
        MUST(cuArrayCreate_v2(&array, &flat));
        MUST(cuMemCreate(&handle, 8 * MIB, &PHYSICAL, 0));
        EXPECT(in_use() - used_before == (10 + 20 + 64 + 8) * MIB);
        MUST(cuCtxDestroy_v2(own));
        MUST(cuCtxSetCurrent(primary));
        /* Physical memory belongs to no context. */
        EXPECT(in_use() - used_before == (10 + 8) * MIB);
        MUST(cuMemRelease(handle));
        EXPECT(in_use() - used_before == 10 * MIB);
        if (round == 0) MUST(cuDevicePrimaryCtxReset_v2(0));
        MUST(cuDevicePrimaryCtxRelease_v2(0));
        MUST(cuDevicePrimaryCtxRetain(&primary, 0));
        MUST(cuCtxSetCurrent(primary));
        EXPECT(in_use() == used_before);
    }
}

static void family(void) {
    CUdeviceptr address;
    CUmemGenericAllocationHandle handle;
    size_t left, all;
    int status;
    MUST(cuMemAlloc_v2(&address, 10 * MIB));
    MUST(cuMemCreate(&handle, 2 * MIB, &PHYSICAL, 0));
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        alarm(20);
        EXPECT_RESULT(3, cuMemFree_v2(address));
        EXPECT_RESULT(3, cuMemRelease(handle));
        EXPECT_RESULT(3, cuMemAlloc_v2(&address, PAGE));
        EXPECT_RESULT(3, cuMemGetInfo_v2(&left, &all));
        _exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT(in_use() - used_before == 12 * MIB);
    MUST(cuMemRelease(handle));
    MUST(cuMemFree_v2(address));
}

static void *management(const char *name) {
    static void *library;
    if (library == NULL) library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    void *found = library == NULL ? NULL : dlsym(library, name);
    EXPECT(found != NULL);
    return found;
}

static void info(void) {
    size_t left, all, of_device;
    CUdeviceptr address;
    nvmlDevice_t device;
    nvmlMemory_t first;
    nvmlMemory_v2_t second = {.version = nvmlMemory_v2};
    MUST(cuMemAlloc_v2(&address, 100 * MIB));
    MUST(cuMemGetInfo_v2(&left, &all));
    MUST(cuDeviceTotalMem_v2(&of_device, 0));
    printf("%zu %zu %zu\n", of_device / MIB, all / MIB, left / MIB);
    MUST(((__typeof__(nvmlInit_v2) *)management("nvmlInit_v2"))());
    MUST(((__typeof__(nvmlDeviceGetHandleByIndex_v2) *)management("nvmlDeviceGetHandleByIndex_v2"))(0, &device));
    MUST(((__typeof__(nvmlDeviceGetMemoryInfo) *)management("nvmlDeviceGetMemoryInfo"))(device, &first));
    printf("%llu %llu %llu\n", first.total / MIB, first.free / MIB, first.used / MIB);
    MUST(((__typeof__(nvmlDeviceGetMemoryInfo_v2) *)management("nvmlDeviceGetMemoryInfo_v2"))(device, &second));
    printf("%llu %llu %llu\n", second.total / MIB, second.free / MIB, second.used / MIB);
    second.version = 0;
    EXPECT(((__typeof__(nvmlDeviceGetMemoryInfo_v2) *)management("nvmlDeviceGetMemoryInfo_v2"))(device, &second) == 25);
}

static void measure(int rounds, size_t bytes) {
    CUdeviceptr address;
    uint64_t begin = now_ns();
    for (int n = 0; n < rounds; n++) {
        MUST(cuMemAlloc_v2(&address, bytes));
        MUST(cuMemFree_v2(address));
    }
    printf("%llu\n", (unsigned long long)(now_ns() - begin) / rounds);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    size_t left;
    open_gpu();
    MUST(cuMemGetInfo_v2(&left, &total));
    used_before = total - left;
    if (strcmp(what, "forms") == 0) forms();
    else if (strcmp(what, "random") == 0 && argc > 3) random_sequence((unsigned)atoi(argv[2]), atoi(argv[3]));
    else if (strcmp(what, "limit") == 0) limit();
    else if (strcmp(what, "threads") == 0 && argc > 2) threads(atoi(argv[2]));
    else if (strcmp(what, "contexts") == 0) contexts();
    else if (strcmp(what, "family") == 0) family();
    else if (strcmp(what, "info") == 0) info();
    else if (strcmp(what, "time") == 0 && argc > 3) measure(atoi(argv[2]), strtoull(argv[3], NULL, 10));
    else return 64;
    printf("done\n");
    return 0;
}
