//! The types, values and limits of the C interface. Names and numbers are the reference's.
#![allow(non_camel_case_types, non_upper_case_globals, reason = "C's names")]
#![allow(clippy::doc_markdown, reason = "the headers have the same words")]
#![allow(dead_code, reason = "the headers have them all, whether we use them or not")]

use std::ffi::c_void;

pub(crate) type int32_t = i32;
pub(crate) type int64_t = i64;
pub(crate) type size_t = usize;

pub(crate) type XQueueHandle = u64;
pub(crate) type HwQueueHandle = u64;
pub(crate) type HwCommandHandle = u64;

/// A command's function; none if it is null.
pub(crate) type Launch = Option<unsafe extern "C" fn(hwq: HwQueueHandle, data: *mut c_void) -> XResult>;

/// Defines C's enums: a number each, and the names of its values. C's own type has 32 bits, whatever is put into it.
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
    /// What every function answers. XSchedLastError() has the reason in words.
    XResult {
        /// It was done.
        kXSchedSuccess = 0,
        /// The device or its driver refused.
        kXSchedErrorHardware = 1,
        /// A null pointer, the handle 0, or a value out of range.
        kXSchedErrorInvalidValue = 2,
        /// A handle that is stale, or was never given out.
        kXSchedErrorNotFound = 3,
        /// Not now, or not for this user.
        kXSchedErrorNotAllowed = 4,
        /// The device cannot do it.
        kXSchedErrorNotSupported = 5,
        /// The service answered with something else, or not at all.
        kXSchedErrorBadResponse = 6,
        /// Something else.
        kXSchedErrorUnknown = 999,
    }
    /// Whose interface a device is driven through.
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
    /// What kind of device it is.
    XDeviceType {
        kDeviceTypeUnknown = 0,
        kDeviceTypeCPU = 1,
        kDeviceTypeGPU = 2,
        kDeviceTypeNPU = 3,
        kDeviceTypeFPGA = 4,
        kDeviceTypeASIC = 5,
        kDeviceTypeMCA = 6,
    }
    /// How much of a queue's work suspending it reaches.
    XPreemptLevel {
        kPreemptLevelUnknown = 0,
        /// Commands that have not been launched.
        kPreemptLevelBlock = 1,
        /// Also those that wait in the hardware queue.
        kPreemptLevelDeactivate = 2,
        /// Also the one that is running.
        kPreemptLevelInterrupt = 3,
        kPreemptLevelMax = 4,
    }
    /// Whether a queue has work.
    XQueueState {
        kQueueStateUnknown = 0,
        /// It has none.
        kQueueStateIdle = 1,
        /// It has some, on the device or waiting.
        kQueueStateReady = 2,
    }
    /// What an XQueue can do. Here every XQueue can do all of it.
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
        /// XQueueSubmit launches the command itself, and waits while the queue is stopped.
        kQueueCreateFlagBlockingSubmit = 1,
        kQueueCreateFlagMaskAll = -1,
    }
    /// Flags of XQueueSuspend.
    XQueueSuspendFlag {
        kQueueSuspendFlagNone = 0,
        /// Then waits for what is on the device already.
        kQueueSuspendFlagSyncHwQueue = 1,
        /// Before, waits for what was submitted.
        kQueueSuspendFlagWaitAll = 2,
        /// Before, waits until the queue is idle.
        kQueueSuspendFlagWaitIdle = 4,
        kQueueSuspendFlagMaskAll = -1,
    }
    /// Flags of XQueueResume.
    XQueueResumeFlag {
        kQueueResumeFlagNone = 0,
        /// Discards the commands that wait in the queue.
        kQueueResumeFlagDropCommands = 1,
        kQueueResumeFlagMaskAll = -1,
    }
    /// Who schedules the program's XQueues.
    XSchedulerType {
        kSchedulerUnknown = 0,
        /// The program, and nobody else.
        kSchedulerAppManaged = 1,
        /// A scheduler inside the process.
        kSchedulerLocal = 2,
        /// The service, together with all other programs.
        kSchedulerGlobal = 3,
        kSchedulerMax = 4,
    }
    /// How a local scheduler decides.
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

/// The longest turn, in microseconds.
pub(crate) const TIMESLICE_MAX: i64 = 10_000_000;

/// C's macros, for the headers: name, value, what it is.
#[cfg(test)]
pub(crate) const MACROS: &[(&str, &str, &str)] = &[
    ("PRIORITY_NO_EXECUTE", "(-256)", "The queue does not run at all."),
    ("PRIORITY_MIN", "(-255)", "The least important."),
    ("PRIORITY_DEFAULT", "0", "What a queue has unless told otherwise."),
    ("PRIORITY_MAX", "255", "The most important."),
    ("UTILIZATION_MIN", "0", "Percent of the device."),
    ("UTILIZATION_DEFAULT", "100", ""),
    ("UTILIZATION_MAX", "100", ""),
    ("TIMESLICE_MIN", "100", "Microseconds of a turn."),
    ("TIMESLICE_DEFAULT", "5000", ""),
    ("TIMESLICE_MAX", "10000000", ""),
    ("TIMESLICE_UNLIMITED", "UINT64_MAX", "Counts as TIMESLICE_MAX."),
    ("NO_LAXITY", "(-1)", "Takes a laxity back."),
    ("NO_DEADLINE", "(-1)", "Takes a deadline back."),
];
