//! Which streams are being captured, and when a capture begins and ends.

use super::vendor::{self, Code, Stream};
use crate::captures::Captures;

static CAPTURES: Captures = Captures::new();

/// See [`Captures::unless_capturing`].
pub(crate) fn unless_capturing<R>(work: impl FnOnce() -> R) -> Option<R> {
    CAPTURES.unless_capturing(work)
}

/// Whether what is launched on this stream is recorded.
pub(crate) fn is_captured(stream: Stream) -> bool {
    if !CAPTURES.are_under_way() {
        return false;
    }
    let mut status = 0;
    let code = vendor::STREAM_IS_CAPTURING.get().map(|ask| {
        // SAFETY: the place has room for the answer.
        unsafe { ask(stream, &raw mut status) }
    });
    code != Some(vendor::SUCCESS) || status != 0
}

pub(crate) fn begin(real: impl FnOnce() -> Code) -> Code {
    CAPTURES.begin();
    let code = real();
    if code != vendor::SUCCESS {
        over();
    }
    code
}

pub(crate) fn end(real: impl FnOnce() -> Code) -> Code {
    /// The stream was not being captured, or not by this thread.
    const NOT_ENDED: [Code; 5] = [1, 400, 401, 903, 908];
    let code = real();
    if !NOT_ENDED.contains(&code) {
        over();
    }
    code
}

/// A capture has ended, or never began.
pub(crate) fn over() {
    CAPTURES.over();
}
