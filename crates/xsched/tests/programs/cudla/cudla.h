/*
 * What the cuDLA test programs share: the parts of cuDLA and of CUDA's driver that they use, as the vendor's headers declare them.
 *
 * With OPENED, the libraries are not linked: they are opened with dlopen, and every function is looked up.
 */
#ifndef CUDLA_PROGRAMS_H
#define CUDLA_PROGRAMS_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int cudlaStatus;
typedef struct cudlaDevHandle_t *cudlaDevHandle;
typedef struct cudlaModule_t *cudlaModule;
enum { CUDLA_CUDA_DLA = 0, CUDLA_STANDALONE = 1 };

typedef struct {
    cudlaModule moduleHandle;
    uint64_t *const *outputTensor;
    uint32_t numOutputTensors;
    uint32_t numInputTensors;
    uint64_t *const *inputTensor;
    const void *waitEvents;
    void *signalEvents;
} cudlaTask;

cudlaStatus cudlaDeviceGetCount(uint64_t *pNumDevices);
cudlaStatus cudlaCreateDevice(uint64_t device, cudlaDevHandle *devHandle, uint32_t flags);
cudlaStatus cudlaDestroyDevice(cudlaDevHandle devHandle);
cudlaStatus cudlaMemRegister(cudlaDevHandle devHandle, const uint64_t *ptr, size_t size, uint64_t **devPtr, uint32_t flags);
cudlaStatus cudlaModuleLoadFromMemory(cudlaDevHandle devHandle, const uint8_t *pModule, size_t moduleSize, cudlaModule *hModule, uint32_t flags);
cudlaStatus cudlaSubmitTask(cudlaDevHandle devHandle, const cudlaTask *ptrToTasks, uint32_t numTasks, void *stream, uint32_t flags);

typedef int CUresult;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;

CUresult cuInit(unsigned flags);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamQuery(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
CUresult cuEventCreate(CUevent *event, unsigned flags);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventSynchronize(CUevent event);
CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *data);

#ifdef OPENED
static void *look_up(const char *name) {
    static void *libraries[2];
    int is_cuda = strncmp(name, "cudla", 5) != 0;
    if (libraries[is_cuda] == NULL) libraries[is_cuda] = dlopen(is_cuda ? "libcuda.so.1" : "libcudla.so.1", RTLD_NOW | RTLD_LOCAL);
    void *found = libraries[is_cuda] == NULL ? NULL : dlsym(libraries[is_cuda], name);
    if (found == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(69);
    }
    return found;
}
/* Each call site looks its function up once. */
#define CALL(name) ({ static __typeof__(&name) found; if (found == NULL) found = (__typeof__(&name))look_up(#name); found; })
#else
#define CALL(name) name
#endif

static inline void must(int code, const char *what) {
    if (code != 0) {
        fprintf(stderr, "%s: error %d\n", what, code);
        exit(70);
    }
}

static inline double now_us(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e6 + (double)at.tv_nsec / 1e3;
}

static inline void open_gpu(void) {
    CUcontext context;
    must(CALL(cuInit)(0), "CUDA");
    must(CALL(cuDevicePrimaryCtxRetain)(&context, 0), "context");
    must(CALL(cuCtxSetCurrent)(context), "context");
}

static inline CUstream new_stream(void) {
    CUstream stream;
    must(CALL(cuStreamCreate)(&stream, 1), "stream");
    return stream;
}

/* A device handle with its module, and a tensor to whose numbers each task adds 1. */
typedef struct {
    cudlaDevHandle device;
    cudlaModule module;
    uint64_t tensor[16], *registered;
} dla_t;

/* Its tasks run for this time. Without a device, prints the error and exits. */
static inline void open_dla(dla_t *dla, uint64_t number, uint32_t us, uint32_t mode) {
    cudlaStatus status = CALL(cudlaCreateDevice)(number, &dla->device, mode);
    if (status != 0) {
        printf("no device: error %d\n", status);
        exit(3);
    }
    must(CALL(cudlaModuleLoadFromMemory)(dla->device, (const uint8_t *)&us, sizeof us, &dla->module, 0), "module");
    memset(dla->tensor, 0, sizeof dla->tensor);
    must(CALL(cudlaMemRegister)(dla->device, dla->tensor, sizeof dla->tensor, &dla->registered, 0), "memory");
}

static inline cudlaStatus submit(dla_t *dla, CUstream stream) {
    cudlaTask task = {dla->module, &dla->registered, 1, 1, &dla->registered, NULL, NULL};
    return CALL(cudlaSubmitTask)(dla->device, &task, 1, stream, 0);
}

/* Whether so many tasks have completed. Starts again from 0. */
static inline int take(dla_t *dla, uint64_t tasks) {
    int is_correct = 1;
    for (int n = 0; n < 16; n++) {
        is_correct &= dla->tensor[n] == tasks;
        dla->tensor[n] = 0;
    }
    return is_correct;
}

#endif
