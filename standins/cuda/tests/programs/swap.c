/*
 * Device memory that may be moved to the host and back while the program runs. Every line is the same for plain memory.
 *
 *   swap random SEED STEPS   a random sequence of allocations, frees, launches, copies and queries, compared with a model
 *   swap queries             what the driver answers about addresses, and to invalid requests
 *   swap wait MIB            fills so much memory, prints "ready", and checks it when a line arrives
 *   swap rounds MIB ROUNDS   fills so much memory and adds to it in rounds of 1 ms
 */
#include <unistd.h>
#include "gpu.h"

enum { SLOTS = 6, WINDOWS = 4, WORDS = 1024, OUT_OF_MEMORY = 2 };
static const size_t MIB = 1 << 20;

struct slot {
    CUdeviceptr address;
    size_t size;
    /* Parts of the memory, and what has to be there. */
    size_t windows[WINDOWS];
    uint32_t expected[WINDOWS][WORDS];
};

static struct slot slots[SLOTS];
static uint32_t state, words[WORDS];

static uint32_t random_below(uint32_t limit) {
    state = state * 1664525 + 1013904223;
    return (uint32_t)((uint64_t)state * limit >> 32);
}

static void check_window(const struct slot *s, int window) {
    MUST(cuMemcpyDtoH_v2(words, s->address + s->windows[window], sizeof words));
    EXPECT(memcmp(words, s->expected[window], sizeof words) == 0);
}

static void check_all(const struct slot *s) {
    for (int window = 0; s->address != 0 && window < WINDOWS; window++) check_window(s, window);
}

static void allocate(struct slot *s) {
    static const size_t SIZES[] = {65536, 1 << 20, (1 << 20) + 4096, 3 << 20, 20 << 20, 65 << 20};
    s->size = SIZES[random_below(sizeof SIZES / sizeof *SIZES)];
    CUresult result = cuMemAlloc_v2(&s->address, s->size);
    printf("allocate %zu: %d\n", s->size, result);
    EXPECT(result == 0 || result == OUT_OF_MEMORY);
    if (result != 0) {
        s->address = 0;
        return;
    }
    EXPECT(s->address % 512 == 0);
    /* The first and the last words, some around a border of 64 MiB if there is one, and some before. */
    size_t last = s->size - sizeof words, border = 64 * MIB - 2048, middle = border < last ? border : last / 2 & ~3ul;
    size_t windows[] = {0, last, middle, middle / 2 & ~3ul};
    memcpy(s->windows, windows, sizeof windows);
    for (int window = 0; window < WINDOWS; window++) MUST(cuMemsetD32_v2(s->address + windows[window], 0, WORDS));
    memset(s->expected, 0, sizeof s->expected);
}

static void write_window(struct slot *s) {
    int window = (int)random_below(WINDOWS);
    uint32_t value = random_below(1000000), *expected = s->expected[window];
    CUdeviceptr at = s->address + s->windows[window];
    switch (random_below(5)) {
        case 0:
            MUST(fill(NULL, 10000, at, value, WORDS));
            for (int n = 0; n < WORDS; n++) expected[n] = value;
            break;
        case 1:
            MUST(add(NULL, 10000, at, at, value, WORDS));
            for (int n = 0; n < WORDS; n++) expected[n] += value;
            break;
        case 2:
            for (int n = 0; n < WORDS; n++) expected[n] = words[n] = value + (uint32_t)n;
            MUST(cuMemcpyHtoD_v2(at, words, sizeof words));
            break;
        case 3:
            MUST(cuMemsetD32Async(at, value, WORDS, NULL));
            for (int n = 0; n < WORDS; n++) expected[n] = value;
            break;
        default: {
            const struct slot *from = &slots[random_below(SLOTS)];
            if (from->address == 0 || from == s) return;
            MUST(cuMemcpyDtoD_v2(at, from->address + from->windows[0], sizeof words));
            memcpy(expected, from->expected[0], sizeof words);
        }
    }
    if (random_below(4) == 0) check_window(s, window);
}

static void query(const struct slot *s) {
    CUdeviceptr base = 0, inside = s->address + random_below((uint32_t)s->size);
    size_t size = 0;
    unsigned type = 0;
    MUST(cuMemGetAddressRange_v2(&base, &size, inside));
    EXPECT(base == s->address && size == s->size);
    MUST(cuPointerGetAttribute(&type, 2, inside));
    EXPECT(type == 2);
    EXPECT_RESULT(1, cuMemFree_v2(s->address + 512));
}

static void random_steps(uint32_t seed, int steps) {
    state = seed;
    for (int step = 0; step < steps; step++) {
        struct slot *s = &slots[random_below(SLOTS)];
        if (s->address == 0) {
            allocate(s);
        } else if (random_below(12) == 0) {
            check_all(s);
            MUST(cuMemFree_v2(s->address));
            s->address = 0;
        } else if (random_below(6) == 0) {
            query(s);
        } else {
            write_window(s);
        }
    }
    for (int n = 0; n < SLOTS; n++) {
        check_all(&slots[n]);
        MUST(cuMemFree_v2(slots[n].address));
    }
}

static void queries(CUcontext context) {
    static const size_t SIZES[] = {1000, 1 << 20, (2 << 20) + 1, 64 << 20, 200 << 20};
    for (size_t n = 0; n < sizeof SIZES / sizeof *SIZES; n++) {
        CUdeviceptr first, second, base = 0, start = 0, here = 0;
        size_t size = 0, range = 0, room_before, room, all;
        unsigned type = 0;
        uint64_t id = 0, id_inside = 0, other_id = 0;
        CUcontext of = NULL;
        MUST(cuMemGetInfo_v2(&room_before, &all));
        MUST(cuMemAlloc_v2(&first, SIZES[n]));
        MUST(cuMemAlloc_v2(&second, SIZES[n]));
        MUST(cuMemGetInfo_v2(&room, &all));
        CUdeviceptr inside = first + SIZES[n] / 2;
        MUST(cuMemGetAddressRange_v2(&base, &size, inside));
        MUST(cuMemGetAddressRange_v2(NULL, NULL, inside));
        MUST(cuPointerGetAttribute(&type, 2, inside));
        MUST(cuPointerGetAttribute(&of, 1, inside));
        MUST(cuPointerGetAttribute(&id, 7, first));
        MUST(cuPointerGetAttribute(&other_id, 7, second));
        int which[] = {10, 11, 3, 7};
        void *results[] = {&start, &range, &here, &id_inside};
        MUST(cuPointerGetAttributes(4, which, results, inside));
        CUmemGenericAllocationHandle handle;
        printf("%zu: aligned %d, base %d, size %zu, type %u, context %d, ids %d %d, start %d, range %zu, here %d, taken %zu\n",
               SIZES[n], first % 512 == 0 && second % 512 == 0, base == first, size, type, of == context, id == id_inside,
               id == other_id, start == first, range, here == inside, (room_before - room) / MIB);
        printf("  handle %d", cuMemRetainAllocationHandle(&handle, (void *)first));
        printf(", free inside %d", cuMemFree_v2(inside));
        printf(", free %d", cuMemFree_v2(first));
        printf(", again %d", cuMemFree_v2(first));
        printf(", second %d\n", cuMemFree_v2(second));
    }
    CUdeviceptr address = 1;
    size_t pitch = 0, left, all;
    printf("zero %d", cuMemAlloc_v2(&address, 0));
    printf(", null %d", cuMemAlloc_v2(NULL, 4 * MIB));
    printf(", too much %d", cuMemAlloc_v2(&address, (size_t)1 << 50));
    printf(", free of null %d", cuMemFree_v2(0));
    printf(", pitch %d", cuMemAllocPitch_v2(&address, &pitch, 1000, 5000, 4));
    printf(" %zu, free %d", pitch, cuMemFree_v2(address));
    printf(", element %d", cuMemAllocPitch_v2(&address, &pitch, 1000, 5000, 3));
    printf(", no pitch %d\n", cuMemAllocPitch_v2(&address, NULL, 1000, 5000, 4));
    MUST(cuMemAlloc_v2(&address, 4 * MIB));
    MUST(cuCtxSetCurrent(NULL));
    printf("no context %d\n", cuMemAlloc_v2(&address, 4 * MIB));
    MUST(cuCtxSetCurrent(context));
    MUST(cuDevicePrimaryCtxReset_v2(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemGetInfo_v2(&left, &all));
    printf("after a reset %zu MiB are in use\n", (all - left) / MIB);
}

static CUdeviceptr filled(size_t bytes) {
    CUdeviceptr address;
    CUresult result = cuMemAlloc_v2(&address, bytes);
    if (result != 0) {
        printf("allocation failed: %d\n", result);
        exit(3);
    }
    for (size_t at = 0; at < bytes; at += MIB) MUST(fill(NULL, 1000, address + at, (uint32_t)(at / MIB), WORDS));
    MUST(cuCtxSynchronize());
    return address;
}

static void check_filled(CUdeviceptr address, size_t bytes, uint32_t more) {
    for (size_t at = 0; at < bytes; at += MIB) {
        MUST(cuMemcpyDtoH_v2(words, address + at, sizeof words));
        for (int n = 0; n < WORDS; n++) EXPECT(words[n] == (uint32_t)(at / MIB) + more);
    }
}

int main(int count, char **argument) {
    EXPECT(count >= 2);
    setvbuf(stdout, NULL, _IOLBF, 0);
    CUcontext context = open_gpu();
    if (strcmp(argument[1], "random") == 0) {
        random_steps((uint32_t)atoi(argument[2]), atoi(argument[3]));
    } else if (strcmp(argument[1], "queries") == 0) {
        queries(context);
    } else if (strcmp(argument[1], "wait") == 0) {
        size_t bytes = (size_t)atoi(argument[2]) * MIB;
        CUdeviceptr address = filled(bytes);
        char line[16];
        puts("ready");
        EXPECT(fgets(line, sizeof line, stdin) != NULL);
        check_filled(address, bytes, 0);
    } else {
        size_t bytes = (size_t)atoi(argument[2]) * MIB;
        uint32_t rounds = (uint32_t)atoi(argument[3]);
        CUdeviceptr address = filled(bytes);
        puts("ready");
        for (uint32_t round = 0; round < rounds; round++) {
            for (size_t at = 0; at < bytes; at += MIB) {
                MUST(add(NULL, 1000000 / (bytes / MIB), address + at, address + at, 1, WORDS));
            }
            MUST(cuCtxSynchronize());
        }
        check_filled(address, bytes, rounds);
    }
    puts("done");
    return 0;
}
