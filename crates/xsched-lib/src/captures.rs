//! Streams that are being captured: what goes into one is recorded, not run.
//!
//! While there is one, nothing of ours is put into any stream: some kinds of capture are spoilt by whatever else the
//! program does, and a marker in a graph would be placed at every replay.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The captures of a platform.
pub(crate) struct Captures {
    under_way: AtomicUsize,
    /// Threads that are putting something of ours into a stream.
    placing: AtomicUsize,
}

impl Captures {
    pub(crate) const fn new() -> Self {
        Self { under_way: AtomicUsize::new(0), placing: AtomicUsize::new(0) }
    }

    /// Whether a capture is under way, or about to begin.
    pub(crate) fn is_capturing(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) != 0
    }

    /// Does `work`, which puts something of ours into a stream, unless a capture is under way.
    pub(crate) fn unless_capturing<R>(&self, work: impl FnOnce() -> R) -> Option<R> {
        struct Placing<'a>(&'a AtomicUsize);
        impl Drop for Placing<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        // Said first, looked second; `begin` does it the other way round. So one of the two sees the other.
        self.placing.fetch_add(1, Ordering::SeqCst);
        let _placing = Placing(&self.placing);
        (!self.is_capturing()).then(work)
    }

    /// A capture is about to begin. Returns when nothing of ours is on its way into a stream.
    pub(crate) fn begin(&self) {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        while self.placing.load(Ordering::SeqCst) != 0 {
            std::thread::sleep(Duration::from_micros(5));
        }
    }

    /// A capture has ended, or never began.
    pub(crate) fn end(&self) {
        let _ = self.under_way.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn nothing_is_placed_once_a_capture_has_begun() {
        let (captures, records, end) = (Captures::new(), AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    while !end.load(Ordering::SeqCst) {
                        captures.unless_capturing(|| {
                            std::thread::yield_now();
                            assert!(!records.load(Ordering::SeqCst), "placed into a capture");
                        });
                    }
                });
            }
            for _ in 0..500 {
                captures.begin();
                records.store(true, Ordering::SeqCst);
                std::thread::yield_now();
                records.store(false, Ordering::SeqCst);
                captures.end();
            }
            end.store(true, Ordering::SeqCst);
        });
        assert_eq!(captures.unless_capturing(|| 1), Some(1));
        captures.end();
        assert!(!captures.is_capturing(), "what never began has ended");
    }
}
