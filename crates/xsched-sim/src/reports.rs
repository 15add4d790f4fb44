//! The last marker of a queue, readable without the lock.
//!
//! ```text
//!   latest: 6      reports:  [4]  [5]  [6]  [3→7]
//!                                       ▲     └ being written: not read before `latest` is 7
//! ```
//!
//! A marker and its time are two words. The writer fills the next of four slots and then publishes the slot's number.
//! A reader that was overtaken by three more reports reads again. A writer that dies in between leaves the last
//! complete report published.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use xsched_core::{Nanos, Progress};

/// How many reports are kept for each queue.
const REPORT_SLOTS: usize = 4;
/// How often an overtaken reader reads again. It exceeds this only if the memory is corrupt.
const MAX_READ_ATTEMPTS: u32 = 16;

/// One queue's reports. All zero: no marker yet.
#[repr(C)]
pub(crate) struct QueueReports {
    latest: AtomicU64,
    reports: [Report; REPORT_SLOTS],
}

#[repr(C)]
struct Report {
    marker: AtomicU64,
    at: AtomicU64,
}

impl QueueReports {
    fn report(&self, n: u64) -> &Report {
        &self.reports[usize::try_from(n % REPORT_SLOTS as u64).unwrap_or(0)]
    }

    /// Publishes a report. The caller must hold the device's lock.
    pub(crate) fn publish(&self, marker: u64, at: Nanos) {
        let next = self.latest.load(Ordering::Relaxed).wrapping_add(1);
        // Release: pairs with the Acquire fence in `read`. A reader that sees these words also sees the previous value
        // of `latest` or a newer one.
        fence(Ordering::Release);
        let report = self.report(next);
        report.marker.store(marker, Ordering::Relaxed);
        report.at.store(at.0, Ordering::Relaxed);
        // Release: pairs with the Acquire load in `read`.
        self.latest.store(next, Ordering::Release);
    }

    /// The newest report.
    pub(crate) fn read(&self) -> Progress {
        let mut progress = Progress::default();
        for _ in 0..MAX_READ_ATTEMPTS {
            let n = self.latest.load(Ordering::Acquire);
            let report = self.report(n);
            let marker = report.marker.load(Ordering::Relaxed);
            let at = Nanos(report.at.load(Ordering::Relaxed));
            progress = Progress { marker, at: (marker > 0).then_some(at) };
            fence(Ordering::Acquire);
            if self.latest.load(Ordering::Relaxed).wrapping_sub(n) < REPORT_SLOTS as u64 - 1 {
                break;
            }
        }
        progress
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reader_never_mixes_two_reports() {
        let new = || Report { marker: AtomicU64::new(0), at: AtomicU64::new(0) };
        let reports = QueueReports { latest: AtomicU64::new(0), reports: [new(), new(), new(), new()] };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for marker in 1..=100_000 {
                    reports.publish(marker, Nanos(marker * 3));
                }
            });
            let mut last = 0;
            while last < 100_000 {
                let Progress { marker, at } = reports.read();
                assert!(marker >= last);
                assert_eq!(at.unwrap_or_default(), Nanos(marker * 3));
                last = marker;
            }
        });
    }
}
