/* Two streams that wait for each other repeatedly; each reads what the other has written. */
#include "gpu.h"

enum { ROUNDS = 100, US = 1000 };

int main(void) {
    CUstream one, two;
    CUevent first, second;
    CUdeviceptr memory;
    uint32_t value;
    char line[8];
    open_gpu();
    MUST(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&two, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&first, CU_EVENT_DISABLE_TIMING));
    MUST(cuEventCreate(&second, CU_EVENT_DISABLE_TIMING));
    MUST(cuMemAlloc_v2(&memory, 64));
    MUST(fill(one, 0, memory, 0, 16));
    MUST(cuStreamSynchronize(one));
    MUST(add(two, 0, memory, memory, 0, 16));
    MUST(cuStreamSynchronize(two));
    puts("ready");
    fflush(stdout);
    if (fgets(line, sizeof line, stdin) == NULL) return 1;
    for (int round = 0; round < ROUNDS; round++) {
        MUST(add(one, 200 * US, memory, memory, 1, 16));
        MUST(cuEventRecord(first, one));
        MUST(cuStreamWaitEvent(two, first, 0));
        MUST(add(two, 200 * US, memory, memory, 1, 16));
        MUST(cuEventRecord(second, two));
        MUST(cuStreamWaitEvent(one, second, 0));
    }
    MUST(cuStreamSynchronize(one));
    MUST(cuMemcpyDtoH_v2(&value, memory, 4));
    printf("%u\n", value);
    return value == 2 * ROUNDS ? 0 : 1;
}
