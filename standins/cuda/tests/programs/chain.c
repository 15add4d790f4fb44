/*
  * Counts in device memory, each step on another stream than the previous one: streams that wait for each other by events,
  * both default streams, a graph, every form of launch. A step that runs too early, twice or never changes the sum.
  *
  *   chain ROUNDS KERNEL_US      prints "ready" before it starts and the sum when it is done; then again on a line of input
 */
#include "gpu.h"

static CUdeviceptr a, b;
static uint64_t ns;
static uint64_t steps;

static void **step(CUdeviceptr *to, CUdeviceptr *from) {
    static uint32_t delta = 1;
    static uint64_t count = 16;
    static void *parameters[5];
    parameters[0] = &ns, parameters[1] = to, parameters[2] = from, parameters[3] = &delta, parameters[4] = &count;
    steps++;
    return parameters;
}

int main(int argc, char **argv) {
    if (argc < 3) return 64;
    long rounds = atol(argv[1]);
    ns = strtoull(argv[2], NULL, 10) * 1000;
    CUstream first, second;
    CUevent forth, back;
    CUgraph graph;
    CUgraphExec exec;
    uint32_t sum[16];
    open_gpu();
    MUST(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&second, 0));
    MUST(cuEventCreate(&forth, CU_EVENT_DISABLE_TIMING));
    MUST(cuEventCreate(&back, CU_EVENT_DISABLE_TIMING));
    MUST(cuMemAlloc_v2(&a, sizeof sum));
    MUST(cuMemAlloc_v2(&b, sizeof sum));
    MUST(cuMemsetD32_v2(a, 0, 16));
    puts("ready");
    fflush(stdout);
    for (int again = 0; again < 2; again++) {
        for (long n = 0; n < rounds; n++) {
            CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, second, NULL, 0};
            /* Captured while other work runs. */
            MUST(cuStreamBeginCapture_v2(first, CU_STREAM_CAPTURE_MODE_GLOBAL));
            MUST(cuLaunchKernel(add_kernel, 1, 1, 1, 1, 1, 1, 0, first, step(&a, &a), NULL));
            MUST(cuLaunchKernel(add_kernel, 1, 1, 1, 1, 1, 1, 0, first, step(&b, &a), NULL));
            MUST(cuStreamEndCapture(first, &graph));
            MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
            MUST(cuGraphLaunch(exec, first));
            MUST(cuEventRecord(forth, first));
            MUST(cuStreamWaitEvent(second, forth, 0));
            MUST(cuLaunchKernelEx(&config, add_kernel, step(&a, &b), NULL));
            /* The legacy default stream waits for the blocking stream, and the thread's default stream for the legacy one. */
            MUST(cuLaunchKernel(add_kernel, 1, 1, 1, 1, 1, 1, 0, NULL, step(&b, &a), NULL));
            MUST(cuLaunchKernel_ptsz(add_kernel, 1, 1, 1, 1, 1, 1, 0, NULL, step(&a, &b), NULL));
            MUST(cuLaunchCooperativeKernel(add_kernel, 1, 1, 1, 1, 1, 1, 0, NULL, step(&a, &a)));
            MUST(cuEventRecord(back, NULL));
            MUST(cuStreamWaitEvent(first, back, 0));
            if (n % 4 == 0) MUST(cuStreamSynchronize(n % 8 ? first : NULL));
            MUST(cuGraphExecDestroy(exec));
            MUST(cuGraphDestroy(graph));
        }
        MUST(cuCtxSynchronize());
        MUST(cuMemcpyDtoH_v2(sum, a, sizeof sum));
        printf("%u of %llu\n", sum[15], (unsigned long long)steps);
        fflush(stdout);
        if (again == 0 && getchar() == EOF) break;
    }
    return sum[15] == steps ? 0 : 70;
}
