//! The first launch of a new queue waits until the scheduler has decided about the queue.
//!
//! ```text
//!   process: mark_undecided ──► slot is published, scheduler is notified ──► first launch: wait_until_decided
//!   scheduler:                     reads the slot, writes the order ──► mark_decided ──┘  or FIRST_ORDER_TIMEOUT
//! ```
//!
//! A gate without an order is free. Without this wait the first launches of a process, and of each further queue, would run
//! while a task of higher precedence has work. The wait is limited: a scheduler that is stopped or overloaded delays the
//! first launch of a queue, and nothing else.

use std::time::Duration;

use super::{Gate, UNDECIDED};
use crate::sync::Ordering;
use crate::time::Nanos;

/// How long the first launch of a queue waits for the scheduler's first order. The order takes about 0.1 ms on a machine that
/// is not overloaded; on an overloaded one the scheduler's thread waits for a CPU, at most 4 ms with Linux's tick of 250 Hz.
pub const FIRST_ORDER_TIMEOUT: Duration = Duration::from_millis(5);

impl Gate {
    /// The queue is new: its first launch waits for the scheduler's first order. Call this before the scheduler can find the
    /// gate, and only if there is a scheduler.
    pub fn mark_undecided(&self) {
        self.word.word().fetch_or(UNDECIDED, Ordering::SeqCst);
    }

    /// The order in force is the scheduler's decision about the queue: releases the threads that wait for it. May be repeated.
    pub fn mark_decided(&self) {
        // After the order was written: a thread that sees the queue decided sees the order too.
        let before = self.word.word().fetch_and(!UNDECIDED, Ordering::SeqCst);
        if before & UNDECIDED != 0 {
            self.word.wake_all();
        }
    }

    /// Whether the scheduler has not decided about the queue yet.
    #[must_use]
    #[inline]
    pub fn is_undecided(&self) -> bool {
        // Acquire, with the write in `mark_decided`: the order that the scheduler wrote before is visible.
        self.word.word().load(Ordering::Acquire) & UNDECIDED != 0
    }

    /// Waits until the scheduler has decided about the queue, for at most [`FIRST_ORDER_TIMEOUT`]. Returns whether it has. If not,
    /// no further launch waits.
    #[cold]
    pub fn wait_until_decided(&self) -> bool {
        let deadline = Nanos::now() + Nanos::from(FIRST_ORDER_TIMEOUT);
        loop {
            let seen = self.word.word().load(Ordering::SeqCst);
            if seen & UNDECIDED == 0 {
                return true;
            }
            let now = Nanos::now();
            if now >= deadline {
                // For the other threads too: the queue has waited once.
                self.mark_decided();
                return false;
            }
            self.word.wait(seen, Some(Duration::from(deadline - now)));
        }
    }
}
