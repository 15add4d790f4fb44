//! Short gaps in a queue's work, of which nobody is told.
//!
//! To say that a queue has come to its end, and that it has work again, takes system calls and wakes the scheduler. A
//! program that waits for each piece of work before it launches the next would pay for that every time, and nobody is given
//! the device in so short a gap. So the end of a queue's work is kept back if the queue leads and has lately come back soon
//! each time. If it does stay away, whoever watches the queue tells.
//!
//! That a queue's work comes in such pieces is told, though: whoever else is on the device had better leave it meanwhile.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{LaunchPath, lock};
use crate::gate::{Epoch, Gate, Order};
use crate::time::Nanos;

/// Who comes back within that has made a short gap.
const SHORT: Nanos = Nanos::from_micros(250);
/// After so many short gaps the next one is expected to be short, and the work to come in pieces.
const ENOUGH: u32 = 3;

#[derive(Default)]
pub(super) struct Rest {
    /// Since when the queue is known to have nothing to do; zero if it was launched to since.
    since: AtomicU64,
    /// How many gaps were short, one after the other, since an end that was kept back had to be told after all.
    short_gaps: AtomicU32,
    /// How many were short since the last long one, whatever had to be told.
    pieces: AtomicU32,
    /// The end that was kept back: the gate, and what had been launched through it.
    deferred_idle: Mutex<Option<(usize, Epoch)>>,
}

impl Rest {
    fn begin(&self) {
        if self.since.load(Ordering::Relaxed) == 0 {
            self.since.store(Nanos::now().0, Ordering::Relaxed);
        }
    }

    /// The queue has work again. Nearly always there was no gap at all; else it is known now whether the work comes in pieces,
    /// unless it has only begun.
    #[inline]
    pub(super) fn end(&self) -> Option<bool> {
        // Relaxed, here and below: what is kept of the gaps only says what is likely.
        let since = self.since.load(Ordering::Relaxed);
        if since == 0 { None } else { self.end_since(Nanos(since)) }
    }

    fn end_since(&self, since: Nanos) -> Option<bool> {
        self.since.store(0, Ordering::Relaxed);
        let pieces = self.pieces.load(Ordering::Relaxed);
        if Nanos::now() - since <= SHORT {
            let one_more = |count: u32| ENOUGH.min(count + 1);
            self.short_gaps.store(one_more(self.short_gaps.load(Ordering::Relaxed)), Ordering::Relaxed);
            self.pieces.store(one_more(pieces), Ordering::Relaxed);
            (one_more(pieces) == ENOUGH).then_some(true)
        } else {
            self.short_gaps.store(0, Ordering::Relaxed);
            self.pieces.store(0, Ordering::Relaxed);
            Some(pieces == ENOUGH)
        }
    }

    fn is_expected_to_be_short(&self) -> bool {
        self.short_gaps.load(Ordering::Relaxed) >= ENOUGH
    }

    /// Whether this end was kept back. It no longer is.
    pub(super) fn take_back(&self, gate: &Gate, epoch: Epoch) -> bool {
        let mut deferred_idle = lock(&self.deferred_idle);
        let is_this = *deferred_idle == Some((std::ptr::from_ref(gate).addr(), epoch));
        if is_this {
            *deferred_idle = None;
            // It stayed away after all, or somebody wants to know each time.
            self.short_gaps.store(0, Ordering::Relaxed);
        }
        is_this
    }
}

impl LaunchPath {
    /// Somebody has waited for everything that was launched before the epoch, and it has completed.
    pub(super) fn completed(&self, gate: &Gate, epoch: Epoch) {
        if epoch.is_idle() {
            // There was nothing, and so nothing has ended.
            return;
        }
        let leads = || gate.order() == Order::Leader;
        if leads() && self.rest.is_expected_to_be_short() && gate.epoch() == epoch {
            *lock(&self.rest.deferred_idle) = Some((std::ptr::from_ref(gate).addr(), epoch));
            self.rest.begin();
            // Who changes the order looks for what was kept back; that may have been just before.
            if leads() {
                return;
            }
        }
        if self.mark_idle(gate, epoch) {
            self.rest.begin();
        }
    }

    /// Somebody has waited for something that may have been the end of the queue's work. Answers whether that should be found
    /// out now: it can wait if the queue is expected back soon.
    #[must_use]
    pub fn may_have_become_idle(&self) -> bool {
        let gate = self.gate();
        if gate.is_free() || gate.epoch().is_idle() {
            return false;
        }
        self.rest.begin();
        gate.order() != Order::Leader || !self.rest.is_expected_to_be_short()
    }

    /// Whether the queue seems to be in a gap that nobody was told of: then somebody has to look again soon.
    #[must_use]
    pub fn may_have_deferred_idle(&self) -> bool {
        self.rest.is_expected_to_be_short() && self.rest.since.load(Ordering::Relaxed) != 0
    }

    /// Tells that the queue has nothing to do if that was kept back for too long. To be called when the order has changed, too.
    pub fn report_deferred_idle(&self) {
        let gate = self.gate();
        let epoch = gate.epoch();
        let since = Nanos(self.rest.since.load(Ordering::Relaxed));
        let is_due = gate.order() != Order::Leader || Nanos::now() - since > SHORT;
        if is_due && self.rest.take_back(gate, epoch) {
            self.mark_idle(gate, epoch);
        }
    }
}
