/*
 * The C interface on HIP streams: one of the runtime that the program is linked to, and one of another copy, as a Python package
 * brings one along. Each is made known before anything was launched on it, held, and let go on.
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

typedef struct { Launch launch; hipStream_t stream; int answer; } Thread;

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
    thread->answer = thread->launch(&increment, one, one, args, 0, thread->stream);
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
    check(thread.answer == 0 && count() == before + 1, "it launches");
    check(XQueueSuspend(xq, kQueueSuspendFlagSyncHwQueue) == kXSchedSuccess, "it is suspended");
    pthread_t other;
    thread.answer = -1;
    pthread_create(&other, NULL, launch_one, &thread);
    struct timespec while_ago = {.tv_nsec = 100000000};
    nanosleep(&while_ago, NULL);
    check(count() == before + 1, "it is held");
    check(XQueueQuery(xq, &state) == kXSchedSuccess && state == kQueueStateReady, "it is ready");
    check(XQueueResume(xq, kQueueResumeFlagNone) == kXSchedSuccess, "it is resumed");
    pthread_join(other, NULL);
    check(thread.answer == 0 && count() == before + 2, "it goes on");
    check(synchronize(stream) == 0 && XQueueWaitAll(xq) == kXSchedSuccess, "it is done");
    check(XQueueDestroy(xq) == kXSchedSuccess && HwQueueDestroy(hwq) == kXSchedSuccess, "it is let go");
    printf("%s: correct\n", runtime_name);
}

int main(void) {
    HwQueueHandle none;
    hipStream_t stream;
    __hipRegisterFunction(NULL, &increment, "increment", "increment", 0, NULL, NULL, NULL, NULL, NULL);
    suspend_and_resume("linked runtime", hipLaunchKernel, hipStreamCreate, hipStreamSynchronize);
    void *runtime = dlopen(getenv("HIP_RUNTIME"), RTLD_NOW | RTLD_LOCAL);
    check(runtime != NULL, "there is another copy");
    Create create = (Create)dlsym(runtime, "hipStreamCreate");
    ((Register)dlsym(runtime, "__hipRegisterFunction"))(NULL, &increment, "increment", "increment", 0, NULL, NULL, NULL, NULL, NULL);
    /* Nothing of the other copy that launches has been looked up yet. */
    check(create(&stream) == 0 && HipQueueCreate(&none, (struct ihipStream_t *)stream) == kXSchedSuccess, "a stream of the other copy");
    Launch launch = (Launch)dlsym(runtime, "hipLaunchKernel");
    Thread stranger = {hipLaunchKernel, stream, 0};
    launch_one(&stranger);
    check(stranger.answer == 709, "it is unknown to the program's own copy");
    check(hipGetLastError() == 709 && hipGetLastError() == 0, "an error of the program's own, and no other");
    suspend_and_resume("second runtime", launch, create, (Synchronize)dlsym(runtime, "hipStreamSynchronize"));
    check(HipQueueCreate(&none, (struct ihipStream_t *)&increment) != kXSchedSuccess, "what is no stream is refused");
    check(HipQueueCreate(NULL, (struct ihipStream_t *)stream) != kXSchedSuccess, "and so is no place");
    check(hipGetLastError() == 0, "no error is left behind");
    return 0;
}
