/*
 * Functions that the OpenCL test programs share: a device, a context, kernels.
 *
 * With OPENED, the OpenCL library is not linked: it is opened with dlopen, and every function is looked up.
 */
#ifndef CL_PROGRAMS_H
#define CL_PROGRAMS_H

#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#include <CL/cl.h>
#include <CL/cl_ext.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef OPENED
static void *look_up(const char *name) {
    static void *library;
    if (library == NULL) library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
    void *found = library == NULL ? NULL : dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(69);
    }
    return found;
}
#define CALL(name) ((__typeof__(&name))look_up(#name))
#else
#define CALL(name) name
#endif

static void must(cl_int code, const char *what) {
    if (code != CL_SUCCESS) {
        fprintf(stderr, "%s: error %d\n", what, code);
        exit(70);
    }
}

static inline double now_us(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e6 + (double)at.tv_nsec / 1e3;
}

static cl_platform_id platform;
static cl_device_id device;
static cl_context context;
static cl_program program;

/* Opens the first device. Without a platform, prints the error and exits. */
static void open_device(const char *source) {
    cl_int code = CALL(clGetPlatformIDs)(1, &platform, NULL);
    if (code != CL_SUCCESS) {
        printf("no platform: error %d\n", code);
        exit(3);
    }
    must(CALL(clGetDeviceIDs)(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL), "devices");
    context = CALL(clCreateContext)(NULL, 1, &device, NULL, NULL, &code);
    must(code, "context");
    program = CALL(clCreateProgramWithSource)(context, 1, &source, NULL, &code);
    must(code, "source");
    must(CALL(clBuildProgram)(program, 1, &device, "", NULL, NULL), "build");
}

static inline cl_kernel kernel_named(const char *name) {
    cl_int code;
    cl_kernel kernel = CALL(clCreateKernel)(program, name, &code);
    must(code, name);
    return kernel;
}

static inline cl_mem buffer_of(size_t bytes) {
    cl_int code;
    cl_mem buffer = CALL(clCreateBuffer)(context, CL_MEM_READ_WRITE, bytes, NULL, &code);
    must(code, "buffer");
    return buffer;
}

/* Uses the newer function if there are properties, otherwise the older one. */
static inline cl_command_queue queue_with(cl_command_queue_properties properties) {
    cl_int code;
    cl_queue_properties list[] = {CL_QUEUE_PROPERTIES, properties, 0};
    cl_command_queue queue = properties == 0
        ? CALL(clCreateCommandQueue)(context, device, 0, &code)
        : CALL(clCreateCommandQueueWithProperties)(context, device, list, &code);
    must(code, "queue");
    return queue;
}

static inline void set_argument(cl_kernel kernel, cl_uint which, size_t size, const void *value) {
    must(CALL(clSetKernelArg)(kernel, which, size, value), "argument");
}

/* A kernel whose length is a number of steps. */
#define SPIN \
    "kernel void spin(global uint *out, uint steps) {" \
    "    uint x = get_global_id(0) + 1;" \
    "    for (uint n = 0; n < steps; n++) { x ^= x << 13; x ^= x >> 17; x ^= x << 5; }" \
    "    out[get_global_id(0)] = x;" \
    "}"

/* One work group for each of two cores. */
static const size_t SPIN_ITEMS = 64, SPIN_GROUP = 32;

static inline void enqueue_spin(cl_command_queue queue, cl_kernel spin) {
    must(CALL(clEnqueueNDRangeKernel)(queue, spin, 1, NULL, &SPIN_ITEMS, &SPIN_GROUP, 0, NULL, NULL), "launch");
}

/* A kernel of so many steps, which has run once to exclude the cost of the first run. */
static inline cl_kernel spin_of(cl_command_queue queue, cl_uint steps) {
    cl_kernel spin = kernel_named("spin");
    cl_mem out = buffer_of(SPIN_ITEMS * sizeof(cl_uint));
    set_argument(spin, 0, sizeof out, &out);
    set_argument(spin, 1, sizeof steps, &steps);
    enqueue_spin(queue, spin);
    must(CALL(clFinish)(queue), "finish");
    return spin;
}

#endif
