//! What limits a leading queue, the device or its host, and deferred launches of a queue that is limited by its host.
//!
//! ```text
//!   program    l l l l l l l l w──┐        w────┐ the device was behind for most of the stretch: device-bound
//!   device     █ █ █ █ █ █ █ █ █          w┐     the wait was short: host-bound
//!              └── stretch ──┘└ wait
//! ```
//!
//! A stretch are the launches between two waits. If its launches were deferred, the time that the device took for their bursts
//! decides. See [`crate::deferral`]. The history is a prediction: of two threads that update it at the same time one is ignored.

use std::sync::Arc;

use super::LaunchPath;
use crate::deferral::{Bursts, CONTEXT_SWITCH, Deferral, MAX_HELD_WORK};
use crate::gate::{Bound, Gate, Order};
use crate::level::Level;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::time::Nanos;

/// A stretch with fewer launches, or a shorter one, shows nothing.
const MIN_LAUNCHES: u32 = 8;
const MIN_STRETCH: Nanos = Nanos::from_micros(200);
/// How many stretches are remembered.
const REMEMBERED: u32 = 8;
/// The queue is host-bound if at least this many of them were, and device-bound if at most [`MAX_HOST_BOUND`] were.
const MIN_HOST_BOUND: u32 = 6;
const MAX_HOST_BOUND: u32 = 3;
/// A queue whose bursts took most of the time is device-bound for this many stretches, and for twice as many each next time.
const FIRST_BACKOFF: u32 = 64;
const MAX_BACKOFF: u32 = 4_096;

/// What is known about one queue.
#[derive(Default)]
pub(super) struct HostBound {
    /// Launches of the present stretch, and when it began.
    launches: AtomicU32,
    since: AtomicU64,
    /// Launches of the last stretch, and of the present one if it is as the last two.
    last: AtomicU32,
    expected: AtomicU32,
    /// The last launches of the stretch are being held.
    is_at_end: AtomicBool,
    /// Launches of the stretch were deferred.
    has_deferred: AtomicBool,
    /// The last stretches: see [`History`].
    stretches: AtomicU64,
    /// For how many stretches the queue is not host-bound, and for how many the next time.
    backoff: AtomicU32,
    next_backoff: AtomicU32,
    /// How much of the time the device worked for deferred stretches, in 1/1024.
    utilization: AtomicU32,
    bursts: Arc<Bursts>,
    /// Launches of the present request were deferred.
    request_deferred: AtomicBool,
}

/// The last [`REMEMBERED`] answers: a bit for each, and above them how many there are.
#[derive(Clone, Copy)]
struct History(u64);

impl History {
    fn with(self, answer: bool) -> Self {
        let answers = (self.0 << 1 | u64::from(answer)) & ((1 << REMEMBERED) - 1);
        let count = (self.0 >> REMEMBERED).saturating_add(1).min(REMEMBERED.into());
        Self(count << REMEMBERED | answers)
    }

    /// How many of the answers are yes; none while there are too few.
    fn yes(self) -> Option<u32> {
        let is_full = self.0 >> REMEMBERED == u64::from(REMEMBERED);
        is_full.then(|| (self.0 & ((1 << REMEMBERED) - 1)).count_ones())
    }
}

impl HostBound {
    // Relaxed, here and below: no other memory depends on the prediction.

    /// Notes a launch.
    pub(super) fn launch(&self) {
        let launches = self.launches.load(Ordering::Relaxed);
        if launches == 0 {
            self.since.store(Nanos::now().0, Ordering::Relaxed);
        }
        self.launches.store(launches.saturating_add(1), Ordering::Relaxed);
    }

    /// Ends the stretch with a wait. Returns what the stretches show.
    fn end_stretch(&self, wait: Nanos, now: Nanos) -> Option<Bound> {
        let launches = self.launches.swap(0, Ordering::Relaxed);
        if launches == 0 {
            return None;
        }
        self.is_at_end.store(false, Ordering::Relaxed);
        let stretch = now - Nanos(self.since.load(Ordering::Relaxed));
        let has_deferred = self.has_deferred.swap(false, Ordering::Relaxed);
        let busy = self.bursts.take_stretch();
        // Whether the program waited for most of the stretch: the device worked meanwhile, however few launches there were.
        let is_mostly_wait = wait.0 * 5 >= stretch.0 * 4;
        if stretch < MIN_STRETCH || (launches < MIN_LAUNCHES && !is_mostly_wait) {
            return None;
        }
        let last = self.last.swap(launches, Ordering::Relaxed);
        let is_same = launches.abs_diff(last) <= launches / 32;
        self.expected.store(if is_same { launches } else { 0 }, Ordering::Relaxed);
        if has_deferred {
            let part = u32::try_from(busy.0 * 1_024 / stretch.0).unwrap_or(u32::MAX).min(1_024);
            let before = self.utilization.load(Ordering::Relaxed);
            self.utilization
                .store(if before == 0 { part } else { (3 * before + part) / 4 }, Ordering::Relaxed);
            if part > 512 {
                return self.back_off();
            }
        }
        let is_host_bound = has_deferred || wait.0 * 5 < stretch.0;
        let history = History(self.stretches.load(Ordering::Relaxed)).with(is_host_bound);
        self.stretches.store(history.0, Ordering::Relaxed);
        let backoff = self.backoff.load(Ordering::Relaxed);
        if backoff > 0 {
            self.backoff.store(backoff - 1, Ordering::Relaxed);
            return Some(Bound::Device);
        }
        match history.yes()? {
            MIN_HOST_BOUND.. => Some(Bound::Host),
            ..=MAX_HOST_BOUND => Some(Bound::Device),
            _ => None,
        }
    }

    /// The device worked for most of a deferred stretch.
    fn back_off(&self) -> Option<Bound> {
        let history = History(self.stretches.load(Ordering::Relaxed)).with(false);
        self.stretches.store(history.0, Ordering::Relaxed);
        if history.yes()? > MAX_HOST_BOUND {
            return None;
        }
        let backoff = self.next_backoff.load(Ordering::Relaxed).max(FIRST_BACKOFF);
        self.backoff.store(backoff, Ordering::Relaxed);
        self.next_backoff.store((2 * backoff).min(MAX_BACKOFF), Ordering::Relaxed);
        self.stretches.store(0, Ordering::Relaxed);
        Some(Bound::Device)
    }

    /// How long the next launches are held at most: for the slack, and no longer than until they are [`MAX_HELD_WORK`].
    fn hold_time(&self, slack: Nanos) -> Nanos {
        match u64::from(self.utilization.load(Ordering::Relaxed)) {
            0 => slack,
            part => slack.min(Nanos(MAX_HELD_WORK.0 * 1_024 / part)),
        }
    }

    /// Whether the program will wait at about the time when the device has completed what is held: it is released now, so that
    /// little is left when the program waits.
    fn reaches_end(&self, held_for: Nanos, now: Nanos) -> bool {
        let (launches, expected) =
            (self.launches.load(Ordering::Relaxed), self.expected.load(Ordering::Relaxed));
        if launches == 0 || launches >= expected || self.is_at_end.load(Ordering::Relaxed) {
            return false;
        }
        let so_far = now - Nanos(self.since.load(Ordering::Relaxed));
        let left = so_far.0 / u64::from(launches) * u64::from(expected - launches);
        let work = held_for.0 * u64::from(self.utilization.load(Ordering::Relaxed)) / 1_024;
        let reaches_end = left <= work + CONTEXT_SWITCH.0;
        self.is_at_end.store(reaches_end, Ordering::Relaxed);
        reaches_end
    }
}

impl LaunchPath {
    /// Whether a launch under this order is deferred.
    pub(super) fn is_deferrable(&self, gate: &Gate, order: Order) -> bool {
        order == Order::Leader && gate.permits_deferral() && self.is_deferrable_now(gate)
    }

    fn is_deferrable_now(&self, gate: &Gate) -> bool {
        let state = self.device.state.load();
        gate.bound() == Some(Bound::Host)
            && !gate.counts_all()
            // The device has the order, and so the time slice of a leader.
            && state.order == Order::Leader
            && state.level == Level::Interrupt
            && self.hw.preempts_by_time_slice()
            && self.hw.can_defer()
            && self.link.deferral().is_some_and(|deferral| deferral.is_allowed(Nanos::now()))
    }

    /// Has the next launch wait behind a hold point.
    pub(super) fn defer(&self, deferral: &Deferral) {
        let (now, bursts) = (Nanos::now(), &self.host_bound.bursts);
        bursts.launch(now);
        if let Some((since, deadline)) = deferral.hold_of(bursts) {
            bursts.observe(self.hw.deferred_progress(), now);
            if now < deadline && !self.host_bound.reaches_end(now - since, now) {
                return;
            }
            deferral.release_queue(bursts);
        }
        self.host_bound.has_deferred.store(true, Ordering::Relaxed);
        self.host_bound.request_deferred.store(true, Ordering::Relaxed);
        let hold_time = self.host_bound.hold_time(deferral.slack());
        if let Some(point) = deferral.hold(&self.hw, bursts, now, hold_time)
            && self.hw.defer(point).is_err()
        {
            deferral.release_queue(bursts);
        }
    }

    /// A thread of the program has waited since `begun`.
    pub fn waited(&self, begun: Nanos) {
        let (now, gate) = (Nanos::now(), self.gate());
        if let Some(bound) = self.host_bound.end_stretch(now - begun, now) {
            gate.set_bound(bound);
        }
    }

    /// Releases the launches of this queue that are held: the device is about to stop the queue, or the scheduler to hold it.
    pub fn release_deferred(&self) {
        if let Some(deferral) = self.link.deferral() {
            deferral.release_queue(&self.host_bound.bursts);
        }
    }

    /// A thread of the program has waited for everything that was launched: accounts for the bursts.
    pub(super) fn bursts_completed(&self, gate: &Gate) {
        if self.host_bound.request_deferred.load(Ordering::Relaxed) {
            self.host_bound.bursts.completed(Nanos::now());
            gate.add_unreported(self.host_bound.bursts.take_busy());
        }
    }

    /// The request ends. Returns how long the device worked for bursts that are not accounted for; none if no launch of the request
    /// was deferred.
    pub(super) fn take_deferred_time(&self) -> Option<Nanos> {
        let has_deferred = self.host_bound.request_deferred.swap(false, Ordering::Relaxed);
        has_deferred.then(|| self.host_bound.bursts.take_busy())
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
