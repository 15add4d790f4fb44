//! Work of a leader that is not reported to the scheduler.
//!
//! A report wakes a thread of the scheduler. On a machine without an idle CPU that thread preempts the launching thread, which
//! then waits for a CPU for several milliseconds, with its request on the device or about to be launched. A leader whose
//! requests are short, and for which the device preempts all other tasks by time slice, gains nothing from a report.
//!
//! The scheduler permits it with [`Gate::permit_unreported`]; the launch path decides by the history of the queue's requests.

use super::{Gate, Order};
use crate::sync::{Ordering, fence_for_loom};
use crate::time::Nanos;

impl Gate {
    /// Sets whether the queue may keep work unreported while it leads. Returns whether that has changed.
    ///
    /// The scheduler permits it if the device preempts all other tasks for the leader by time slice, whether or not the
    /// scheduler knows that the leader is busy.
    pub fn permit_unreported(&self, is_permitted: bool) -> bool {
        self.permits_unreported.swap(is_permitted.into(), Ordering::SeqCst) != u16::from(is_permitted)
    }

    /// Whether the queue may keep work unreported while it leads.
    #[must_use]
    pub fn permits_unreported(&self) -> bool {
        self.permits_unreported.load(Ordering::SeqCst) != 0
    }

    /// Whether the scheduler needs to know of the queue's work.
    #[must_use]
    pub fn needs_reports(&self) -> bool {
        self.order() != Order::Leader || !self.permits_unreported()
    }

    /// Sets whether the queue may defer its launches while it leads. The scheduler permits it while another task has work that can
    /// use the device meanwhile, and only with [`Gate::permit_unreported`].
    pub fn permit_deferral(&self, is_permitted: bool) {
        self.permits_deferral.store(is_permitted.into(), Ordering::SeqCst);
    }

    /// Whether the queue may defer its launches while it leads.
    #[must_use]
    pub fn permits_deferral(&self) -> bool {
        self.permits_deferral.load(Ordering::SeqCst) != 0 && self.permits_unreported()
    }

    /// The present work of the queue is not reported any more. Returns whether that has changed: the caller notifies the scheduler,
    /// which releases the other tasks.
    #[must_use]
    pub fn stop_reporting(&self) -> bool {
        if self.unreported.swap(1, Ordering::SeqCst) != 0 {
            return false;
        }
        fence_for_loom();
        // As in `mark_busy_without_notification`: the permission may have been withdrawn meanwhile.
        if self.needs_reports() {
            let _ = self.report_unreported();
        }
        true
    }

    /// How long the queue was busy without a report, in all.
    #[must_use]
    pub fn unreported_time(&self) -> Nanos {
        Nanos(self.unreported_ns.load(Ordering::Relaxed))
    }

    /// Reports work that was not reported. Returns whether the caller has to notify the scheduler.
    #[must_use]
    pub fn report_unreported(&self) -> bool {
        fence_for_loom();
        let was_unreported = self.unreported.swap(0, Ordering::SeqCst) != 0;
        fence_for_loom();
        was_unreported && !self.epoch().is_idle()
    }

    /// Adds to the time that the queue was busy without a report.
    pub fn add_unreported(&self, span: Nanos) {
        self.unreported_ns.fetch_add(span.0, Ordering::Relaxed);
    }
}
