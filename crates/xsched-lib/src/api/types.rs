//! The types, values and limits of the C interface. Names and numbers are those of the original C++ XSched.
#![allow(non_camel_case_types, non_upper_case_globals, reason = "names of C")]
#![allow(clippy::doc_markdown, reason = "the headers have the same text")]
#![allow(dead_code, reason = "the headers have all of them")]

use std::ffi::c_void;

pub(crate) type int32_t = i32;
pub(crate) type int64_t = i64;
pub(crate) type size_t = usize;

pub(crate) type XQueueHandle = u64;
pub(crate) type HwQueueHandle = u64;
pub(crate) type HwCommandHandle = u64;

pub(crate) type Priority = int32_t;
pub(crate) type Utilization = int32_t;
pub(crate) type Timeslice = int64_t;
pub(crate) type Laxity = int64_t;
pub(crate) type Deadline = int64_t;

/// The function of a command, or null.
pub(crate) type LaunchCallback =
    Option<unsafe extern "C" fn(hwq: HwQueueHandle, data: *mut c_void) -> XResult>;

/// Defines C enums: an integer type each, and constants. An enum of C has 32 bits.
macro_rules! enums {
    ( $( $(#[doc = $about:literal])* $name:ident { $( $(#[doc = $doc:literal])* $value:ident = $number:literal, )* } )* ) => {
        $(
            $(#[doc = $about])*
            pub(crate) type $name = i32;
            $( $(#[doc = $doc])* pub(crate) const $value: $name = $number; )*
        )*

        /// All of them, for the headers.
        #[cfg(test)]
        pub(crate) const ENUMS: &[crate::api::header::Enum] = &[ $(
            crate::api::header::Enum {
                name: stringify!($name),
                about: &[ $($about),* ],
                values: &[ $( (stringify!($value), $number, &[ $($doc),* ]) ),* ],
            }
        ),* ];
    };
}

enums! {
    /// The result of every function. XSchedLastError() returns the reason of an error as text.
    XResult {
        /// Success.
        kXSchedSuccess = 0,
        /// The device or its driver failed.
        kXSchedErrorHardware = 1,
        /// A null pointer, the handle 0, or a value out of range.
        kXSchedErrorInvalidValue = 2,
        /// A handle that is stale or was never created.
        kXSchedErrorNotFound = 3,
        /// Not allowed in this state, or for this user.
        kXSchedErrorNotAllowed = 4,
        /// The device does not support it.
        kXSchedErrorNotSupported = 5,
        /// The service sent an invalid reply, or none.
        kXSchedErrorBadResponse = 6,
        /// Another error.
        kXSchedErrorUnknown = 999,
    }
    /// The vendor interface of a device.
    XPlatform {
        kPlatformUnknown = 0,
        kPlatformVPI = 1,
        kPlatformCUDA = 2,
        kPlatformCUDLA = 3,
        kPlatformHIP = 4,
        kPlatformAscend = 5,
        kPlatformOpenCL = 6,
        kPlatformLevelZero = 7,
    }
    /// The kind of a device.
    XDeviceType {
        kDeviceTypeUnknown = 0,
        kDeviceTypeCPU = 1,
        kDeviceTypeGPU = 2,
        kDeviceTypeNPU = 3,
        kDeviceTypeFPGA = 4,
        kDeviceTypeASIC = 5,
        kDeviceTypeMCA = 6,
    }
    /// The preemption level: which work of a queue is stopped when it is suspended.
    XPreemptLevel {
        kPreemptLevelUnknown = 0,
        /// Commands that are not launched.
        kPreemptLevelBlock = 1,
        /// Also commands that wait in the hardware queue.
        kPreemptLevelDeactivate = 2,
        /// Also the running command.
        kPreemptLevelInterrupt = 3,
        kPreemptLevelMax = 4,
    }
    /// Whether a queue has work.
    XQueueState {
        kQueueStateUnknown = 0,
        /// The queue has no work.
        kQueueStateIdle = 1,
        /// The queue has work, on the device or waiting.
        kQueueStateReady = 2,
    }
    /// The features of an XQueue. Every XQueue of this implementation has all of them.
    XQueueFeature {
        kQueueFeatureNone = 0,
        kQueueFeatureAsyncSubmit = 1,
        kQueueFeatureDynamicLevel = 2,
        kQueueFeatureDynamicThreshold = 4,
        kQueueFeatureDynamicBatchSize = 8,
        kQueueFeatureSyncSuspend = 16,
        kQueueFeatureResumeDropCommands = 32,
        kQueueFeatureMaskAll = -1,
    }
    /// Flags of XQueueCreate.
    XQueueCreateFlag {
        kQueueCreateFlagNone = 0,
        /// XQueueSubmit launches the command on the calling thread, and waits while the queue is suspended.
        kQueueCreateFlagBlockingSubmit = 1,
        kQueueCreateFlagMaskAll = -1,
    }
    /// Flags of XQueueSuspend.
    XQueueSuspendFlag {
        kQueueSuspendFlagNone = 0,
        /// Afterwards, waits for the work that is on the device.
        kQueueSuspendFlagSyncHwQueue = 1,
        /// Before, waits for the submitted commands.
        kQueueSuspendFlagWaitAll = 2,
        /// Before, waits until the queue is idle.
        kQueueSuspendFlagWaitIdle = 4,
        kQueueSuspendFlagMaskAll = -1,
    }
    /// Flags of XQueueResume.
    XQueueResumeFlag {
        kQueueResumeFlagNone = 0,
        /// Drops the commands that wait in the queue.
        kQueueResumeFlagDropCommands = 1,
        kQueueResumeFlagMaskAll = -1,
    }
    /// The scheduler of the program's XQueues.
    XSchedulerType {
        kSchedulerUnknown = 0,
        /// The program itself.
        kSchedulerAppManaged = 1,
        /// A scheduler inside the process.
        kSchedulerLocal = 2,
        /// The service, which schedules all programs.
        kSchedulerGlobal = 3,
        kSchedulerMax = 4,
    }
    /// The policy of a local scheduler.
    XPolicyType {
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
        kPolicyMax = 12,
    }
}

/// The longest time slice, in microseconds.
pub(crate) const TIMESLICE_MAX: i64 = 10_000_000;

/// The types of hints in the headers, each with its macros: name, value, comment.
#[cfg(test)]
pub(crate) const HINT_TYPES: &[HintType] = &[
    HintType {
        name: "Priority",
        of: "int32_t",
        about: "A priority; the higher one takes precedence.",
        macros: &[
            ("PRIORITY_NO_EXECUTE", "(-256)", "The queue does not run."),
            ("PRIORITY_MIN", "(-255)", "The lowest priority."),
            ("PRIORITY_DEFAULT", "0", "The priority of a queue without a hint."),
            ("PRIORITY_MAX", "255", "The highest priority."),
        ],
    },
    HintType {
        name: "Utilization",
        of: "int32_t",
        about: "A requested share, in percent of the device's time.",
        macros: &[
            ("UTILIZATION_MIN", "0", ""),
            ("UTILIZATION_DEFAULT", "100", ""),
            ("UTILIZATION_MAX", "100", ""),
        ],
    },
    HintType {
        name: "Timeslice",
        of: "int64_t",
        about: "A time slice in microseconds.",
        macros: &[
            ("TIMESLICE_MIN", "100", ""),
            ("TIMESLICE_DEFAULT", "5000", ""),
            ("TIMESLICE_MAX", "10000000", ""),
            ("TIMESLICE_UNLIMITED", "UINT64_MAX", "Stands for TIMESLICE_MAX."),
        ],
    },
    HintType {
        name: "Laxity",
        of: "int64_t",
        about: "How long work can wait, in microseconds.",
        macros: &[("NO_LAXITY", "(-1)", "Removes a laxity.")],
    },
    HintType {
        name: "Deadline",
        of: "int64_t",
        about: "A deadline in microseconds after the queue becomes busy.",
        macros: &[("NO_DEADLINE", "(-1)", "Removes a deadline.")],
    },
];

/// The type of a hint as C declares it.
#[cfg(test)]
pub(crate) struct HintType {
    pub(crate) name: &'static str,
    pub(crate) of: &'static str,
    pub(crate) about: &'static str,
    pub(crate) macros: &'static [(&'static str, &'static str, &'static str)],
}
