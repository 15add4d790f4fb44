// The headers in C++: every name with the number of the original C++ XSched, and every function with its type.
#include <cstdio>
#include <type_traits>

#include "xsched/xsched.h"

#include "xsched/cuda/hal.h"
#include "xsched/hip/hal.h"
#include "xsched/opencl/hal.h"
#include "xsched/xsim/hal.h"
// Including a header twice is allowed.
#include "xsched/xsched.h"

#define IS(name, number) static_assert(static_cast<long long>(name) == (number), #name)
#define TYPE(function, ...) static_assert(std::is_same<decltype(&function), XResult (*)(__VA_ARGS__)>::value, #function)

IS(kXSchedSuccess, 0); IS(kXSchedErrorHardware, 1); IS(kXSchedErrorInvalidValue, 2); IS(kXSchedErrorNotFound, 3);
IS(kXSchedErrorNotAllowed, 4); IS(kXSchedErrorNotSupported, 5); IS(kXSchedErrorBadResponse, 6); IS(kXSchedErrorUnknown, 999);
IS(kPlatformUnknown, 0); IS(kPlatformVPI, 1); IS(kPlatformCUDA, 2); IS(kPlatformCUDLA, 3); IS(kPlatformHIP, 4);
IS(kPlatformAscend, 5); IS(kPlatformOpenCL, 6); IS(kPlatformLevelZero, 7);
IS(kDeviceTypeUnknown, 0); IS(kDeviceTypeCPU, 1); IS(kDeviceTypeGPU, 2); IS(kDeviceTypeNPU, 3); IS(kDeviceTypeFPGA, 4);
IS(kDeviceTypeASIC, 5); IS(kDeviceTypeMCA, 6);
IS(kPreemptLevelUnknown, 0); IS(kPreemptLevelBlock, 1); IS(kPreemptLevelDeactivate, 2); IS(kPreemptLevelInterrupt, 3);
IS(kPreemptLevelMax, 4);
IS(kQueueStateUnknown, 0); IS(kQueueStateIdle, 1); IS(kQueueStateReady, 2);
IS(kQueueFeatureNone, 0); IS(kQueueFeatureAsyncSubmit, 1); IS(kQueueFeatureDynamicLevel, 2);
IS(kQueueFeatureDynamicThreshold, 4); IS(kQueueFeatureDynamicBatchSize, 8); IS(kQueueFeatureSyncSuspend, 16);
IS(kQueueFeatureResumeDropCommands, 32); IS(kQueueFeatureMaskAll, -1);
IS(kQueueCreateFlagNone, 0); IS(kQueueCreateFlagBlockingSubmit, 1); IS(kQueueCreateFlagMaskAll, -1);
IS(kQueueSuspendFlagNone, 0); IS(kQueueSuspendFlagSyncHwQueue, 1); IS(kQueueSuspendFlagWaitAll, 2);
IS(kQueueSuspendFlagWaitIdle, 4); IS(kQueueSuspendFlagMaskAll, -1);
IS(kQueueResumeFlagNone, 0); IS(kQueueResumeFlagDropCommands, 1); IS(kQueueResumeFlagMaskAll, -1);
IS(kSchedulerUnknown, 0); IS(kSchedulerAppManaged, 1); IS(kSchedulerLocal, 2); IS(kSchedulerGlobal, 3); IS(kSchedulerMax, 4);
IS(kPolicyUnknown, 0); IS(kPolicyHighestPriorityFirst, 1); IS(kPolicyHeterogeneousHighestPriorityFirst, 2);
IS(kPolicyCPUHighestPriorityFirst, 3); IS(kPolicyUtilizationPartition, 4); IS(kPolicyProcessUtilizationPartition, 5);
IS(kPolicyStrictProcessUtilizationPartition, 6); IS(kPolicyKEarliestDeadlineFirst, 7); IS(kPolicyLaxity, 8);
IS(kPolicyActiveWindowFirst, 9); IS(kPolicyCompletelyFairScheduler, 10); IS(kPolicyMultiLevelFeedbackQueue, 11);
IS(kPolicyMax, 12);
IS(PRIORITY_NO_EXECUTE, -256); IS(PRIORITY_MIN, -255); IS(PRIORITY_DEFAULT, 0); IS(PRIORITY_MAX, 255);
IS(UTILIZATION_MIN, 0); IS(UTILIZATION_DEFAULT, 100); IS(UTILIZATION_MAX, 100);
IS(TIMESLICE_MIN, 100); IS(TIMESLICE_DEFAULT, 5000); IS(TIMESLICE_MAX, 10000000);
static_assert(TIMESLICE_UNLIMITED == UINT64_MAX, "TIMESLICE_UNLIMITED");
IS(NO_LAXITY, -1); IS(NO_DEADLINE, -1);

static_assert(sizeof(XDevice) == 8 && sizeof(XDeviceId) == 4 && sizeof(XQueueHandle) == 8, "handles");
#define SAME(name, ...) static_assert(std::is_same<name, __VA_ARGS__>::value, #name)
SAME(LaunchCallback, XResult (*)(HwQueueHandle, void *)); SAME(Priority, int32_t); SAME(Utilization, int32_t);
SAME(Timeslice, int64_t); SAME(Laxity, int64_t); SAME(Deadline, int64_t);
SAME(CUstream, CUstream_st *); SAME(hipStream_t, ihipStream_t *); SAME(cl_command_queue, _cl_command_queue *);
static_assert(sizeof(HwQueueHandle) == 8 && sizeof(HwCommandHandle) == 8 && sizeof(XResult) == 4, "handles");

TYPE(XQueueCreate, XQueueHandle *, HwQueueHandle, int64_t, int64_t);
TYPE(XQueueDestroy, XQueueHandle);
TYPE(XQueueGet, XQueueHandle *, HwQueueHandle);
TYPE(XQueueSetPreemptLevel, XQueueHandle, XPreemptLevel);
TYPE(XQueueSetLaunchConfig, XQueueHandle, int64_t, int64_t);
TYPE(XQueueSubmit, XQueueHandle, HwCommandHandle);
TYPE(XQueueWait, XQueueHandle, HwCommandHandle);
TYPE(XQueueWaitAll, XQueueHandle);
TYPE(XQueueQuery, XQueueHandle, XQueueState *);
TYPE(XQueueSuspend, XQueueHandle, int64_t);
TYPE(XQueueResume, XQueueHandle, int64_t);
TYPE(XQueueProfileHwCommandCount, XQueueHandle, int64_t *);
TYPE(HwQueueDestroy, HwQueueHandle);
TYPE(HwQueueLaunch, HwQueueHandle, HwCommandHandle);
TYPE(HwQueueSynchronize, HwQueueHandle);
TYPE(HwCommandCreateCallback, HwCommandHandle *, LaunchCallback, void *);
TYPE(HwCommandDestroy, HwCommandHandle);
TYPE(XHintSetScheduler, XSchedulerType, XPolicyType);
TYPE(XHintPriority, XQueueHandle, int32_t);
TYPE(XHintUtilization, XQueueHandle, int32_t);
TYPE(XHintTimeslice, int64_t);
TYPE(XHintLaxity, XQueueHandle, int64_t, int32_t, int32_t);
TYPE(XHintDeadline, XQueueHandle, int64_t);
TYPE(XHintKDeadline, size_t);
TYPE(CudaQueueCreate, HwQueueHandle *, CUstream_st *);
TYPE(CudaQueueGet, HwQueueHandle *, CUstream_st *);
TYPE(HipQueueCreate, HwQueueHandle *, ihipStream_t *);
TYPE(OclQueueCreate, HwQueueHandle *, _cl_command_queue *);
TYPE(XsimQueueCreate, HwQueueHandle *, xsim_queue *);

int main() {
    // All library names of the original exist, and linking one of them is enough.
    if (XQueueDestroy(0) != kXSchedErrorInvalidValue) return 1;
    std::puts("compiled");
    return 0;
}
