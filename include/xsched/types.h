/*
 * XSched: types and values.
 *
 * Generated from the library's sources by `XSCHED_WRITE_HEADERS=1 cargo test -p xsched-lib headers`.
 */
#ifndef XSCHED_TYPES_H
#define XSCHED_TYPES_H

#include <stddef.h>
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

/** The result of every function. XSchedLastError() returns the reason of an error as text. */
typedef enum {
    /** Success. */
    kXSchedSuccess = 0,
    /** The device or its driver failed. */
    kXSchedErrorHardware = 1,
    /** A null pointer, the handle 0, or a value out of range. */
    kXSchedErrorInvalidValue = 2,
    /** A handle that is stale or was never created. */
    kXSchedErrorNotFound = 3,
    /** Not allowed in this state, or for this user. */
    kXSchedErrorNotAllowed = 4,
    /** The device does not support it. */
    kXSchedErrorNotSupported = 5,
    /** The service sent an invalid reply, or none. */
    kXSchedErrorBadResponse = 6,
    /** Another error. */
    kXSchedErrorUnknown = 999
} XResult;

/** The vendor interface of a device. */
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

/** The kind of a device. */
typedef enum {
    kDeviceTypeUnknown = 0,
    kDeviceTypeCPU = 1,
    kDeviceTypeGPU = 2,
    kDeviceTypeNPU = 3,
    kDeviceTypeFPGA = 4,
    kDeviceTypeASIC = 5,
    kDeviceTypeMCA = 6
} XDeviceType;

/** The preemption level: which work of a queue is stopped when it is suspended. */
typedef enum {
    kPreemptLevelUnknown = 0,
    /** Commands that are not launched. */
    kPreemptLevelBlock = 1,
    /** Also commands that wait in the hardware queue. */
    kPreemptLevelDeactivate = 2,
    /** Also the running command. */
    kPreemptLevelInterrupt = 3,
    kPreemptLevelMax = 4
} XPreemptLevel;

/** Whether a queue has work. */
typedef enum {
    kQueueStateUnknown = 0,
    /** The queue has no work. */
    kQueueStateIdle = 1,
    /** The queue has work, on the device or waiting. */
    kQueueStateReady = 2
} XQueueState;

/** The features of an XQueue. Every XQueue of this implementation has all of them. */
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
    /** XQueueSubmit launches the command on the calling thread, and waits while the queue is suspended. */
    kQueueCreateFlagBlockingSubmit = 1,
    kQueueCreateFlagMaskAll = -1
} XQueueCreateFlag;

/** Flags of XQueueSuspend. */
typedef enum {
    kQueueSuspendFlagNone = 0,
    /** Afterwards, waits for the work that is on the device. */
    kQueueSuspendFlagSyncHwQueue = 1,
    /** Before, waits for the submitted commands. */
    kQueueSuspendFlagWaitAll = 2,
    /** Before, waits until the queue is idle. */
    kQueueSuspendFlagWaitIdle = 4,
    kQueueSuspendFlagMaskAll = -1
} XQueueSuspendFlag;

/** Flags of XQueueResume. */
typedef enum {
    kQueueResumeFlagNone = 0,
    /** Drops the commands that wait in the queue. */
    kQueueResumeFlagDropCommands = 1,
    kQueueResumeFlagMaskAll = -1
} XQueueResumeFlag;

/** The scheduler of the program's XQueues. */
typedef enum {
    kSchedulerUnknown = 0,
    /** The program itself. */
    kSchedulerAppManaged = 1,
    /** A scheduler inside the process. */
    kSchedulerLocal = 2,
    /** The service, which schedules all programs. */
    kSchedulerGlobal = 3,
    kSchedulerMax = 4
} XSchedulerType;

/** The policy of a local scheduler. */
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

/** The function of a command. `hwq` is the hardware queue to launch on, `data` what the command was created with. */
typedef XResult (*LaunchCallback)(HwQueueHandle hwq, void *data);

/** A priority; the higher one takes precedence. */
typedef int32_t Priority;
/** The queue does not run. */
#define PRIORITY_NO_EXECUTE (-256)
/** The lowest priority. */
#define PRIORITY_MIN (-255)
/** The priority of a queue without a hint. */
#define PRIORITY_DEFAULT 0
/** The highest priority. */
#define PRIORITY_MAX 255

/** A requested share, in percent of the device's time. */
typedef int32_t Utilization;
#define UTILIZATION_MIN 0
#define UTILIZATION_DEFAULT 100
#define UTILIZATION_MAX 100

/** A time slice in microseconds. */
typedef int64_t Timeslice;
#define TIMESLICE_MIN 100
#define TIMESLICE_DEFAULT 5000
#define TIMESLICE_MAX 10000000
/** Stands for TIMESLICE_MAX. */
#define TIMESLICE_UNLIMITED UINT64_MAX

/** How long work can wait, in microseconds. */
typedef int64_t Laxity;
/** Removes a laxity. */
#define NO_LAXITY (-1)

/** A deadline in microseconds after the queue becomes busy. */
typedef int64_t Deadline;
/** Removes a deadline. */
#define NO_DEADLINE (-1)

#ifdef __cplusplus
}
#endif

#endif
