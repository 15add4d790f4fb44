/* Several devices, and several contexts on one. Needs two devices. */
#include "manager.h"
#include "gpu.h"

enum { MS = 1000000 };

/* How long two kernels of 60 ms take, one in each context. */
static uint64_t both(CUcontext first, CUcontext second) {
    CUcontext popped;
    uint64_t begin = now_ns();
    MUST(cuCtxPushCurrent_v2(first));
    MUST(spin(NULL, 60 * MS));
    MUST(cuCtxPushCurrent_v2(second));
    MUST(spin(NULL, 60 * MS));
    MUST(cuCtxSynchronize());
    MUST(cuCtxPopCurrent_v2(&popped));
    MUST(cuCtxSynchronize());
    MUST(cuCtxPopCurrent_v2(&popped));
    return now_ns() - begin;
}

int main(void) {
    int count, first_slot, second_slot;
    CUcontext first = open_gpu(), other, same;
    MUST(cuDeviceGetCount(&count));
    EXPECT(count == 2);
    MUST(cuDeviceGetAttribute(&first_slot, 34, 0));
    MUST(cuDeviceGetAttribute(&second_slot, 34, 1));
    EXPECT(first_slot != second_slot);
    MUST(cuCtxCreate_v2(&other, 0, 1));
    EXPECT(seen.groups == 8);
    MUST(cuCtxCreate_v2(&same, 0, 0));
    EXPECT(seen.groups == 12);
    uint64_t apart = both(first, other), together = both(first, same);
    EXPECT(together >= 120 * MS);
    EXPECT(4 * apart < 3 * together);

    /* A stream can wait for an event of another context. */
    CUevent event;
    CUdeviceptr memory;
    uint32_t value;
    MUST(cuCtxSetCurrent(first));
    MUST(cuMemAlloc_v2(&memory, 64));
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    MUST(fill(NULL, 30 * MS, memory, 5, 16));
    MUST(cuEventRecord(event, NULL));
    MUST(cuCtxSetCurrent(same));
    MUST(cuStreamWaitEvent(NULL, event, 0));
    MUST(add(NULL, 0, memory, memory, 1, 16));
    MUST(cuCtxSynchronize());
    MUST(cuMemcpyDtoH_v2(&value, memory, 4));
    EXPECT(value == 6);
    MUST(cuCtxDestroy_v2(same));
    puts("done");
    return 0;
}
