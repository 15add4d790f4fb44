//! How long the device takes for the launches that are released together.

use super::{CONTEXT_SWITCH, HoldPoint};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::time::Nanos;

/// The bursts of one queue.
#[derive(Debug, Default)]
pub(crate) struct Bursts {
    /// The last hold point.
    last: AtomicU32,
    /// When a launch was last held, in nanoseconds.
    launched_at: AtomicU64,
    /// When the last burst was released, in nanoseconds; 0 once it has completed.
    released_at: AtomicU64,
    /// How long the device took for the bursts that have completed, in nanoseconds: for its scheduler, and since the last wait.
    busy: AtomicU64,
    stretch: AtomicU64,
}

impl Bursts {
    // Relaxed, here and below: no other memory depends on these numbers.

    /// The next hold point.
    pub(super) fn next_point(&self) -> HoldPoint {
        self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// When a launch was last held.
    pub(super) fn launched_at(&self) -> Nanos {
        Nanos(self.launched_at.load(Ordering::Relaxed))
    }

    /// A launch follows, which is held.
    pub(crate) fn launch(&self, now: Nanos) {
        self.launched_at.store(now.0, Ordering::Relaxed);
    }

    pub(super) fn released(&self, now: Nanos) {
        // The burst before may not have completed: from now on both count as one.
        self.completed(now);
        self.released_at.store(now.0, Ordering::Relaxed);
    }

    /// The device has arrived at a hold point: if it is the last one, the burst before it has completed.
    pub(crate) fn observe(&self, arrived: HoldPoint, now: Nanos) {
        let ahead = arrived.wrapping_sub(self.last.load(Ordering::Relaxed));
        if ahead <= HoldPoint::MAX / 2 {
            self.completed(now);
        }
    }

    /// Everything that was released has completed.
    pub(crate) fn completed(&self, now: Nanos) {
        let released_at = self.released_at.swap(0, Ordering::Relaxed);
        if released_at != 0 {
            let span = (now - Nanos(released_at)).0;
            self.busy.fetch_add(span, Ordering::Relaxed);
            self.stretch.fetch_add(span.saturating_sub(CONTEXT_SWITCH.0), Ordering::Relaxed);
        }
    }

    /// How long the device took for the bursts of a stretch, which ends, without the context switches.
    pub(crate) fn take_stretch(&self) -> Nanos {
        Nanos(self.stretch.swap(0, Ordering::Relaxed))
    }

    #[cfg(test)]
    pub(crate) fn add_to_stretch(&self, span: Nanos) {
        self.stretch.fetch_add(span.0, Ordering::Relaxed);
    }

    /// How long the device took for the bursts since the last call.
    pub(crate) fn take_busy(&self) -> Nanos {
        Nanos(self.busy.swap(0, Ordering::Relaxed))
    }
}
