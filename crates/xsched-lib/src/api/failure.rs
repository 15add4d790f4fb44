//! Errors of the C interface: a code, and the reason as text.
#![allow(clippy::needless_pass_by_value, reason = "a reason is created for one error")]

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use xsched_core::{HalError, HintError, LevelError, QueueError};
use xsched_ipc::report::{Severity, report};
use xsched_ipc::{HintFailure, JoinError, SchedulerError};

use super::types::{
    XResult, kXSchedErrorBadResponse, kXSchedErrorHardware, kXSchedErrorInvalidValue, kXSchedErrorNotAllowed,
    kXSchedErrorNotFound, kXSchedErrorNotSupported, kXSchedErrorUnknown, kXSchedSuccess,
};

/// Why a function failed.
pub(crate) struct Failure {
    code: XResult,
    why: String,
}

/// The result of a function of the C interface.
pub(crate) type ApiResult<T = ()> = Result<T, Failure>;

impl Failure {
    pub(crate) fn invalid(why: impl ToString) -> Self {
        Self { code: kXSchedErrorInvalidValue, why: why.to_string() }
    }

    pub(crate) fn not_found(why: impl ToString) -> Self {
        Self { code: kXSchedErrorNotFound, why: why.to_string() }
    }

    pub(crate) fn not_allowed(why: impl ToString) -> Self {
        Self { code: kXSchedErrorNotAllowed, why: why.to_string() }
    }

    pub(crate) fn not_supported(why: impl ToString) -> Self {
        Self { code: kXSchedErrorNotSupported, why: why.to_string() }
    }

    fn unknown(why: impl ToString) -> Self {
        Self { code: kXSchedErrorUnknown, why: why.to_string() }
    }

    /// The function of a command returned this code.
    pub(crate) fn of_callback(code: XResult) -> Self {
        Self { code, why: format!("the command's function returned {code}") }
    }

    #[cfg(test)]
    pub(crate) fn code(&self) -> XResult {
        self.code
    }

    /// The process is exiting.
    pub(crate) fn process_exiting() -> Self {
        Self::not_allowed("the process is exiting: nothing is scheduled any more")
    }
}

impl From<HintError> for Failure {
    fn from(error: HintError) -> Self {
        Self::invalid(error)
    }
}

impl From<LevelError> for Failure {
    fn from(error: LevelError) -> Self {
        match error {
            LevelError::NoSuchLevel(_) => Self::invalid(error),
            LevelError::NotSupported { .. } => Self::not_supported(error),
        }
    }
}

impl From<HalError> for Failure {
    fn from(error: HalError) -> Self {
        match error {
            HalError::Level(error) => error.into(),
            HalError::Driver { .. } => Self { code: kXSchedErrorHardware, why: error.to_string() },
        }
    }
}

impl From<QueueError> for Failure {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::Hardware(error) => error.into(),
            QueueError::NoWorker(..) => Self::unknown(error),
            QueueError::Finished(_) => Self::not_found(error),
        }
    }
}

impl From<JoinError> for Failure {
    fn from(error: JoinError) -> Self {
        match error {
            JoinError::Level(error) => error.into(),
            JoinError::NoSlot => Self::not_allowed(error),
            JoinError::NoThread(_) => Self::unknown(error),
        }
    }
}

impl From<SchedulerError> for Failure {
    fn from(error: SchedulerError) -> Self {
        Self::unknown(error)
    }
}

impl From<HintFailure> for Failure {
    fn from(error: HintFailure) -> Self {
        match error {
            HintFailure::OutOfRange(error) => error.into(),
            HintFailure::UnknownQueue => Self::not_found(error),
            HintFailure::TooManyQueueHints | HintFailure::Refused(_) => Self::not_allowed(error),
            HintFailure::NoReply => Self { code: kXSchedErrorBadResponse, why: error.to_string() },
        }
    }
}

/// Calls the implementation of a function, and returns its code. A panic is an error like any other.
#[inline]
pub(crate) fn to_code(function: &'static str, work: impl FnOnce() -> ApiResult) -> XResult {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => kXSchedSuccess,
        Ok(Err(failure)) => record(function, &failure),
        Err(_) => record(function, &Failure::unknown("internal error of XSched")),
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

#[cold]
fn record(function: &str, failure: &Failure) -> XResult {
    let line = format!("{function}: {}", failure.why);
    report(Severity::Debug, format_args!("{line}"));
    // A thread that is ending does not read it.
    let _ = LAST.try_with(|last| {
        if let (Ok(mut last), Ok(line)) = (last.try_borrow_mut(), CString::new(line)) {
            *last = line;
        }
    });
    failure.code
}

/// The text of the last error on this thread.
pub(crate) fn last() -> *const c_char {
    LAST.try_with(|last| last.try_borrow().map_or(c"".as_ptr(), |last| last.as_ptr())).unwrap_or(c"".as_ptr())
}
