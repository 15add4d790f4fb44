/*
 * XSched: types and values.
 *
 * Generated from the library's sources by `XSCHED_WRITE_HEADERS=1 cargo test -p xsched-lib headers`.
 */
#ifndef XSCHED_TYPES_H
#define XSCHED_TYPES_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A device: its kind in the upper 32 bits, its PCI address in the lower. */
typedef uint64_t XDevice;
/** The PCI address of a device. */
typedef uint32_t XDeviceId;
/** An XQueue. 0 is invalid. */
typedef uint64_t XQueueHandle;
/** A hardware queue: a vendor's queue for which a handle was created. 0 is invalid. */
typedef uint64_t HwQueueHandle;
/** A command. 0 is invalid. */
typedef uint64_t HwCommandHandle;

/** What every function answers. XSchedLastError() has the reason in words. */
typedef enum {
    /** It was done. */
    kXSchedSuccess = 0,
    /** The device or its driver refused. */
    kXSchedErrorHardware = 1,
    /** A null pointer, the handle 0, or a value out of range. */
    kXSchedErrorInvalidValue = 2,
    /** A handle that is stale, or was never given out. */
    kXSchedErrorNotFound = 3,
    /** Not now, or not for this user. */
    kXSchedErrorNotAllowed = 4,
    /** The device cannot do it. */
    kXSchedErrorNotSupported = 5,
    /** The service answered with something else, or not at all. */
    kXSchedErrorBadResponse = 6,
    /** Something else. */
    kXSchedErrorUnknown = 999
} XResult;

/** Whose interface a device is driven through. */
typedef enum {
    kPlatformUnknown = 0,
    kPlatformVPI = 1,
    kPlatformCUDA = 2,
    kPlatformCUDLA = 3,
    kPlatformHIP = 4,
    kPlatformAscend = 5,
    kPlatformOpenCL = 6,
    kPlatformLevelZero = 7
} XPlatform;

/** What kind of device it is. */
typedef enum {
    kDeviceTypeUnknown = 0,
    kDeviceTypeCPU = 1,
    kDeviceTypeGPU = 2,
    kDeviceTypeNPU = 3,
    kDeviceTypeFPGA = 4,
    kDeviceTypeASIC = 5,
    kDeviceTypeMCA = 6
} XDeviceType;

/** How much of a queue's work suspending it reaches. */
typedef enum {
    kPreemptLevelUnknown = 0,
    /** Commands that have not been launched. */
    kPreemptLevelBlock = 1,
    /** Also those that wait in the hardware queue. */
    kPreemptLevelDeactivate = 2,
    /** Also the one that is running. */
    kPreemptLevelInterrupt = 3,
    kPreemptLevelMax = 4
} XPreemptLevel;

/** Whether a queue has work. */
typedef enum {
    kQueueStateUnknown = 0,
    /** It has none. */
    kQueueStateIdle = 1,
    /** It has some, on the device or waiting. */
    kQueueStateReady = 2
} XQueueState;

/** What an XQueue can do. Here every XQueue can do all of it. */
typedef enum {
    kQueueFeatureNone = 0,
    kQueueFeatureAsyncSubmit = 1,
    kQueueFeatureDynamicLevel = 2,
    kQueueFeatureDynamicThreshold = 4,
    kQueueFeatureDynamicBatchSize = 8,
    kQueueFeatureSyncSuspend = 16,
    kQueueFeatureResumeDropCommands = 32,
    kQueueFeatureMaskAll = -1
} XQueueFeature;

/** Flags of XQueueCreate. */
typedef enum {
    kQueueCreateFlagNone = 0,
    /** XQueueSubmit launches the command itself, and waits while the queue is stopped. */
    kQueueCreateFlagBlockingSubmit = 1,
    kQueueCreateFlagMaskAll = -1
} XQueueCreateFlag;

/** Flags of XQueueSuspend. */
typedef enum {
    kQueueSuspendFlagNone = 0,
    /** Then waits for what is on the device already. */
    kQueueSuspendFlagSyncHwQueue = 1,
    /** Before, waits for what was submitted. */
    kQueueSuspendFlagWaitAll = 2,
    /** Before, waits until the queue is idle. */
    kQueueSuspendFlagWaitIdle = 4,
    kQueueSuspendFlagMaskAll = -1
} XQueueSuspendFlag;

/** Flags of XQueueResume. */
typedef enum {
    kQueueResumeFlagNone = 0,
    /** Discards the commands that wait in the queue. */
    kQueueResumeFlagDropCommands = 1,
    kQueueResumeFlagMaskAll = -1
} XQueueResumeFlag;

/** Who schedules the program's XQueues. */
typedef enum {
    kSchedulerUnknown = 0,
    /** The program, and nobody else. */
    kSchedulerAppManaged = 1,
    /** A scheduler inside the process. */
    kSchedulerLocal = 2,
    /** The service, together with all other programs. */
    kSchedulerGlobal = 3,
    kSchedulerMax = 4
} XSchedulerType;

/** How a local scheduler decides. */
typedef enum {
    kPolicyUnknown = 0,
    kPolicyHighestPriorityFirst = 1,
    kPolicyHeterogeneousHighestPriorityFirst = 2,
    kPolicyCPUHighestPriorityFirst = 3,
    kPolicyUtilizationPartition = 4,
    kPolicyProcessUtilizationPartition = 5,
    kPolicyStrictProcessUtilizationPartition = 6,
    kPolicyKEarliestDeadlineFirst = 7,
    kPolicyLaxity = 8,
    kPolicyActiveWindowFirst = 9,
    kPolicyCompletelyFairScheduler = 10,
    kPolicyMultiLevelFeedbackQueue = 11,
    kPolicyMax = 12
} XPolicyType;

#ifdef __cplusplus
}
#endif

#endif
