/* Shared by the test programs: a context, the three kernels, and the time. */
#ifndef GPU_H
#define GPU_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "standin_cuda.h"
#include "kernels.h"

#define EXPECT(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #what); \
            exit(70); \
        } \
    } while (0)

/* The call must return this result. */
#define EXPECT_RESULT(expected, call) \
    do { \
        int expected_ = (expected), returned_ = (call); \
        if (returned_ != expected_) { \
            fprintf(stderr, "%s:%d: %s returned %d, not %d\n", __FILE__, __LINE__, #call, returned_, expected_); \
            exit(70); \
        } \
    } while (0)
#define MUST(call) EXPECT_RESULT(0, call)

static CUfunction spin_kernel, fill_kernel, add_kernel;

static inline uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static inline void sleep_until(uint64_t when_ns) {
    struct timespec when = {.tv_sec = (time_t)(when_ns / 1000000000), .tv_nsec = (long)(when_ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) != 0) {
    }
}

static inline CUcontext open_gpu(void) {
    CUdevice device;
    CUcontext context;
    CUmodule module;
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    MUST(cuModuleLoadData(&module, KERNELS));
    MUST(cuModuleGetFunction(&spin_kernel, module, "spin"));
    MUST(cuModuleGetFunction(&fill_kernel, module, "fill"));
    MUST(cuModuleGetFunction(&add_kernel, module, "add"));
    return context;
}

static inline CUresult spin(CUstream stream, uint64_t ns) {
    void *parameters[] = {&ns};
    return cuLaunchKernel(spin_kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static inline CUresult fill(CUstream stream, uint64_t ns, CUdeviceptr to, uint32_t value, uint64_t count) {
    void *parameters[] = {&ns, &to, &value, &count};
    return cuLaunchKernel(fill_kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static inline CUresult add(CUstream stream, uint64_t ns, CUdeviceptr to, CUdeviceptr from, uint32_t delta, uint64_t count) {
    void *parameters[] = {&ns, &to, &from, &delta, &count};
    return cuLaunchKernel(add_kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

#endif
