//! Stream capture: work on a captured stream becomes part of a model and does not run.

use std::ffi::c_int;

use super::vendor::{self, Code, SUCCESS, Stream};
use crate::captures::Captures;
use crate::hooks::call;

static CAPTURES: Captures = Captures::new();

/// See [`Captures::unless_capturing`].
pub(crate) fn unless_capturing<R>(work: impl FnOnce() -> R) -> Option<R> {
    CAPTURES.unless_capturing(work)
}

/// Whether work on this stream of the program is captured. Also true if the vendor does not report it.
pub(crate) fn is_captured(stream: Stream) -> bool {
    if !CAPTURES.is_capturing() {
        return false;
    }
    let (mut status, mut model): (c_int, _) = (0, std::ptr::null_mut());
    // SAFETY: the program passes the same stream to the vendor; both variables have room for the results.
    let asked = unsafe { call!(vendor::CAPTURE_INFO, stream, &raw mut status, &raw mut model) };
    asked.is_err() || status != 0
}

/// Calls `real`, which begins a capture.
pub(crate) fn begin(real: impl FnOnce() -> Code) -> Code {
    CAPTURES.begin();
    let code = real();
    if code != SUCCESS {
        CAPTURES.end();
    }
    code
}

/// Calls `real`, which ends the capture of a stream.
pub(crate) fn end(real: impl FnOnce() -> Code, stream: Stream) -> Code {
    let was_captured = is_captured(stream);
    let code = real();
    // A capture that failed may have ended too.
    if was_captured && (code == SUCCESS || !is_captured(stream)) {
        CAPTURES.end();
    }
    code
}
