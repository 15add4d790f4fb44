/* A driver library with the functions of NVIDIA's that `xsched bench gpu-worker` uses: one GPU that runs kernels in order,
 * 1 us for a launch and 10 ns for a round of the busy kernel. Each process has a GPU of its own. */
#define _GNU_SOURCE
#include <stddef.h>
#include <string.h>
#include <time.h>

typedef int Code;
static char context, module, functions[2], stream_handle;
static long long busy_until;
static struct { long long at; } events[4096];
static int next_event;

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}
static void sleep_until(long long at) {
    struct timespec t = {at / 1000000000LL, at % 1000000000LL};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) != 0) {}
}

Code cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }
Code cuDriverGetVersion(int *version) { *version = 13000; return 0; }
Code cuDeviceGetCount(int *count) { *count = 1; return 0; }
Code cuDeviceGet(int *device, int number) { *device = number; return number == 0 ? 0 : 101; }
Code cuDeviceGetName(char *name, int capacity, int device) { strncpy(name, "GPU of the tests", capacity); return device == 0 ? 0 : 101; }
Code cuDeviceGetAttribute(int *value, int which, int device) {
    /* 4 multiprocessors of 1024 threads, at 0000:00:06.0. */
    *value = which == 16 ? 4 : which == 39 ? 1024 : which == 34 ? 6 : 0;
    return device == 0 ? 0 : 101;
}
Code cuDevicePrimaryCtxRetain(void **created, int device) { *created = &context; return device == 0 ? 0 : 101; }
Code cuCtxSetCurrent(void *wanted) { return wanted == &context ? 0 : 201; }
Code cuCtxGetCurrent(void **current) { *current = &context; return 0; }
Code cuCtxPushCurrent_v2(void *pushed) { return pushed == &context ? 0 : 201; }
Code cuCtxPopCurrent_v2(void **popped) { *popped = &context; return 0; }
Code cuCtxGetDevice(int *device) { *device = 0; return 0; }
Code cuCtxGetStreamPriorityRange(int *lowest, int *highest) { *lowest = 0; *highest = -5; return 0; }
Code cuModuleLoadData(void **loaded, const char *text) {
    *loaded = &module;
    /* Like a driver without support for the oldest GPUs. */
    return strstr(text, ".target sm_75") != NULL && strstr(text, ".entry spin(") != NULL ? 0 : 218;
}
Code cuModuleGetFunction(void **function, void *from, const char *name) {
    *function = strcmp(name, "spin") == 0 ? &functions[0] : &functions[1];
    return from == &module ? 0 : 1;
}
Code cuMemAlloc_v2(unsigned long long *address, size_t bytes) { *address = 4096; return bytes > 0 ? 0 : 1; }
/* No test of this driver copies memory. */
Code cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t bytes) { (void)to, (void)from, (void)bytes; return 1; }
Code cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t bytes) { (void)to, (void)from, (void)bytes; return 1; }
Code cuStreamCreateWithPriority(void **created, unsigned flags, int priority) {
    (void)flags;
    *created = &stream_handle;
    return priority <= 0 && priority >= -5 ? 0 : 1;
}
Code cuStreamSynchronize(void *stream) { (void)stream; sleep_until(busy_until); return 0; }
Code cuStreamIsCapturing(void *stream, int *status) { (void)stream; *status = 0; return 0; }
Code cuEventCreate(void **event, unsigned flags) { (void)flags; *event = &events[next_event++ % 4096]; return 0; }
Code cuEventRecord(void *event, void *stream) { (void)stream; *(long long *)event = busy_until; return 0; }
Code cuEventQuery(void *event) { return *(long long *)event <= now() ? 0 : 600; }
Code cuEventSynchronize(void *event) { sleep_until(*(long long *)event); return 0; }
Code cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                    unsigned shared, void *stream, void **parameters, void **extra) {
    (void)gy; (void)gz; (void)by; (void)bz; (void)shared; (void)extra;
    if (stream == NULL || parameters == NULL) return 1;
    int busy = f == &functions[0];
    /* The kernel fills the GPU, or is one warp. */
    if (gx * bx != (busy ? 4096 : 32)) return 1;
    long long length = 1000 + (busy ? 10 * **(long long **)parameters : 0), t = now();
    busy_until = (busy_until > t ? busy_until : t) + length;
    return 0;
}
Code cuGetErrorName(Code code, const char **name) { *name = code == 218 ? "CUDA_ERROR_INVALID_PTX" : "CUDA_ERROR_UNKNOWN"; return 0; }
