//! Which requests of a leading queue are not reported to the scheduler: those that the device runs in one piece.
//!
//! ```text
//!   launches     █               █               █ █             a request: at most 4 launches, then a wait for the queue,
//!   host waits    └──────┘        └──────┘          └──────┘      then more than 0.25 ms without work
//! ```
//!
//! The device switches to a leader when the leader launches, because its time slice is longer than that of the other tasks, and
//! away from it when it has nothing to run. Both happen once in such a request, whether or not the scheduler knows of it. A
//! program that launches its kernels one by one, or waits for each small piece of its work, leaves the device idle for up to
//! 0.25 ms at a time during a request. There the scheduler has to hold the other tasks, so these requests are reported.
//!
//! The history is a prediction: of two threads that update it at the same time one is ignored.

use super::LaunchPath;
use crate::gate::{Gate, Order};
use crate::level::Level;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::time::Nanos;

/// A request with more launches is reported: the device may be idle between them.
const MAX_LAUNCHES: u32 = 4;
/// After this many consecutive requests that the device could run in one piece, the next one is expected to be such a request.
const REQUESTS_EXPECTED: u32 = 3;

/// The history of a queue's requests.
#[derive(Default)]
pub(super) struct RequestHistory {
    /// Launches since the program last waited for the queue.
    launches: AtomicU32,
    /// Consecutive requests that the device could run in one piece, up to [`REQUESTS_EXPECTED`].
    in_one_piece: AtomicU32,
    /// When the unreported request began.
    unreported_since: AtomicU64,
}

impl RequestHistory {
    // Relaxed, here and below: no other memory depends on the prediction.

    /// Notes a launch.
    pub(super) fn launch(&self) {
        let launches = self.launches.load(Ordering::Relaxed).saturating_add(1);
        self.launches.store(launches, Ordering::Relaxed);
        if launches > MAX_LAUNCHES {
            self.in_one_piece.store(0, Ordering::Relaxed);
        }
    }

    /// Notes that the program has waited for everything that it has launched.
    pub(super) fn complete(&self) {
        // Zero if the launches were not counted, or another thread has waited for them.
        if self.launches.load(Ordering::Relaxed) == 0 {
            return;
        }
        if self.launches.swap(0, Ordering::Relaxed) <= MAX_LAUNCHES {
            let in_one_piece = self.in_one_piece.load(Ordering::Relaxed);
            self.in_one_piece.store(REQUESTS_EXPECTED.min(in_one_piece + 1), Ordering::Relaxed);
        }
    }

    /// Notes that the queue was idle for a short time only: the work before and after that belongs together.
    pub(super) fn short_gap(&self) {
        self.in_one_piece.store(0, Ordering::Relaxed);
    }

    /// Whether the device is expected to run the present request in one piece.
    fn is_in_one_piece(&self) -> bool {
        self.in_one_piece.load(Ordering::Relaxed) >= REQUESTS_EXPECTED
    }
}

impl LaunchPath {
    /// Whether a launch under this order needs no report.
    pub(super) fn is_report_needless(&self, gate: &Gate, order: Order) -> bool {
        let state = self.device.state.load();
        order == Order::Leader
            && gate.permits_unreported()
            && !gate.is_sync_bound()
            && self.requests.is_in_one_piece()
            // The device has the order, and so the time slice of a leader.
            && state.order == Order::Leader
            && state.level == Level::Interrupt
            && self.hw.preempts_by_time_slice()
    }

    /// Notes that an unreported request may begin with the next launch.
    pub(super) fn begin_unreported(&self) {
        self.requests.unreported_since.store(Nanos::now().0, Ordering::Relaxed);
    }

    /// Accounts for an unreported request that has completed.
    pub(super) fn end_unreported(&self, gate: &Gate) {
        let span = || Nanos::now() - Nanos(self.requests.unreported_since.load(Ordering::Relaxed));
        gate.add_unreported(self.take_deferred_time().unwrap_or_else(span));
    }

    /// Reports work that was not reported, if the queue no longer leads or the scheduler no longer permits that. The enforcer
    /// thread calls this after each change of the order.
    pub fn report_unreported(&self) {
        let gate = self.gate();
        if gate.needs_reports() {
            self.release_deferred();
            if gate.report_unreported() {
                self.link.notify();
                self.link.watch();
            }
        }
    }

    /// Notifies the scheduler on a thread of a leading task.
    ///
    /// A sync-bound leader loses more while the other tasks are not evicted than while its thread waits for a CPU. So does a
    /// leader on a device without time slices, which runs the other tasks until the scheduler holds them.
    pub(super) fn notify_as_leader(&self, gate: &Gate) {
        if gate.is_sync_bound() || !self.hw.preempts_by_time_slice() {
            self.link.notify();
            self.link.watch();
        } else {
            self.link.notify_without_preemption();
        }
    }

    /// Notifies the scheduler if a launching thread has not done so yet, because its launch has not returned.
    pub fn notify_of_blocked_launch(&self) {
        if self.notification_due.load(Ordering::SeqCst) {
            self.link.notify();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
