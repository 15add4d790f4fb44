//! Stream capture: which streams are being captured, and when a capture begins and ends.

use super::vendor::{self, Code, Stream};
use crate::captures::Captures;

static CAPTURES: Captures = Captures::new();

/// See [`Captures::unless_capturing`].
pub(crate) fn unless_capturing<R>(work: impl FnOnce() -> R) -> Option<R> {
    CAPTURES.unless_capturing(work)
}

/// Whether any stream is being captured.
pub(crate) fn is_active() -> bool {
    CAPTURES.is_capturing()
}

/// Whether launches on this stream are recorded into a graph. Also true if the driver does not report it.
pub(crate) fn is_captured(stream: Stream) -> bool {
    if !CAPTURES.is_capturing() {
        return false;
    }
    let mut status = 0;
    let code = vendor::STREAM_IS_CAPTURING.get().map(|is_capturing| {
        // SAFETY: `status` has room for the result; the stream is the one that the program passed to the driver.
        unsafe { is_capturing(stream, &raw mut status) }
    });
    code != Some(vendor::SUCCESS) || status != 0
}

/// Calls `real`, which begins a capture.
pub(crate) fn begin(real: impl FnOnce() -> Code) -> Code {
    CAPTURES.begin();
    let code = real();
    if code != vendor::SUCCESS {
        ended();
    }
    code
}

/// Calls `real`, which ends a capture.
pub(crate) fn end(real: impl FnOnce() -> Code) -> Code {
    /// Error codes after which the capture continues, or there was none: invalid value, invalid handle, illegal state,
    /// `CUDA_ERROR_STREAM_CAPTURE_UNMATCHED` and `CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD`.
    const CAPTURE_NOT_ENDED: [Code; 5] = [1, 400, 401, 903, 908];
    let code = real();
    if !CAPTURE_NOT_ENDED.contains(&code) {
        ended();
    }
    code
}

/// Counts a capture that has ended, or that failed to begin.
pub(crate) fn ended() {
    CAPTURES.end();
}
