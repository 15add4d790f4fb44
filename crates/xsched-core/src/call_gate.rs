//! A gate for the calls of a process that use its device memory: closed while that memory is elsewhere.
//!
//! ```text
//!            close                       commit
//!     open ────────► closing, draining ──────────► closed         calls that began before are waited for while draining
//!       ▲                  │ abandon                 │ open
//!       └──────────────────┴─────────────────────────┘
//! ```
//! One thread closes, commits and opens. A call may depend on another one: the work that is being drained may wait for a
//! thread that is held here. So a thread that is held for too long abandons the closing, unless it is committed.

use std::time::{Duration, Instant};

use crate::sync::{Futex, Ordering};

/// The number of calls, and the two flags above it.
const COUNT: u32 = (1 << 29) - 1;
const CLOSING: u32 = 1 << 30;
const COMMITTED: u32 = 1 << 31;

/// How often a held thread checks how long the closing has lasted.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// See the head of this file. A new gate is open.
#[derive(Debug)]
pub struct CallGate {
    /// The calls in progress, [`CLOSING`] and [`COMMITTED`]. The thread that closes the gate sleeps on it.
    state: Futex,
    /// Changes when the gate is opened. Held threads sleep on it.
    openings: Futex,
    /// How many threads are held.
    held: Futex,
}

/// A call in progress, until it is dropped.
#[derive(Debug)]
pub struct Call<'a>(&'a CallGate);

impl CallGate {
    /// An open gate.
    #[cfg(not(loom))]
    #[must_use]
    #[expect(clippy::new_without_default, reason = "loom's words are not constant")]
    pub const fn new() -> Self {
        Self { state: Futex::new(0), openings: Futex::new(0), held: Futex::new(0) }
    }

    /// An open gate.
    #[cfg(loom)]
    #[must_use]
    #[expect(clippy::new_without_default, reason = "as for other builds")]
    pub fn new() -> Self {
        Self { state: Futex::new(0), openings: Futex::new(0), held: Futex::new(0) }
    }

    /// Begins a call. While the gate is closed the thread is held here; `on_hold` is called before. A closing that is not
    /// committed `patience` after the thread was held first is abandoned.
    #[inline]
    pub fn enter(&self, patience: Duration, on_hold: impl FnOnce()) -> Call<'_> {
        if self.try_begin() { Call(self) } else { self.wait_and_enter(patience, on_hold) }
    }

    #[inline]
    fn try_begin(&self) -> bool {
        // SeqCst: either the closing thread counts this call, or this thread finds the flag. One atomic word orders both.
        if self.state.word().fetch_add(1, Ordering::SeqCst) & CLOSING == 0 {
            return true;
        }
        self.end();
        false
    }

    #[cold]
    fn wait_and_enter(&self, patience: Duration, on_hold: impl FnOnce()) -> Call<'_> {
        self.held.word().fetch_add(1, Ordering::SeqCst);
        on_hold();
        let since = Instant::now();
        loop {
            let seen = self.openings.word().load(Ordering::SeqCst);
            // After the load: an opening in between changes the word, and this thread does not sleep.
            if self.try_begin() {
                break;
            }
            if since.elapsed() >= patience && self.abandon() {
                continue;
            }
            self.openings.wait(seen, Some(CHECK_INTERVAL));
        }
        self.held.word().fetch_sub(1, Ordering::SeqCst);
        Call(self)
    }

    #[inline]
    fn end(&self) {
        let before = self.state.word().fetch_sub(1, Ordering::SeqCst);
        if before & CLOSING != 0 && before & COUNT == 1 {
            self.state.wake_all();
        }
    }

    /// Closes an open gate: calls that begin from now on are held.
    pub fn close(&self) {
        self.state.word().fetch_or(CLOSING, Ordering::SeqCst);
    }

    /// Waits until no call is in progress. Returns false after `timeout`, or if the closing was abandoned.
    #[must_use]
    pub fn wait_until_empty(&self, timeout: Duration) -> bool {
        let since = Instant::now();
        loop {
            let state = self.state.word().load(Ordering::SeqCst);
            if state & CLOSING == 0 || state & COUNT == 0 {
                return state & CLOSING != 0;
            }
            let Some(left) = timeout.checked_sub(since.elapsed()) else { return false };
            self.state.wait(state, Some(left.min(CHECK_INTERVAL)));
        }
    }

    /// Commits the closing: it can no longer be abandoned. Returns false if it was. The caller has waited for all calls.
    #[must_use]
    pub fn commit(&self) -> bool {
        let commit = |state: u32| (state & CLOSING != 0).then_some(state | COMMITTED);
        self.state.word().fetch_update(Ordering::SeqCst, Ordering::SeqCst, commit).is_ok()
    }

    /// Ends a closing that is not committed. Returns false if there is none.
    pub fn abandon(&self) -> bool {
        let abandon =
            |state: u32| (state & CLOSING != 0 && state & COMMITTED == 0).then_some(state & !CLOSING);
        let is_done = self.state.word().fetch_update(Ordering::SeqCst, Ordering::SeqCst, abandon).is_ok();
        if is_done {
            self.openings.bump();
            self.state.wake_all();
        }
        is_done
    }

    /// Opens the gate, whatever its state.
    pub fn open(&self) {
        self.state.word().fetch_and(!(CLOSING | COMMITTED), Ordering::SeqCst);
        self.openings.bump();
    }

    /// Whether the gate is closed, and nothing but [`CallGate::open`] opens it.
    #[must_use]
    pub fn is_committed(&self) -> bool {
        self.state.word().load(Ordering::SeqCst) & COMMITTED != 0
    }

    /// How many threads are held.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.held.word().load(Ordering::SeqCst)
    }
}

impl Drop for Call<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32};

    const LONG: Duration = Duration::from_secs(600);

    fn enter(gate: &CallGate) -> Call<'_> {
        gate.enter(LONG, || {})
    }

    #[test]
    fn closing_waits_for_calls_and_holds_new_ones_until_it_is_opened() {
        let gate = CallGate::new();
        let call = enter(&gate);
        gate.close();
        assert!(!gate.wait_until_empty(Duration::ZERO), "a call is in progress");
        let is_called = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let _call = enter(&gate);
                is_called.store(true, Ordering::SeqCst);
            });
            while gate.held() == 0 {
                std::thread::yield_now();
            }
            drop(call);
            assert!(gate.wait_until_empty(LONG) && gate.commit());
            assert!(!gate.abandon() && gate.is_committed());
            assert!(!is_called.load(Ordering::SeqCst));
            gate.open();
        });
        assert!(is_called.load(Ordering::SeqCst) && gate.held() == 0);
        assert!(!gate.commit(), "it is open");
    }

    #[test]
    fn thread_that_is_held_for_too_long_abandons_the_closing() {
        let gate = CallGate::new();
        // The call in progress ends only when the held thread has run.
        let call = enter(&gate);
        gate.close();
        drop(gate.enter(Duration::ZERO, || {}));
        assert!(!gate.wait_until_empty(LONG) && !gate.commit());
        drop(call);
        gate.close();
        assert!(gate.wait_until_empty(LONG) && gate.commit(), "a later closing is not affected");
    }

    #[test]
    fn no_call_is_in_progress_while_the_gate_is_committed() {
        let gate = CallGate::new();
        let (inside, ends) = (AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    while !ends.load(Ordering::SeqCst) {
                        let _call = gate.enter(LONG, || {});
                        inside.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
            for _ in 0..200 {
                gate.close();
                assert!(gate.wait_until_empty(LONG) && gate.commit());
                assert_eq!(inside.load(Ordering::SeqCst), 0);
                gate.open();
            }
            ends.store(true, Ordering::SeqCst);
        });
    }
}
