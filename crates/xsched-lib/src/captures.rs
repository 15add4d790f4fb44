//! Stream capture: work that is launched on a captured stream is recorded into a graph, not run.
//!
//! While a capture is active, the library places nothing into any stream. Some kinds of capture fail if the program launches
//! anything else, and a captured marker would be placed at every replay of the graph.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The captures of one platform.
pub(crate) struct Captures {
    active: AtomicUsize,
    /// Threads that are placing something of the library into a stream.
    placing: AtomicUsize,
}

impl Captures {
    pub(crate) const fn new() -> Self {
        Self { active: AtomicUsize::new(0), placing: AtomicUsize::new(0) }
    }

    /// Whether a capture is active or about to begin.
    pub(crate) fn is_capturing(&self) -> bool {
        self.active.load(Ordering::SeqCst) != 0
    }

    /// Calls `work`, which places something of the library into a stream, unless a capture is active.
    pub(crate) fn unless_capturing<R>(&self, work: impl FnOnce() -> R) -> Option<R> {
        struct Placing<'a>(&'a AtomicUsize);
        impl Drop for Placing<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        // Announce first, then check. `begin` announces and checks the other way round, so that one of the two sees the other.
        self.placing.fetch_add(1, Ordering::SeqCst);
        let _placing = Placing(&self.placing);
        (!self.is_capturing()).then(work)
    }

    /// A capture is about to begin. Returns when no thread is placing anything of the library.
    pub(crate) fn begin(&self) {
        self.active.fetch_add(1, Ordering::SeqCst);
        while self.placing.load(Ordering::SeqCst) != 0 {
            std::thread::sleep(Duration::from_micros(5));
        }
    }

    /// A capture has ended, or never began.
    pub(crate) fn end(&self) {
        let _ = self.active.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn nothing_is_placed_during_a_capture() {
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
        assert!(!captures.is_capturing(), "ending a capture that never began changes the count");
    }
}
