//! Streams that are being captured: what goes into one is recorded, not run.
//!
//! While there is one, nothing of ours is put into any stream: some kinds of capture are spoilt by whatever else the
//! program does, and a marker in a graph would be written at every replay.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::vendor::{self, Code, Stream};

static CAPTURES: AtomicUsize = AtomicUsize::new(0);
/// Threads that are putting something of ours into a stream.
static PLACING: AtomicUsize = AtomicUsize::new(0);

/// Does `work`, which puts something of ours into a stream, unless a capture is under way.
pub(crate) fn unless_capturing<R>(work: impl FnOnce() -> R) -> Option<R> {
    struct Placing;
    impl Drop for Placing {
        fn drop(&mut self) {
            PLACING.fetch_sub(1, Ordering::SeqCst);
        }
    }
    // Said first, looked second; `begin` does it the other way round. So one of the two sees the other.
    PLACING.fetch_add(1, Ordering::SeqCst);
    let _placing = Placing;
    (CAPTURES.load(Ordering::SeqCst) == 0).then(work)
}

/// Whether what is launched on this stream is recorded.
pub(crate) fn is_captured(stream: Stream) -> bool {
    if CAPTURES.load(Ordering::SeqCst) == 0 {
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
    CAPTURES.fetch_add(1, Ordering::SeqCst);
    while PLACING.load(Ordering::SeqCst) != 0 {
        std::thread::sleep(Duration::from_micros(5));
    }
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
    let _ = CAPTURES.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
}
