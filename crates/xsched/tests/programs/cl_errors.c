/* OpenCL's results for invalid calls, and for retaining and releasing a queue. Prints the results. */
#include "cl.h"

typedef void *(*Look)(const char *);

int main(void) {
    open_device(SPIN);
    cl_int code;
    cl_command_queue queue = queue_with(0);
    cl_kernel spin = spin_of(queue, 10);
    cl_event event = NULL, other = NULL;

    printf("no queue: %d\n", CALL(clEnqueueNDRangeKernel)(NULL, spin, 1, NULL, &SPIN_ITEMS, NULL, 0, NULL, NULL));
    printf("no event: %d\n", CALL(clEnqueueNDRangeKernel)(queue, spin, 1, NULL, &SPIN_ITEMS, NULL, 1, &event, NULL));
    printf("no memory: %d\n", CALL(clEnqueueReadBuffer)(queue, NULL, CL_TRUE, 0, 4, &code, 0, NULL, NULL));
    CALL(clEnqueueMapBuffer)(queue, NULL, CL_TRUE, CL_MAP_READ, 0, 4, 0, NULL, NULL, &code);
    printf("no mapping: %d\n", code);
    printf("nothing to wait for: %d\n", CALL(clWaitForEvents)(0, NULL));
    printf("nothing to finish: %d\n", CALL(clFinish)(NULL));
    CALL(clCreateCommandQueue)(NULL, device, 0, &code);
    printf("no context: %d\n", code);
    printf("no callback: %d\n", CALL(clSetEventCallback)(NULL, CL_COMPLETE, NULL, NULL));

    /* An event of another context. */
    cl_context elsewhere = CALL(clCreateContext)(NULL, 1, &device, NULL, NULL, &code);
    must(code, "context");
    other = CALL(clCreateUserEvent)(elsewhere, &code);
    must(code, "user event");
    printf("elsewhere: %d\n", CALL(clEnqueueNDRangeKernel)(queue, spin, 1, NULL, &SPIN_ITEMS, NULL, 1, &other, NULL));
    printf("elsewhere: %d\n", CALL(clEnqueueBarrierWithWaitList)(queue, 1, &other, NULL));
    must(CALL(clSetUserEventStatus)(other, CL_COMPLETE), "complete");

    /* Three references; releasing the last one destroys the queue. */
    for (int n = 0; n < 2; n++) must(CALL(clRetainCommandQueue)(queue), "retain");
    for (int n = 0; n < 2; n++) {
        must(CALL(clReleaseCommandQueue)(queue), "release");
        enqueue_spin(queue, spin);
    }
    must(CALL(clFinish)(queue), "finish");
    must(CALL(clReleaseCommandQueue)(queue), "release");

    /* Queues are created and destroyed, also while they have work. */
    for (int n = 0; n < 200; n++) {
        queue = queue_with(n % 2 ? CL_QUEUE_PROFILING_ENABLE : 0);
        for (int launch = 0; launch < n % 5; launch++) enqueue_spin(queue, spin);
        must(CALL(clReleaseCommandQueue)(queue), "release");
    }

    /* OpenCL's own look-up finds functions that exist, and no others. */
    Look look = (Look)CALL(clGetExtensionFunctionAddress);
    printf("looked up: %d %d\n", look("clIcdGetPlatformIDsKHR") != NULL, look("clNoSuchFunction") != NULL);
    printf("looked up: %d\n", CALL(clGetExtensionFunctionAddressForPlatform)(platform, "clNoSuchFunction") != NULL);
    return 0;
}
