/*
 * What the Ascend test programs share: the part of AscendCL that they use, as the vendor's headers declare it, and the kernels of the
 * stand-in.
 *
 * With OPENED, the library is not linked: it is opened with dlopen, and every function is looked up.
 */
#ifndef ACL_PROGRAMS_H
#define ACL_PROGRAMS_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int aclError;
typedef void *aclrtStream;
typedef void *aclrtEvent;
typedef void *aclrtContext;
typedef void *aclrtBinHandle;
typedef void *aclrtFuncHandle;
typedef void *aclmdlRI;
typedef struct aclmdlDataset aclmdlDataset;
typedef enum { ACL_MEM_MALLOC_HUGE_FIRST } aclrtMemMallocPolicy;
typedef enum { ACL_MEMCPY_HOST_TO_HOST, ACL_MEMCPY_HOST_TO_DEVICE, ACL_MEMCPY_DEVICE_TO_HOST, ACL_MEMCPY_DEVICE_TO_DEVICE } aclrtMemcpyKind;
typedef enum { ACL_EVENT_RECORDED_STATUS_NOT_READY = 0, ACL_EVENT_RECORDED_STATUS_COMPLETE = 1 } aclrtEventRecordedStatus;
typedef enum { ACL_STREAM_STATUS_COMPLETE = 0, ACL_STREAM_STATUS_NOT_READY = 1 } aclrtStreamStatus;
typedef enum { ACL_MODEL_RI_CAPTURE_MODE_GLOBAL = 0 } aclmdlRICaptureMode;

aclError aclInit(const char *configPath);
aclError aclFinalize(void);
aclError aclrtSetDevice(int32_t deviceId);
aclError aclrtResetDevice(int32_t deviceId);
aclError aclrtCreateContext(aclrtContext *context, int32_t deviceId);
aclError aclrtDestroyContext(aclrtContext context);
aclError aclrtGetCurrentContext(aclrtContext *context);
aclError aclrtSetCurrentContext(aclrtContext context);
aclError aclrtCreateStream(aclrtStream *stream);
aclError aclrtDestroyStream(aclrtStream stream);
aclError aclrtSynchronizeStream(aclrtStream stream);
aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout);
aclError aclrtSynchronizeDevice(void);
aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus *status);
aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event);
aclError aclrtCreateEvent(aclrtEvent *event);
aclError aclrtDestroyEvent(aclrtEvent event);
aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream);
aclError aclrtResetEvent(aclrtEvent event, aclrtStream stream);
aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus *status);
aclError aclrtSynchronizeEvent(aclrtEvent event);
aclError aclrtMalloc(void **devPtr, size_t size, aclrtMemMallocPolicy policy);
aclError aclrtFree(void *devPtr);
aclError aclrtMemcpyAsync(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind, aclrtStream stream);
aclError aclrtMemsetAsync(void *devPtr, size_t maxCount, int32_t value, size_t count, aclrtStream stream);
aclError aclrtBinaryGetFunction(const aclrtBinHandle binHandle, const char *kernelName, aclrtFuncHandle *funcHandle);
aclError aclrtLaunchKernel(aclrtFuncHandle funcHandle, uint32_t blockDim, const void *argsData, size_t argsSize, aclrtStream stream);
aclError aclmdlExecute(uint32_t modelId, const aclmdlDataset *input, aclmdlDataset *output);
aclError aclmdlExecuteAsync(uint32_t modelId, const aclmdlDataset *input, aclmdlDataset *output, aclrtStream stream);
aclError aclmdlRICaptureBegin(aclrtStream stream, aclmdlRICaptureMode mode);
aclError aclmdlRICaptureEnd(aclrtStream stream, aclmdlRI *modelRI);
aclError aclmdlRIExecuteAsync(aclmdlRI modelRI, aclrtStream stream);

#ifdef OPENED
static void *look_up(const char *name) {
    static void *library;
    if (library == NULL) library = dlopen("libascendcl.so", RTLD_NOW | RTLD_LOCAL);
    void *found = library == NULL ? NULL : dlsym(library, name);
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

static void must(aclError code, const char *what) {
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

/* Uses the first device. Without one, prints the error and exits. */
static void open_device(void) {
    aclError code = CALL(aclInit)(NULL);
    if (code == 0) code = CALL(aclrtSetDevice)(0);
    if (code != 0) {
        printf("no device: error %d\n", code);
        exit(3);
    }
}

static inline aclrtStream new_stream(void) {
    aclrtStream stream;
    must(CALL(aclrtCreateStream)(&stream), "stream");
    return stream;
}

static inline aclrtEvent new_event(void) {
    aclrtEvent event;
    must(CALL(aclrtCreateEvent)(&event), "event");
    return event;
}

static inline void *new_memory(size_t size) {
    void *memory;
    must(CALL(aclrtMalloc)(&memory, size, ACL_MEM_MALLOC_HUGE_FIRST), "memory");
    memset(memory, 0, size);
    return memory;
}

/* Launches a kernel that runs for so long, and then adds 1 to a counter. */
static inline void increment(uint64_t us, uint64_t *counter, aclrtStream stream) {
    static aclrtFuncHandle kernel;
    if (kernel == NULL) must(CALL(aclrtBinaryGetFunction)(NULL, "increment", &kernel), "kernel");
    uint64_t arguments[] = {us * 1000, (uint64_t)(uintptr_t)counter};
    must(CALL(aclrtLaunchKernel)(kernel, 1, arguments, sizeof arguments, stream), "launch");
}

#endif
