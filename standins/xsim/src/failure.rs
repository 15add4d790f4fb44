//! Errors: a code, and a message for `xsim_last_error`.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use xsched_core::HalError;
use xsched_sim::SimError;

/// `xsim_result` of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) enum Code {
    /// The call succeeded.
    Success = 0,
    /// A null pointer, an invalid handle, or a number out of range.
    InvalidValue = 1,
    /// Not complete yet.
    NotReady = 2,
    /// The device can be neither opened nor created.
    NoDevice = 3,
    /// The device has no queue left.
    OutOfQueues = 4,
    /// The handle belongs to the parent of this process.
    Forked = 5,
    /// The device has removed this process.
    DeviceLost = 6,
    /// The device lacks the requested preemption level.
    NotSupported = 7,
    /// An internal error of this library.
    Unknown = 999,
}

/// Why a call failed.
pub(crate) struct Failure {
    code: Code,
    message: String,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Not an error: `xsim_last_error` does not report it.
    pub(crate) fn not_ready() -> Self {
        Self::new(Code::NotReady, "")
    }
}

impl From<SimError> for Failure {
    fn from(error: SimError) -> Self {
        let code = match error {
            SimError::Forked { .. } => Code::Forked,
            SimError::Gone { .. } => Code::DeviceLost,
            SimError::TooManyQueues { .. } => Code::OutOfQueues,
        };
        Self::new(code, error.to_string())
    }
}

impl From<HalError> for Failure {
    fn from(error: HalError) -> Self {
        let code = match error {
            HalError::Level(_) => Code::NotSupported,
            HalError::Driver { .. } => Code::DeviceLost,
        };
        Self::new(code, error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs the body of an exported function. A panic becomes an error, so nothing unwinds into the caller.
pub(crate) fn to_code(work: impl FnOnce() -> Result<(), Failure>) -> Code {
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return Code::Success,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(Code::Unknown, "an internal error of libxsim"),
    };
    if failure.code != Code::NotReady {
        let message = CString::new(failure.message).unwrap_or_default();
        // Fails only on a thread that is exiting, which makes no more calls.
        let _ = LAST.try_with(|last| last.replace(message));
    }
    failure.code
}

/// The message of this thread's last error.
pub(crate) fn last() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
