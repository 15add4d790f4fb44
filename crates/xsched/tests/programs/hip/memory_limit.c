/*
 * Allocates device memory in every form, with a limit of LIMIT bytes.
 *
 *   forms            the memory that each form adds, in MiB, and what is left of it after the free
 *   refusals         how much can be allocated, and how each form fails beyond it
 *   sizes            the size of the device, by every function that reports it
 *   reset            the memory in use before and after hipDeviceReset
 *   random SEED      random allocations and frees of four threads, compared with a model
 *   codes            the results and the last errors of allocations that any device satisfies, or none
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct ihipStream_t *hipStream_t;
typedef struct { void *address; size_t pitch, width, height; } hipPitchedPtr;
typedef struct { size_t width, height, depth; } hipExtent;
typedef struct { int bits[4], kind; } hipChannelFormatDesc;
typedef struct { size_t width, height; int format; unsigned channels; } HIP_ARRAY_DESCRIPTOR;
typedef struct { size_t width, height, depth; int format; unsigned channels, flags; } HIP_ARRAY3D_DESCRIPTOR;
typedef struct { int type, handle, location_type, location; void *metadata; char flags[4]; } hipMemAllocationProp;
typedef struct { int location_type, location, access; } hipMemAccessDesc;

#define FUNCTIONS(HIP) \
    HIP(hipGetLastError, (void)) \
    HIP(hipPeekAtLastError, (void)) \
    HIP(hipMalloc, (void **, size_t)) \
    HIP(hipExtMallocWithFlags, (void **, size_t, unsigned)) \
    HIP(hipMallocManaged, (void **, size_t, unsigned)) \
    HIP(hipMallocAsync, (void **, size_t, hipStream_t)) \
    HIP(hipMallocPitch, (void **, size_t *, size_t, size_t)) \
    HIP(hipMemAllocPitch, (void **, size_t *, size_t, size_t, unsigned)) \
    HIP(hipMalloc3D, (hipPitchedPtr *, hipExtent)) \
    HIP(hipMallocArray, (void **, const hipChannelFormatDesc *, size_t, size_t, unsigned)) \
    HIP(hipMalloc3DArray, (void **, const hipChannelFormatDesc *, hipExtent, unsigned)) \
    HIP(hipArrayCreate, (void **, const HIP_ARRAY_DESCRIPTOR *)) \
    HIP(hipArray3DCreate, (void **, const HIP_ARRAY3D_DESCRIPTOR *)) \
    HIP(hipFree, (void *)) \
    HIP(hipFreeAsync, (void *, hipStream_t)) \
    HIP(hipFreeArray, (void *)) \
    HIP(hipArrayDestroy, (void *)) \
    HIP(hipMemCreate, (void **, size_t, const hipMemAllocationProp *, unsigned long long)) \
    HIP(hipMemRelease, (void *)) \
    HIP(hipMemAddressReserve, (void **, size_t, size_t, void *, unsigned long long)) \
    HIP(hipMemAddressFree, (void *, size_t)) \
    HIP(hipMemMap, (void *, size_t, size_t, void *, unsigned long long)) \
    HIP(hipMemUnmap, (void *, size_t)) \
    HIP(hipMemGetInfo, (size_t *, size_t *)) \
    HIP(hipDeviceTotalMem, (size_t *, int)) \
    HIP(hipGetDevicePropertiesR0600, (void *, int)) \
    HIP(hipGetDevicePropertiesR0000, (void *, int)) \
    HIP(hipStreamCreateWithFlags, (hipStream_t *, unsigned)) \
    HIP(hipStreamSynchronize, (hipStream_t)) \
    HIP(hipDeviceSynchronize, (void)) \
    HIP(hipDeviceReset, (void))

#ifdef LOOK_UP
#include <dlfcn.h>
#define HIP(name, arguments) static int (*name) arguments;
FUNCTIONS(HIP)
#undef HIP
static void look_up(void) {
    void *runtime = dlopen("libamdhip64.so.6", RTLD_NOW | RTLD_LOCAL);
#define HIP(name, arguments) \
    if (runtime == NULL || (name = (int (*) arguments)dlsym(runtime, #name)) == NULL) exit(70);
    FUNCTIONS(HIP)
#undef HIP
}
#else
#define HIP(name, arguments) int name arguments;
FUNCTIONS(HIP)
#undef HIP
static void look_up(void) {}
#endif

enum { MIB = 1 << 20, OUT_OF_MEMORY = 2, NOT_SUPPORTED = 801 };
#define SIZE ((size_t)8 * MIB)

static void must(int code, const char *what) {
    if (code != 0) {
        printf("%s: error %d\n", what, code);
        exit(70);
    }
}
#define MUST(call) must(call, #call)

static size_t used(void) {
    size_t left, total;
    MUST(hipMemGetInfo(&left, &total));
    return total - left;
}

static hipStream_t stream;
static const hipChannelFormatDesc FLOAT = {{32, 0, 0, 0}, 2};

/* Each form allocates `size` bytes, a multiple of 4 MiB. */
static int plain(void **out, size_t size) { return hipMalloc(out, size); }
static int fine_grained(void **out, size_t size) { return hipExtMallocWithFlags(out, size, 1); }
static int managed(void **out, size_t size) { return hipMallocManaged(out, size, 1); }
static int on_stream(void **out, size_t size) { return hipMallocAsync(out, size, stream); }
static int pitched(void **out, size_t size) { size_t pitch; return hipMallocPitch(out, &pitch, 4096, size / 4096); }
static int pitched_elements(void **out, size_t size) { size_t pitch; return hipMemAllocPitch(out, &pitch, 4096, size / 4096, 4); }
static int rows_3d(void **out, size_t size) {
    hipPitchedPtr found;
    int code = hipMalloc3D(&found, (hipExtent){4096, 16, size / 4096 / 16});
    if (code == 0) *out = found.address;
    return code;
}
static int array(void **out, size_t size) { return hipMallocArray(out, &FLOAT, 1024, size / 4096, 0); }
static int array_3d(void **out, size_t size) { return hipMalloc3DArray(out, &FLOAT, (hipExtent){1024, 64, size / 4096 / 64}, 0); }
static int described(void **out, size_t size) { HIP_ARRAY_DESCRIPTOR of = {1024, size / 4096, 0x20, 1}; return hipArrayCreate(out, &of); }
static int described_3d(void **out, size_t size) { HIP_ARRAY3D_DESCRIPTOR of = {1024, 64, size / 4096 / 64, 0x20, 1, 0}; return hipArray3DCreate(out, &of); }
static int physical(void **out, size_t size) {
    hipMemAllocationProp of = {.type = 1, .location_type = 1};
    return hipMemCreate(out, size, &of, 0);
}
static int free_on_stream(void *memory) {
    int code = hipFreeAsync(memory, stream);
    MUST(hipStreamSynchronize(stream));
    return code;
}
static int free_plain(void *memory) { return hipFree(memory); }
static int free_array(void *memory) { return hipFreeArray(memory); }
static int destroy_array(void *memory) { return hipArrayDestroy(memory); }
static int release(void *handle) { return hipMemRelease(handle); }

static const struct { const char *name; int (*allocate)(void **, size_t), (*free)(void *); } FORMS[] = {
    {"hipMalloc", plain, free_plain}, {"hipExtMallocWithFlags", fine_grained, free_plain}, {"hipMallocManaged", managed, free_plain},
    {"hipMallocAsync", on_stream, free_on_stream}, {"hipMallocPitch", pitched, free_plain}, {"hipMemAllocPitch", pitched_elements, free_plain},
    {"hipMalloc3D", rows_3d, free_plain}, {"hipMallocArray", array, free_array}, {"hipMalloc3DArray", array_3d, free_array},
    {"hipArrayCreate", described, destroy_array}, {"hipArray3DCreate", described_3d, destroy_array}, {"hipMemCreate", physical, release},
};
enum { FORM_COUNT = sizeof FORMS / sizeof *FORMS };

/* Memory that is released while it is mapped stays in use until it is unmapped. */
static void mapped(void) {
    void *handle, *address;
    int code = physical(&handle, SIZE);
    if (code == NOT_SUPPORTED) return;
    must(code, "create");
    MUST(hipMemAddressReserve(&address, SIZE, 0, NULL, 0));
    MUST(hipMemMap(address, SIZE, 0, handle, 0));
    MUST(hipMemRelease(handle));
    size_t while_mapped = used();
    MUST(hipMemUnmap(address, SIZE));
    printf("mapped: %zu MiB, then %zu\n", while_mapped / MIB, used() / MIB);
    MUST(hipMemAddressFree(address, SIZE));
}

static void forms(void) {
    for (int form = 0; form < FORM_COUNT; form++) {
        void *memory = NULL;
        int code = FORMS[form].allocate(&memory, SIZE);
        if (code == NOT_SUPPORTED) {
            hipGetLastError();
            continue;
        }
        size_t with = used();
        int freed = FORMS[form].free(memory);
        printf("%s: error %d, %zu MiB, then error %d, %zu\n", FORMS[form].name, code, with / MIB, freed, used() / MIB);
    }
    mapped();
    MUST(hipFree(NULL));
    void *nothing = &nothing;
    MUST(hipMalloc(&nothing, 0));
    printf("%zu\n", used());
}

static void refusals(void) {
    void *memory[1024];
    int count = 0, code;
    while (count < 1024 && (code = hipMalloc(&memory[count], MIB)) == 0) count++;
    int peeked = hipPeekAtLastError(), last = hipGetLastError();
    printf("%d MiB, then error %d, last error %d %d %d\n", count, code, peeked, last, hipGetLastError());
    for (int form = 0; form < FORM_COUNT; form++) {
        void *more = NULL;
        code = FORMS[form].allocate(&more, SIZE);
        last = hipGetLastError();
        if (code != NOT_SUPPORTED) printf("%s: error %d, last error %d\n", FORMS[form].name, code, last);
    }
    MUST(hipFree(memory[--count]));
    code = hipMalloc(&memory[count], MIB + 1);
    printf("1 MiB and 1 byte: error %d\n", code);
    hipGetLastError();
    MUST(hipMalloc(&memory[count++], MIB));
    while (count > 0) MUST(hipFree(memory[--count]));
    printf("%zu\n", used());
}

static void sizes(void) {
    static char properties[8192];
    size_t left, total, found;
    MUST(hipMemGetInfo(&left, &total));
    printf("%zu", total);
    MUST(hipDeviceTotalMem(&found, 0));
    printf(" %zu", found);
    MUST(hipGetDevicePropertiesR0600(properties, 0));
    memcpy(&found, properties + 288, sizeof found);
    printf(" %zu", found);
    MUST(hipGetDevicePropertiesR0000(properties, 0));
    memcpy(&found, properties + 256, sizeof found);
    printf(" %zu\n", found);
}

static void reset(void) {
    void *memory;
    MUST(hipMalloc(&memory, SIZE));
    size_t before = used();
    MUST(hipDeviceReset());
    printf("%zu MiB, then %zu\n", before / MIB, used() / MIB);
    MUST(hipMalloc(&memory, SIZE));
    printf("%zu MiB\n", used() / MIB);
}

enum { THREADS = 4, SLOTS = 8, STEPS = 400 };
static _Atomic size_t modelled;
static _Atomic long refused;

static void *allocate_and_free(void *argument) {
    uint64_t state = (uintptr_t)argument * 0x9e3779b97f4a7c15u + 1;
    struct { void *memory; size_t size; int form; } slots[SLOTS] = {{0}};
    for (int step = 0; step < STEPS; step++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        int slot = (int)(state % SLOTS);
        if (slots[slot].memory != NULL) {
            modelled -= slots[slot].size;
            MUST(FORMS[slots[slot].form].free(slots[slot].memory));
            slots[slot].memory = NULL;
            continue;
        }
        /* Forms that every runtime has. */
        slots[slot].form = state >> 20 & 1 ? 4 : 0;
        slots[slot].size = ((state >> 30) % 3 + 1) * 4096 * 256;
        int code = FORMS[slots[slot].form].allocate(&slots[slot].memory, slots[slot].size);
        if (code == OUT_OF_MEMORY) {
            refused++;
            slots[slot].memory = NULL;
            hipGetLastError();
        } else {
            must(code, "allocate");
            modelled += slots[slot].size;
        }
    }
    /* What is left stays allocated. */
    return NULL;
}

static void random_sequence(long seed) {
    pthread_t threads[THREADS];
    for (long n = 0; n < THREADS; n++) pthread_create(&threads[n], NULL, allocate_and_free, (void *)(uintptr_t)(seed * THREADS + n + 1));
    for (int n = 0; n < THREADS; n++) pthread_join(threads[n], NULL);
    printf("%s %s\n", refused > 0 ? "refused some" : "refused none", used() == modelled ? "same" : "different");
    if (used() != modelled) printf("%zu in use, %zu allocated\n", used(), modelled);
}

static void codes(void) {
    for (int form = 0; form < FORM_COUNT; form++) {
        void *memory = NULL;
        int code = FORMS[form].allocate(&memory, SIZE);
        printf("%s: %d %d", FORMS[form].name, code, hipGetLastError());
        if (code == 0) printf(", freed %d", FORMS[form].free(memory));
        code = FORMS[form].allocate(&memory, (size_t)1 << 44);
        printf(", too large %d %d\n", code, hipGetLastError());
    }
    printf("no address %d %d\n", hipMalloc(NULL, 64), hipGetLastError());
}

int main(int argc, char **argv) {
    if (argc < 2) return 64;
    look_up();
    MUST(hipStreamCreateWithFlags(&stream, 1));
    if (strcmp(argv[1], "forms") == 0) forms();
    else if (strcmp(argv[1], "refusals") == 0) refusals();
    else if (strcmp(argv[1], "sizes") == 0) sizes();
    else if (strcmp(argv[1], "reset") == 0) reset();
    else if (strcmp(argv[1], "random") == 0 && argc > 2) random_sequence(atol(argv[2]));
    else if (strcmp(argv[1], "codes") == 0) codes();
    else return 64;
    return 0;
}
