//! Stream capture: work that is launched on a captured stream is recorded into a graph, not run.
//!
//! While a capture is active, the library places nothing into any stream. Some kinds of capture fail if the program launches
//! anything else, and a captured marker would be placed at every replay of the graph.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// More than there are captures: see [`Captures::stop_placing`].
const STOPPED: usize = 1 << (usize::BITS / 2);

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

    /// The process exits: from now on nothing is placed, because the vendor's library is about to release what a call would
    /// use. Waits up to `limit` for threads that are placing something.
    pub(crate) fn stop_placing(&self, limit: Duration) {
        self.active.fetch_add(STOPPED, Ordering::SeqCst);
        let deadline = Instant::now() + limit;
        while self.placing.load(Ordering::SeqCst) != 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(50));
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

    #[test]
    fn nothing_is_placed_after_placing_was_stopped() {
        const LIMIT: Duration = Duration::from_secs(60);
        let (captures, is_placing, is_placed) =
            (Captures::new(), AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                captures.unless_capturing(|| {
                    is_placing.store(true, Ordering::SeqCst);
                    while !captures.is_capturing() {
                        std::thread::yield_now();
                    }
                    is_placed.store(true, Ordering::SeqCst);
                });
            });
            while !is_placing.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            captures.stop_placing(LIMIT);
            assert!(is_placed.load(Ordering::SeqCst), "returned while a thread was placing something");
        });
        // A program may end captures in its exit handlers.
        captures.end();
        assert_eq!(captures.unless_capturing(|| 1), None);
        // A thread that never returns from a call does not block the exit.
        captures.placing.store(1, Ordering::SeqCst);
        captures.stop_placing(Duration::ZERO);
    }
}
