/*
 * Fills, copies and adds arrays ROUNDS times, on streams of two contexts, on the default stream and by a captured model, with every number
 * checked. Waits by each function that waits.
 *
 *   compute ROUNDS
 */
#include "acl.h"

enum { LENGTH = 1 << 12, KERNEL_US = 50, SIZE = LENGTH * sizeof(float) };

static float *source, *ones, *sum;
static aclrtFuncHandle add;

/* sum = source + ones. */
static void append(aclrtStream stream) {
    uint64_t arguments[] = {KERNEL_US * 1000, (uint64_t)(uintptr_t)sum, (uint64_t)(uintptr_t)ones, LENGTH};
    must(CALL(aclrtMemsetAsync)(sum, SIZE, 0, SIZE, stream), "fill");
    must(CALL(aclrtMemcpyAsync)(sum, SIZE, source, SIZE, ACL_MEMCPY_DEVICE_TO_DEVICE, stream), "copy");
    must(CALL(aclrtLaunchKernel)(add, 1, arguments, sizeof arguments, stream), "launch");
}

static void check(long round, const char *way) {
    for (int n = 0; n < LENGTH; n++) {
        if (sum[n] != source[n] + 1) {
            printf("round %ld %s: wrong\n", round, way);
            exit(71);
        }
        sum[n] = 0;
    }
    printf("round %ld %s: correct\n", round, way);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc < 2) return 64;
    open_device();
    source = new_memory(SIZE);
    ones = new_memory(SIZE);
    sum = new_memory(SIZE);
    for (int n = 0; n < LENGTH; n++) {
        source[n] = (float)n;
        ones[n] = 1;
    }
    must(CALL(aclrtBinaryGetFunction)(NULL, "add", &add), "kernel");
    aclrtContext first, second;
    must(CALL(aclrtGetCurrentContext)(&first), "context");
    aclrtStream stream = new_stream();
    aclrtEvent event = new_event();
    must(CALL(aclrtCreateContext)(&second, 0), "context");
    aclrtStream other = new_stream();
    must(CALL(aclrtSetCurrentContext)(first), "context");
    aclmdlRI model;
    must(CALL(aclmdlRICaptureBegin)(stream, ACL_MODEL_RI_CAPTURE_MODE_GLOBAL), "capture");
    append(stream);
    must(CALL(aclmdlRICaptureEnd)(stream, &model), "capture");
    for (long round = 0; round < atol(argv[1]); round++) {
        append(stream);
        must(CALL(aclrtSynchronizeStream)(stream), "synchronize");
        check(round, "stream");
        append(stream);
        while (CALL(aclrtSynchronizeStreamWithTimeout)(stream, 1) != 0) {}
        check(round, "stream with a timeout");
        append(stream);
        must(CALL(aclrtRecordEvent)(event, stream), "record");
        must(CALL(aclrtSynchronizeEvent)(event), "event");
        check(round, "event");
        append(stream);
        aclrtStreamStatus status = ACL_STREAM_STATUS_NOT_READY;
        while (status != ACL_STREAM_STATUS_COMPLETE) must(CALL(aclrtStreamQuery)(stream, &status), "query");
        check(round, "query");
        append(NULL);
        must(CALL(aclrtSynchronizeDevice)(), "device");
        check(round, "default stream");
        must(CALL(aclmdlRIExecuteAsync)(model, stream), "model");
        must(CALL(aclrtSynchronizeStream)(stream), "synchronize");
        check(round, "captured model");
        must(CALL(aclrtSetCurrentContext)(second), "context");
        append(other);
        must(CALL(aclrtSynchronizeStream)(other), "synchronize");
        check(round, "second context");
        must(CALL(aclrtSetCurrentContext)(first), "context");
        aclrtContext current;
        must(CALL(aclrtGetCurrentContext)(&current), "context");
        if (current != first) return 72;
    }
    printf("stream of another context: %d\n", CALL(aclrtSynchronizeStream)(other));
    must(CALL(aclrtDestroyEvent)(event), "destroy");
    must(CALL(aclrtDestroyStream)(stream), "destroy");
    must(CALL(aclrtDestroyContext)(second), "destroy");
    must(CALL(aclrtResetDevice)(0), "reset");
    must(CALL(aclFinalize)(), "finalize");
    return 0;
}
