//! What is answered when something fails: a code, and words for who asks.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use xsched_core::HalError;
use xsched_sim::SimError;

/// `xsim_result` of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) enum Code {
    /// Done.
    Success = 0,
    /// A null pointer, a handle that is none, a number out of range.
    InvalidValue = 1,
    /// Not finished yet.
    NotReady = 2,
    /// Can be neither opened nor made.
    NoDevice = 3,
    /// The device has no queue left.
    OutOfQueues = 4,
    /// The handle belongs to the parent of this process.
    Forked = 5,
    /// The device no longer knows this process.
    DeviceLost = 6,
    /// The device lacks the level asked for.
    NotSupported = 7,
    /// A fault of this library.
    Unknown = 999,
}

/// Why a call failed.
pub(crate) struct Failure {
    code: Code,
    words: String,
}

impl Failure {
    pub(crate) fn new(code: Code, words: impl Into<String>) -> Self {
        Self { code, words: words.into() }
    }

    /// Not a failure to remember: the answer to a question.
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

/// Runs what a function of the interface does. Nothing unwinds into the caller.
pub(crate) fn answer(work: impl FnOnce() -> Result<(), Failure>) -> Code {
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return Code::Success,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(Code::Unknown, "a fault of this library"),
    };
    if failure.code != Code::NotReady {
        let words = CString::new(failure.words).unwrap_or_default();
        // Fails only on a thread that is ending: then there is nobody to ask.
        let _ = LAST.try_with(|last| last.replace(words));
    }
    failure.code
}

/// The words of this thread's last failure.
pub(crate) fn last() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
