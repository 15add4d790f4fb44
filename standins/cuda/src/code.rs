//! The driver's result codes.

use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `CUresult`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) c_int);

/// The result of an operation; the error is a `CUresult`.
pub(crate) type Outcome = Result<(), Code>;

macro_rules! codes {
    ($( $name:ident = $number:literal, $text:literal; )*) => {
        impl Code {
            $( pub(crate) const $name: Code = Code($number); )*

            /// The name and the text of a result code; none for an unknown number.
            fn name_and_text(self) -> Option<(&'static CStr, &'static CStr)> {
                match self {
                    $( Code::$name => Some((
                        c_str(concat!("CUDA_", stringify!($name), "\0")),
                        c_str(concat!($text, "\0")),
                    )), )*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    SUCCESS = 0, "no error";
    ERROR_INVALID_VALUE = 1, "invalid argument";
    ERROR_OUT_OF_MEMORY = 2, "out of memory";
    ERROR_NOT_INITIALIZED = 3, "initialization error";
    ERROR_NO_DEVICE = 100, "no CUDA-capable device is detected";
    ERROR_INVALID_DEVICE = 101, "invalid device ordinal";
    ERROR_INVALID_CONTEXT = 201, "invalid device context";
    ERROR_INVALID_HANDLE = 400, "invalid resource handle";
    ERROR_ILLEGAL_STATE = 401, "the operation cannot be performed in the present state";
    ERROR_NOT_FOUND = 500, "named symbol not found";
    ERROR_NOT_READY = 600, "device not ready";
    ERROR_ILLEGAL_ADDRESS = 700, "an illegal memory access was encountered";
    ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712, "part or all of the requested memory range is already mapped";
    ERROR_HOST_MEMORY_NOT_REGISTERED = 713, "pointer does not correspond to a registered memory region";
    ERROR_NOT_SUPPORTED = 801, "operation not supported";
    ERROR_STREAM_CAPTURE_UNSUPPORTED = 900, "operation not permitted when stream is capturing";
    ERROR_STREAM_CAPTURE_INVALIDATED = 901, "operation failed due to a previous error during capture";
    ERROR_STREAM_CAPTURE_MERGE = 902, "operation would result in a merge of separate capture sequences";
    ERROR_STREAM_CAPTURE_UNMATCHED = 903, "capture was not ended in the same stream as it began";
    ERROR_STREAM_CAPTURE_UNJOINED = 904, "capturing stream has unjoined work";
    ERROR_STREAM_CAPTURE_ISOLATION = 905, "dependency created on uncaptured work in another stream";
    ERROR_STREAM_CAPTURE_IMPLICIT = 906, "operation would make the legacy stream depend on a capturing blocking stream";
    ERROR_CAPTURED_EVENT = 907, "operation not permitted on an event last recorded in a capturing stream";
    ERROR_STREAM_CAPTURE_WRONG_THREAD = 908, "attempt to terminate a thread-local capture sequence from another thread";
    ERROR_UNKNOWN = 999, "unknown error";
}

const fn c_str(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("one zero byte, at the end"),
    }
}

/// Runs the body of an exported function. A panic becomes an error, so nothing unwinds into the caller.
pub(crate) fn to_code(work: impl FnOnce() -> Outcome) -> Code {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => Code::SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => Code::ERROR_UNKNOWN,
    }
}

/// Writes a result to an output parameter.
///
/// # Safety
/// `out` is null or valid for a write of `T`.
pub(crate) unsafe fn write_out<T>(out: *mut T, value: T) -> Outcome {
    if out.is_null() {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, and the caller guarantees that `out` is valid.
    unsafe { out.write_unaligned(value) };
    Ok(())
}

/// `cuGetErrorName`.
///
/// # Safety
/// `out` is null or valid for a write.
pub(crate) unsafe fn name(code: Code, out: *mut *const c_char) -> Outcome {
    let known = code.name_and_text();
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, known.map_or(std::ptr::null(), |(name, _)| name.as_ptr())) }?;
    known.map(drop).ok_or(Code::ERROR_INVALID_VALUE)
}

/// `cuGetErrorString`.
///
/// # Safety
/// As for [`name`].
pub(crate) unsafe fn text(code: Code, out: *mut *const c_char) -> Outcome {
    let known = code.name_and_text();
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, known.map_or(std::ptr::null(), |(_, text)| text.as_ptr())) }?;
    known.map(drop).ok_or(Code::ERROR_INVALID_VALUE)
}
