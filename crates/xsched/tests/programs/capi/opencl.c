/* The interface on an OpenCL queue. Exits with status 3 without an OpenCL device. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <unistd.h>

#include "check.h"
#include "xsched/opencl/hal.h"

static cl_command_queue queue, other;
static cl_mem buffer;

static XResult fill(HwQueueHandle hwq, void *pattern) {
    (void)hwq;
    return clEnqueueFillBuffer(queue, buffer, pattern, 4, 0, 4096, 0, NULL, NULL) == CL_SUCCESS ? kXSchedSuccess
                                                                                               : kXSchedErrorHardware;
}

/* The data on the device, read through a queue that is not scheduled. */
static unsigned there(void) {
    unsigned value = 0;
    CHECK(clEnqueueReadBuffer(other, buffer, CL_TRUE, 4092, 4, &value, 0, NULL, NULL) == CL_SUCCESS);
    return value;
}

int main(void) {
    cl_platform_id platform;
    cl_device_id device;
    cl_int code;
    if (clGetPlatformIDs(1, &platform, NULL) != CL_SUCCESS) return 3;
    if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL) != CL_SUCCESS) return 3;
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    queue = clCreateCommandQueue(context, device, 0, &code);
    other = clCreateCommandQueue(context, device, 0, &code);
    buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, 4096, NULL, &code);
    CHECK(code == CL_SUCCESS);
    HwQueueHandle hwq;
    XQueueHandle xq;
    HwCommandHandle first, second;
    unsigned one = 1, seven = 7;
    EXPECT(kXSchedErrorInvalidValue, OclQueueCreate(&hwq, NULL));
    OK(OclQueueCreate(&hwq, queue));
    OK(XQueueCreate(&xq, hwq, kPreemptLevelBlock, 0));
    OK(HwCommandCreateCallback(&first, fill, &one));
    OK(HwCommandCreateCallback(&second, fill, &seven));
    for (int n = 0; n < 100; n++) OK(XQueueSubmit(xq, first));
    OK(XQueueWaitAll(xq));
    CHECK(there() == 1);
    OK(XQueueSuspend(xq, kQueueSuspendFlagSyncHwQueue));
    OK(XQueueSubmit(xq, second));
    usleep(50000);
    CHECK(there() == 1);
    OK(XQueueResume(xq, kQueueResumeFlagNone));
    OK(XQueueWaitAll(xq));
    CHECK(there() == 7);
    OK(HwCommandDestroy(first));
    OK(HwCommandDestroy(second));
    OK(XQueueDestroy(xq));
    OK(HwQueueDestroy(hwq));
    puts("correct");
    return 0;
}
