//! What functions answer when they fail: a code, and the reason in words.
#![allow(clippy::needless_pass_by_value, reason = "reasons are made for this, and used once")]

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

/// Why something was not done.
pub(crate) struct Failure {
    code: XResult,
    why: String,
}

/// Done, or why not.
pub(crate) type Answer<T = ()> = Result<T, Failure>;

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

    /// A function of the program's that answered with this code.
    pub(crate) fn of_callback(code: XResult) -> Self {
        Self { code, why: format!("the command's own function answered {code}") }
    }

    #[cfg(test)]
    pub(crate) fn code(&self) -> XResult {
        self.code
    }

    /// The program has begun to end.
    pub(crate) fn over() -> Self {
        Self::not_allowed("the program is ending: nothing is scheduled any more")
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

/// Does what a function is for and answers with its code. A fault of ours is an error like any other.
#[inline]
pub(crate) fn answer(function: &'static str, work: impl FnOnce() -> Answer) -> XResult {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => kXSchedSuccess,
        Ok(Err(failure)) => note(function, &failure),
        Err(_) => note(function, &Failure::unknown("a fault of xsched's own")),
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

#[cold]
fn note(function: &str, failure: &Failure) -> XResult {
    let line = format!("{function}: {}", failure.why);
    report(Severity::Debug, format_args!("{line}"));
    // A thread that is ending asks no more.
    let _ = LAST.try_with(|last| {
        if let (Ok(mut last), Ok(line)) = (last.try_borrow_mut(), CString::new(line)) {
            *last = line;
        }
    });
    failure.code
}

/// What [`note`] noted last on this thread.
pub(crate) fn last() -> *const c_char {
    LAST.try_with(|last| last.try_borrow().map_or(c"".as_ptr(), |last| last.as_ptr())).unwrap_or(c"".as_ptr())
}
