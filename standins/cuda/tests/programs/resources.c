/* The objects of a context in the resource manager, and the control calls on them. */
#include "manager.h"
#include "gpu.h"

enum { MS = 1000000 };

static void timeslices(void) {
    uint64_t us = 0;
    EXPECT_RESULT(0, control(seen.group, 0xa06c0104, &us, 8));
    EXPECT(us == 2048);
    EXPECT_RESULT(0, set_timeslice(77));
    EXPECT_RESULT(0, control(seen.group, 0xa06c0104, &us, 8));
    EXPECT(us == 77);
    EXPECT_RESULT(0x57, control(0xdead, 0xa06c0104, &us, 8));
    EXPECT_RESULT(0x56, control(seen.group, 0xa06c01ff, &us, 8));
    EXPECT_RESULT(0, set_timeslice(2048));
}

static void names(void) {
    uint32_t gpu;
    int slot;
    struct { uint32_t gpu, domain; uint16_t bus, slot; } place = {0};
    EXPECT_RESULT(0, control(seen.subdevice, 0x20800142, &gpu, 4));
    place.gpu = gpu;
    EXPECT_RESULT(0, control(seen.client, 0x21b, &place, sizeof place));
    MUST(cuDeviceGetAttribute(&slot, 34, 0));
    EXPECT(place.slot == slot);
}

/* A running kernel makes no progress while its channels are disabled, and completes after they are enabled. */
static void suspend(void) {
    CUstream stream;
    CUdeviceptr memory;
    uint32_t value;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemAlloc_v2(&memory, 64));
    MUST(cuMemsetD32_v2(memory, 0, 16));
    uint64_t begin = now_ns();
    MUST(fill(stream, 40 * MS, memory, 1, 16));
    sleep_until(begin + 10 * MS);
    EXPECT_RESULT(0, disable_channels(1));
    uint64_t stopped = now_ns();
    sleep_until(stopped + 150 * MS);
    EXPECT_RESULT(600, cuStreamQuery(stream));
    uint64_t resumed = now_ns();
    EXPECT_RESULT(0, disable_channels(0));
    MUST(cuStreamSynchronize(stream));
    uint64_t ended = now_ns();
    /* The stop took at most as long as the call. */
    EXPECT(ended - begin >= 40 * MS + (resumed - stopped));
    MUST(cuMemcpyDtoH_v2(&value, memory, 4));
    EXPECT(value == 1);
}

int main(int argc, char **argv) {
    open_gpu();
    if (argc > 1 && strcmp(argv[1], "none") == 0) {
        EXPECT(seen.groups == 0);
    } else if (argc > 1 && strcmp(argv[1], "refused") == 0) {
        EXPECT_RESULT(0x1b, set_timeslice(1));
    } else {
        EXPECT(seen.groups == 4 && seen.group != 0 && seen.count > 1 && seen.subdevice != 0);
        timeslices();
        names();
        suspend();
    }
    MUST(spin(NULL, MS));
    MUST(cuCtxSynchronize());
    puts("done");
    return 0;
}
