/*
 * Records kernels in a command buffer and enqueues it ROUNDS times, PAUSE_MS apart, with the queue as an argument if NAMED
 * is 1. Enqueues nothing else. Checks every number at the end.
 *
 *   cl_recorded ROUNDS PAUSE_MS NAMED
 */
#include "cl.h"

enum { LENGTH = 4096, COMMANDS = 5 };

static const char *SOURCE = "kernel void advance(global uint *a) { size_t i = get_global_id(0); a[i] = a[i] * 3 + (uint)i; }";

static void *extension(const char *name) {
    void *found = CALL(clGetExtensionFunctionAddressForPlatform)(platform, name);
    if (found == NULL) {
        printf("no %s\n", name);
        exit(3);
    }
    return found;
}
#define EXTENSION(name) ((name##_fn)extension(#name))

static unsigned seen[LENGTH];

int main(int argc, char **argv) {
    if (argc < 4) return 64;
    long rounds = atol(argv[1]), pause_ms = atol(argv[2]), named = atol(argv[3]);
    open_device(SOURCE);
    clEnqueueCommandBufferKHR_fn enqueue = EXTENSION(clEnqueueCommandBufferKHR);
    cl_command_queue queue = queue_with(0);
    cl_kernel advance = kernel_named("advance");
    cl_mem data = buffer_of(sizeof seen);
    set_argument(advance, 0, sizeof data, &data);
    must(CALL(clEnqueueWriteBuffer)(queue, data, CL_TRUE, 0, sizeof seen, seen, 0, NULL, NULL), "write");

    cl_int code;
    cl_command_buffer_khr buffer = EXTENSION(clCreateCommandBufferKHR)(1, &queue, NULL, &code);
    must(code, "command buffer");
    cl_sync_point_khr before = 0;
    const size_t length = LENGTH;
    for (int n = 0; n < COMMANDS; n++) {
        cl_sync_point_khr after;
        must(EXTENSION(clCommandNDRangeKernelKHR)(buffer, NULL, NULL, advance, 1, NULL, &length, NULL, n > 0, n > 0 ? &before : NULL,
                                                  &after, NULL), "record");
        before = after;
    }
    printf("not finalized: %d\n", enqueue(0, NULL, buffer, 0, NULL, NULL));
    must(EXTENSION(clFinalizeCommandBufferKHR)(buffer), "finalize");

    for (long round = 0; round < rounds; round++) {
        if (pause_ms > 0) usleep((useconds_t)pause_ms * 1000);
        must(named ? enqueue(1, &queue, buffer, 0, NULL, NULL) : enqueue(0, NULL, buffer, 0, NULL, NULL), "enqueue");
        must(CALL(clFinish)(queue), "finish");
        printf("round %ld\n", round);
        fflush(stdout);
    }
    must(CALL(clEnqueueReadBuffer)(queue, data, CL_TRUE, 0, sizeof seen, seen, 0, NULL, NULL), "read");
    for (unsigned i = 0; i < LENGTH; i++) {
        unsigned expected = 0;
        for (long n = 0; n < rounds * COMMANDS; n++) expected = expected * 3 + i;
        if (seen[i] != expected) {
            printf("wrong: %u instead of %u at %u\n", seen[i], expected, i);
            return 71;
        }
    }
    printf("correct\n");
    printf("no buffer: %d\n", enqueue(0, NULL, NULL, 0, NULL, NULL));
    must(EXTENSION(clReleaseCommandBufferKHR)(buffer), "release");
    must(CALL(clReleaseCommandQueue)(queue), "release");
    return 0;
}
