//! Result codes, and the last error of each thread.

use std::cell::Cell;
use std::ffi::{c_char, c_int};
use std::sync::OnceLock;

pub(crate) type Code = c_int;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const INVALID_VALUE: Code = 1;
pub(crate) const OUT_OF_MEMORY: Code = 2;
pub(crate) const INVALID_FUNCTION: Code = 98;
pub(crate) const NO_DEVICE: Code = 100;
pub(crate) const INVALID_DEVICE: Code = 101;
pub(crate) const INVALID_HANDLE: Code = 400;
pub(crate) const NOT_FOUND: Code = 500;
pub(crate) const NOT_READY: Code = 600;
pub(crate) const CONTEXT_IS_DESTROYED: Code = 709;
pub(crate) const NOT_SUPPORTED: Code = 801;
pub(crate) const CAPTURE_IMPLICIT: Code = 906;
pub(crate) const CAPTURE_UNMATCHED: Code = 903;
pub(crate) const UNKNOWN: Code = 999;

thread_local! {
    static LAST: Cell<Code> = const { Cell::new(SUCCESS) };
}

/// Converts a result to a code, and records it as the thread's last error.
pub(crate) fn to_code(result: Result<(), Code>) -> Code {
    static RECORD_EVERY: OnceLock<bool> = OnceLock::new();
    let record_every = *RECORD_EVERY
        .get_or_init(|| std::env::var("HIP_STANDIN_LAST_ERROR").is_ok_and(|value| value == "every"));
    let code = result.err().unwrap_or(SUCCESS);
    if code != SUCCESS || record_every {
        LAST.set(code);
    }
    code
}

pub(crate) extern "C" fn get_last_error() -> Code {
    LAST.replace(SUCCESS)
}

pub(crate) extern "C" fn peek_at_last_error() -> Code {
    LAST.get()
}

pub(crate) extern "C" fn name(code: Code) -> *const c_char {
    let name = match code {
        SUCCESS => c"hipSuccess",
        INVALID_VALUE => c"hipErrorInvalidValue",
        INVALID_FUNCTION => c"hipErrorInvalidDeviceFunction",
        NO_DEVICE => c"hipErrorNoDevice",
        INVALID_DEVICE => c"hipErrorInvalidDevice",
        INVALID_HANDLE => c"hipErrorInvalidHandle",
        NOT_READY => c"hipErrorNotReady",
        CONTEXT_IS_DESTROYED => c"hipErrorContextIsDestroyed",
        NOT_SUPPORTED => c"hipErrorNotSupported",
        _ => c"hipErrorUnknown",
    };
    name.as_ptr()
}
