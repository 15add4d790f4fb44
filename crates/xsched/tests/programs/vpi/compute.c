/*
 * Runs algorithms ROUNDS times, on streams of two contexts, and checks every pixel. Waits by each function that waits. The parameters are of
 * all kinds: those in registers, floating point numbers, and those on the stack.
 *
 *   compute ROUNDS
 */
#include "vpi.h"

enum { US = 50 };

static void check(long round, const char *way, VPIImage image, float expected) {
    int is_correct = take(image, expected);
    printf("round %ld %s: %s\n", round, way, is_correct ? "correct" : "wrong");
    fflush(stdout);
    if (!is_correct) exit(71);
}

static void count(void *counter) { ++*(int *)counter; }

int main(int argc, char **argv) {
    if (argc < 2) return 64;
    VPIStream stream = new_stream(), waiting = new_stream();
    VPIEvent event = new_event();
    VPIImage in = new_image(US), out = new_image(US);
    VPIContext first, second, current;
    must(CALL(vpiContextGetCurrent)(&first), "context");
    must(CALL(vpiContextCreate)(0, &second), "context");
    must(CALL(vpiContextPush)(second), "context");
    VPIStream other = new_stream();
    must(CALL(vpiContextPop)(NULL), "context");
    int counter = 0;
    for (long round = 0; round < atol(argv[1]); round++) {
        increment(out, VPI_BACKEND_PVA, stream);
        must(CALL(vpiStreamSync)(stream), "synchronize");
        check(round, "stream", out, 1);
        increment(out, VPI_BACKEND_CPU, stream);
        must(CALL(vpiStreamSync)(stream), "synchronize");
        check(round, "processor", out, 1);
        increment(out, 0, stream);
        must(CALL(vpiEventRecord)(event, stream), "record");
        must(CALL(vpiEventSync)(event), "event");
        check(round, "event", out, 1);
        increment(out, VPI_BACKEND_VIC, stream);
        must(CALL(vpiEventRecord)(event, stream), "record");
        VPIEventState state = VPI_EVENT_STATE_NOT_SIGNALED;
        while (state != VPI_EVENT_STATE_SIGNALED) must(CALL(vpiEventQuery)(event, &state), "query");
        check(round, "query", out, 1);
        increment(out, VPI_BACKEND_PVA, stream);
        must(CALL(vpiEventRecord)(event, stream), "record");
        must(CALL(vpiStreamWaitEvent)(waiting, event), "wait");
        increment(out, VPI_BACKEND_PVA, waiting);
        must(CALL(vpiStreamSync)(waiting), "synchronize");
        check(round, "two streams", out, 2);
        increment(out, VPI_BACKEND_PVA, stream);
        must(CALL(vpiSubmitHostFunction)(stream, count, &counter), "host function");
        must(CALL(vpiStreamSync)(stream), "synchronize");
        check(round, counter == round + 1 ? "host function" : "host function lost", out, 1);
        must(CALL(vpiSubmitBilateralFilter)(stream, VPI_BACKEND_CUDA, in, out, 3, 0.5f, 0.25f, VPI_BORDER_CLAMP), "filter");
        must(CALL(vpiStreamSync)(stream), "synchronize");
        check(round, "bilateral filter", out, 3 + 5 + 25 + 1000);
        must(CALL(vpiSubmitGaussianFilter)(stream, VPI_BACKEND_PVA, in, out, 3, 5, 0.5f, 0.25f, VPI_BORDER_CLAMP), "filter");
        must(CALL(vpiStreamSync)(stream), "synchronize");
        check(round, "Gaussian filter", out, 3 + 50 + 50 + 250 + 10000);
        float x[] = {1, 2, 3}, y[] = {4, 5};
        must(CALL(vpiSubmitSeparableConvolution)(stream, VPI_BACKEND_PVA, in, out, x, 3, y, 2, VPI_BORDER_CLAMP), "convolution");
        must(CALL(vpiStreamSync)(stream), "synchronize");
        check(round, "convolution", out, 6 + 90 + 100);
        /* The stand-in reads numbers where the vendor's library has its own objects. */
        float payload = 1, objects = 1, found = 2, maxima = 3, parameters = 1;
        int32_t enabled = 2;
        must(CALL(vpiSubmitDCFTrackerLocalizeBatch)(stream, VPI_BACKEND_PVA, (VPIPayload)&payload, &enabled, 3, in, in, (VPIArray)&objects, (VPIArray)&found, out, (VPIArray)&maxima, &parameters), "tracker");
        must(CALL(vpiStreamSync)(stream), "synchronize");
        check(round, "tracker", out, 1 + 4 * (2 + 4 * (3 + 4 * (1 + 4 * (2 + 4 * (3 + 4 * 1))))));
        increment(out, VPI_BACKEND_PVA, other);
        must(CALL(vpiStreamSync)(other), "synchronize");
        check(round, "second context", out, 1);
        must(CALL(vpiContextGetCurrent)(&current), "context");
        if (current != first) return 72;
    }
    printf("event of another context: %d\n", CALL(vpiEventRecord)(event, other));
    CALL(vpiEventDestroy)(event);
    CALL(vpiStreamDestroy)(stream);
    CALL(vpiStreamDestroy)(waiting);
    CALL(vpiContextDestroy)(second);
    CALL(vpiImageDestroy)(in);
    CALL(vpiImageDestroy)(out);
    return 0;
}
