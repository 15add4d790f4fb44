/*
 * The C interface on HIP streams: a stream of the runtime that the program is linked to, and a stream of a second copy, as
 * in a Python package. Each stream is registered before its first launch, suspended and resumed.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <xsched/hip/hal.h>
#include <xsched/xsched.h>
#include "hip.h"

typedef hipError_t (*Launch)(const void *, dim3, dim3, void **, size_t, hipStream_t);
typedef hipError_t (*Create)(hipStream_t *);
typedef hipError_t (*Synchronize)(hipStream_t);
typedef hipError_t (*Register)(void *, const void *, const char *, const char *, unsigned, void *, void *, void *, void *, int *);

static char increment;
static uint64_t counted;

typedef struct { Launch launch; hipStream_t stream; int result; } Thread;

static void check(int is_correct, const char *what) {
    if (!is_correct) {
        printf("not so: %s (%s)\n", what, XSchedLastError());
        exit(70);
    }
}

static void *launch_one(void *of) {
    Thread *thread = of;
    dim3 one = {1, 1, 1};
    uint64_t *counter = &counted;
    void *args[] = {&counter};
    thread->result = thread->launch(&increment, one, one, args, 0, thread->stream);
    return NULL;
}

static uint64_t count(void) { return __atomic_load_n(&counted, __ATOMIC_SEQ_CST); }

static void suspend_and_resume(const char *runtime_name, Launch launch, Create create, Synchronize synchronize) {
    hipStream_t stream;
    HwQueueHandle hwq, again;
    XQueueHandle xq;
    XQueueState state;
    check(create(&stream) == 0, "the stream is made");
    check(HipQueueCreate(&hwq, (struct ihipStream_t *)stream) == kXSchedSuccess, "the stream is known");
    check(HipQueueCreate(&again, (struct ihipStream_t *)stream) == kXSchedSuccess, "and still is");
    check(XQueueCreate(&xq, hwq, kPreemptLevelBlock, kQueueCreateFlagNone) == kXSchedSuccess, "it is controlled");
    uint64_t before = count();
    Thread thread = {launch, stream, -1};
    launch_one(&thread);
    check(thread.result == 0 && count() == before + 1, "the launch arrives");
    check(XQueueSuspend(xq, kQueueSuspendFlagSyncHwQueue) == kXSchedSuccess, "suspend");
    pthread_t launcher;
    thread.result = -1;
    pthread_create(&launcher, NULL, launch_one, &thread);
    struct timespec pause = {.tv_nsec = 100000000};
    nanosleep(&pause, NULL);
    check(count() == before + 1, "the launch is held");
    check(XQueueQuery(xq, &state) == kXSchedSuccess && state == kQueueStateReady, "the queue is ready");
    check(XQueueResume(xq, kQueueResumeFlagNone) == kXSchedSuccess, "resume");
    pthread_join(launcher, NULL);
    check(thread.result == 0 && count() == before + 2, "the held launch arrives");
    check(synchronize(stream) == 0 && XQueueWaitAll(xq) == kXSchedSuccess, "wait for completion");
    check(XQueueDestroy(xq) == kXSchedSuccess && HwQueueDestroy(hwq) == kXSchedSuccess, "destroy");
    printf("%s: correct\n", runtime_name);
}

int main(void) {
    HwQueueHandle none;
    hipStream_t stream;
    __hipRegisterFunction(NULL, &increment, "increment", "increment", 0, NULL, NULL, NULL, NULL, NULL);
    suspend_and_resume("linked runtime", hipLaunchKernel, hipStreamCreate, hipStreamSynchronize);
    void *runtime = dlopen(getenv("HIP_RUNTIME"), RTLD_NOW | RTLD_LOCAL);
    check(runtime != NULL, "the second copy loads");
    Create create = (Create)dlsym(runtime, "hipStreamCreate");
    ((Register)dlsym(runtime, "__hipRegisterFunction"))(NULL, &increment, "increment", "increment", 0, NULL, NULL, NULL, NULL, NULL);
    /* No launching function of the second copy has been looked up yet. */
    check(create(&stream) == 0 && HipQueueCreate(&none, (struct ihipStream_t *)stream) == kXSchedSuccess, "a stream of the second copy");
    Launch launch = (Launch)dlsym(runtime, "hipLaunchKernel");
    Thread foreign = {hipLaunchKernel, stream, 0};
    launch_one(&foreign);
    check(foreign.result == 709, "the linked runtime rejects a stream of the second copy");
    check(hipGetLastError() == 709 && hipGetLastError() == 0, "the last error is that of the launch only");
    suspend_and_resume("second runtime", launch, create, (Synchronize)dlsym(runtime, "hipStreamSynchronize"));
    check(HipQueueCreate(&none, (struct ihipStream_t *)&increment) != kXSchedSuccess, "an invalid stream is rejected");
    check(HipQueueCreate(NULL, (struct ihipStream_t *)stream) != kXSchedSuccess, "a null result pointer is rejected");
    check(hipGetLastError() == 0, "no error is left");
    return 0;
}
