//! Short idle gaps of a leading queue are not reported.
//!
//! To report that a queue became idle, and that it has work again, takes system calls and wakes the scheduler. A sync-bound
//! program, which waits for each piece of work before it launches the next, would pay for that each time, and no other task
//! can use so short a gap. So the report is deferred while the queue leads and its last gaps were short. If the queue then
//! stays idle, the enforcer or watcher thread reports it.
//!
//! That a queue is sync-bound is reported at once: the scheduler evicts the other tasks meanwhile.

use super::LaunchPath;
use crate::gate::{BusyEnd, Epoch, Gate, Order};
use crate::sync::{AtomicU64, Mutex, Ordering, lock};
use crate::time::Nanos;

/// A gap up to this long is short.
const SHORT_GAP: Nanos = Nanos::from_micros(250);
/// After this many consecutive short gaps the next one is expected to be short, and the queue counts as sync-bound.
const SHORT_GAPS_EXPECTED: u64 = 3;
/// How long `poll_idle` relies on a thread that synchronizes with the queue to mark it idle. Bounded, because a default
/// stream synchronizes with other streams too, which may be stopped until this queue is found idle.
const SYNC_WAITER_TIMEOUT: Nanos = Nanos::from_millis(10);

/// How often a thread of a leader tries to take a lock that other threads hold for less than 1 us while they run: for some
/// microseconds. To give up at once would report an idle gap, for which evicted tasks would resume.
const LOCK_ATTEMPTS: u32 = if cfg!(loom) { 1 } else { 1_000 };

/// Decides which idle gaps are reported.
#[derive(Default)]
pub(super) struct IdleGapFilter {
    /// See [`Gaps`].
    gaps: AtomicU64,
    /// The idle state that was not reported: the gate, and the epoch that has completed there.
    deferred_idle: Mutex<Option<(usize, Epoch)>>,
    /// Until then a thread that synchronizes with the queue is expected to mark it idle. Zero: no thread is.
    sync_waiter_deadline: AtomicU64,
}

/// The history of a queue's gaps, in one word.
///
/// The start of the present gap in nanoseconds, shifted by four (2^60 ns are 36 years); below it two counts of
/// consecutive short gaps, two bits each. Of two threads that update it at the same time one is ignored: it is a prediction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Gaps {
    /// Since when the queue is known to be idle; zero once it was launched to.
    since: Nanos,
    /// Short gaps since a deferred report had to be made after all, or since a long gap.
    unreported: u64,
    /// Short gaps since the last long one.
    short: u64,
}

const _: () = assert!(SHORT_GAPS_EXPECTED < 4, "the counts have two bits");

/// What the end of a gap shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GapEnd {
    pub(super) is_short: bool,
    /// Whether the queue is sync-bound, if that is known.
    pub(super) is_sync_bound: Option<bool>,
}

impl Gaps {
    const fn pack(self) -> u64 {
        self.since.0 << 4 | self.unreported << 2 | self.short
    }

    const fn unpack(word: u64) -> Self {
        Self { since: Nanos(word >> 4), unreported: word >> 2 & 3, short: word & 3 }
    }

    /// The gap ends at `now`.
    fn end(self, now: Nanos) -> (Self, GapEnd) {
        if now - self.since <= SHORT_GAP {
            let one_more = |count: u64| SHORT_GAPS_EXPECTED.min(count + 1);
            let (unreported, short) = (one_more(self.unreported), one_more(self.short));
            let is_sync_bound = (short == SHORT_GAPS_EXPECTED).then_some(true);
            (Self { since: Nanos::ZERO, unreported, short }, GapEnd { is_short: true, is_sync_bound })
        } else {
            // The work before this gap decides, until the work that begins now has shown itself.
            let is_sync_bound = Some(self.short == SHORT_GAPS_EXPECTED);
            (Self::default(), GapEnd { is_short: false, is_sync_bound })
        }
    }
}

impl IdleGapFilter {
    // Relaxed, here and below: no other memory depends on the prediction.
    fn load(&self) -> Gaps {
        Gaps::unpack(self.gaps.load(Ordering::Relaxed))
    }

    fn replace(&self, before: Gaps, after: Gaps) {
        // Fails if another thread has just begun or ended a gap: that is newer.
        let _ = self.gaps.compare_exchange(before.pack(), after.pack(), Ordering::Relaxed, Ordering::Relaxed);
    }

    fn begin_gap(&self) {
        let gaps = self.load();
        if gaps.since == Nanos::ZERO {
            self.replace(gaps, Gaps { since: Nanos::now(), ..gaps });
        }
    }

    /// The queue has work again. Returns what the gap shows, if one has ended.
    #[inline]
    pub(super) fn end_gap(&self) -> Option<GapEnd> {
        let gaps = self.load();
        if gaps.since == Nanos::ZERO { None } else { Some(self.end_gap_of(gaps)) }
    }

    fn end_gap_of(&self, gaps: Gaps) -> GapEnd {
        let (after, end) = gaps.end(Nanos::now());
        self.replace(gaps, after);
        end
    }

    fn is_next_gap_short(&self) -> bool {
        self.load().unreported >= SHORT_GAPS_EXPECTED
    }

    /// Defers the report. Returns false if the watcher or an enforcer thread keeps the lock: that thread is not running, and a
    /// thread of a leader must not wait for it.
    fn defer(&self, gate: &Gate, epoch: Epoch) -> bool {
        for _ in 0..LOCK_ATTEMPTS {
            if let Ok(mut deferred_idle) = self.deferred_idle.try_lock() {
                *deferred_idle = Some((std::ptr::from_ref(gate).addr(), epoch));
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Whether the report of this idle state was deferred. The caller reports it now.
    pub(super) fn take_deferred(&self, gate: &Gate, epoch: Epoch) -> bool {
        let mut deferred_idle = lock(&self.deferred_idle);
        let is_this = *deferred_idle == Some((std::ptr::from_ref(gate).addr(), epoch));
        if is_this {
            *deferred_idle = None;
            // The gap became long, or the scheduler needs each report.
            let gaps = self.load();
            self.replace(gaps, Gaps { unreported: 0, ..gaps });
        }
        is_this
    }

    /// Notes that a thread synchronizes with the queue from now on.
    pub(super) fn begin_sync(&self) {
        self.sync_waiter_deadline.store((Nanos::now() + SYNC_WAITER_TIMEOUT).0, Ordering::SeqCst);
    }

    /// Notes that the thread has returned from synchronizing.
    pub(super) fn end_sync(&self) {
        self.sync_waiter_deadline.store(0, Ordering::SeqCst);
    }

    /// Whether a thread that synchronizes with the queue is expected to mark it idle.
    pub(super) fn has_sync_waiter(&self) -> bool {
        Nanos::now() < Nanos(self.sync_waiter_deadline.load(Ordering::SeqCst))
    }
}

impl LaunchPath {
    /// A thread of the program has waited for everything that was launched before the epoch, and it has completed.
    pub(super) fn completed(&self, gate: &Gate, epoch: Epoch) {
        self.requests.complete();
        self.bursts_completed(gate);
        if epoch.is_idle() {
            return;
        }
        let is_leader = || gate.order() == Order::Leader;
        if is_leader()
            && self.idle_gaps.is_next_gap_short()
            && gate.epoch() == epoch
            && self.idle_gaps.defer(gate, epoch)
        {
            self.idle_gaps.begin_gap();
            // The thread that changes the order looks for deferred reports, but it may have looked before this one.
            if is_leader() {
                return;
            }
        }
        let end = self.end_busy_period(gate, epoch);
        match end {
            BusyEnd::Reported if matches!(gate.order(), Order::Leader | Order::Peer) => {
                self.notify_as_leader(gate);
            }
            BusyEnd::Reported => self.link.notify(),
            BusyEnd::Unreported => self.end_unreported(gate),
            BusyEnd::AlreadyIdle | BusyEnd::StillBusy => {}
        }
        if end != BusyEnd::StillBusy {
            self.idle_gaps.begin_gap();
        }
    }

    /// Returns whether the caller, which has waited for some of the queue's work, should poll now whether that was all of it.
    /// Polling can wait if the queue is expected to have work again soon.
    #[must_use]
    pub fn may_have_become_idle(&self) -> bool {
        let gate = self.gate();
        if gate.is_free() || gate.epoch().is_idle() {
            return false;
        }
        self.idle_gaps.begin_gap();
        gate.order() != Order::Leader || !self.idle_gaps.is_next_gap_short()
    }

    /// Whether the queue seems to be in a gap that was not reported: then it has to be polled again soon.
    #[must_use]
    pub fn may_have_deferred_idle(&self) -> bool {
        self.idle_gaps.is_next_gap_short() && self.idle_gaps.load().since != Nanos::ZERO
    }

    /// Reports that the queue is idle if that was deferred and either the gap is no longer short or the queue no longer
    /// leads. The enforcer thread calls this after each change of the order.
    pub fn report_deferred_idle(&self) {
        let gate = self.gate();
        let epoch = gate.epoch();
        let since = self.idle_gaps.load().since;
        let is_due = gate.order() != Order::Leader || Nanos::now() - since > SHORT_GAP;
        if is_due && self.idle_gaps.take_deferred(gate, epoch) {
            self.mark_idle(gate, epoch);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn history_fits_the_word() {
        for gaps in [
            Gaps::default(),
            Gaps { since: Nanos::now(), unreported: 3, short: 0 },
            Gaps { since: Nanos((1 << 60) - 1), unreported: 1, short: 3 },
        ] {
            assert_eq!(Gaps::unpack(gaps.pack()), gaps);
        }
    }

    #[test]
    fn queue_is_sync_bound_after_three_short_gaps_and_until_work_without_them() {
        let start = Nanos::from_secs(1);
        let mut gaps = Gaps::default();
        let mut gap = |length: Nanos| {
            let (after, end) = Gaps { since: start, ..gaps }.end(start + length);
            assert_eq!(end.is_short, length <= SHORT_GAP);
            gaps = after;
            end.is_sync_bound
        };
        let long = SHORT_GAP + Nanos(1);
        assert_eq!(gap(SHORT_GAP), None);
        assert_eq!(gap(SHORT_GAP), None);
        assert_eq!(gap(SHORT_GAP), Some(true));
        assert_eq!(gap(long), Some(true), "as the work before the gap was");
        assert_eq!(gap(long), Some(false));
    }
}
