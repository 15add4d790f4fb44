//! Precise sleeping until a time or until the device's state changes.
//!
//! The kernel may deliver timers up to 50 us late to save power ("timer slack"). The device's commands last a few
//! microseconds, so a thread that sleeps here sets its slack to the minimum.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::thread::futex::{self, Timespec};
use rustix::thread::{current_timer_slack, set_current_timer_slack};
use xsched_core::Nanos;

/// Waits until the word differs from `seen`, a wake-up arrives, or the time is `until`; returns false if it timed out.
pub(crate) fn wait_on(word: &AtomicU32, seen: u32, until: Nanos) -> bool {
    let limit = timespec(until);
    let waited = futex::wait_bitset(word, futex::Flags::empty(), seen, Some(&limit), NonZeroU32::MAX);
    waited != Err(Errno::TIMEDOUT)
}

/// Wakes threads that sleep until an expected event when a process changes the device's state so that the event comes
/// earlier.
///
/// The two low bits are set while a thread sleeps, so that a notification without sleepers costs one load. A
/// notification clears them, so a sleeper that was killed costs at most one needless wake-up.
#[repr(transparent)]
pub(crate) struct Notifier(AtomicU32);

/// The kinds of notification. Markers are placed often and matter only to threads that wait for one not yet placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Notification {
    /// A marker was placed.
    MarkerPlaced = 0b01,
    /// Work was stopped, resumed or removed.
    StateChanged = 0b10,
}

impl Notifier {
    const SLEEPERS: u32 = 0b11;

    /// Registers the calling thread as a sleeper. The caller holds the lock, so that every later change sees the
    /// sleeper. The result goes to [`Notifier::sleep`].
    pub(crate) fn register_sleeper(&self, on_marker: bool) -> u32 {
        let bits = if on_marker { Self::SLEEPERS } else { Notification::StateChanged as u32 };
        // Relaxed: the lock orders this before any later change.
        self.0.fetch_or(bits, Ordering::Relaxed) | bits
    }

    /// Sleeps until a notification that follows the registration which returned `seen`, or until the time `until`.
    pub(crate) fn sleep(&self, seen: u32, until: Nanos) {
        let _sharp = MinimalTimerSlack::new();
        wait_on(&self.0, seen, until);
    }

    /// Wakes the threads that registered for this kind of notification.
    pub(crate) fn notify(&self, what: Notification) {
        let mut seen = self.0.load(Ordering::Relaxed);
        while seen & what as u32 != 0 {
            let notified = (seen & !Self::SLEEPERS).wrapping_add(Self::SLEEPERS + 1);
            match self.0.compare_exchange_weak(seen, notified, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    let _ = futex::wake(&self.0, futex::Flags::empty(), u32::MAX >> 1);
                    return;
                }
                Err(now) => seen = now,
            }
        }
    }
}

/// An absolute time, so that an interrupted sleep is not prolonged.
fn timespec(at: Nanos) -> Timespec {
    const SECOND: u64 = 1_000_000_000;
    Timespec {
        tv_sec: i64::try_from(at.0 / SECOND).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(at.0 % SECOND).unwrap_or(0),
    }
}

/// Sets the thread's timer slack to the minimum until it is dropped.
struct MinimalTimerSlack(Option<NonZeroU64>);

impl MinimalTimerSlack {
    fn new() -> Self {
        let before = current_timer_slack().ok().and_then(NonZeroU64::new).filter(|slack| slack.get() > 1);
        if before.is_some() {
            let _ = set_current_timer_slack(NonZeroU64::new(1));
        }
        Self(before)
    }
}

impl Drop for MinimalTimerSlack {
    fn drop(&mut self) {
        if self.0.is_some() {
            let _ = set_current_timer_slack(self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notification_between_registering_and_sleeping_is_not_lost() {
        let notifier = Notifier(AtomicU32::new(0));
        for (on_marker, what) in [
            (false, Notification::StateChanged),
            (true, Notification::StateChanged),
            (true, Notification::MarkerPlaced),
        ] {
            let seen = notifier.register_sleeper(on_marker);
            notifier.notify(what);
            // A lost notification would block here until the test times out.
            notifier.sleep(seen, Nanos::MAX);
        }
    }

    #[test]
    fn marker_does_not_wake_a_thread_that_waits_for_a_time() {
        let notifier = Notifier(AtomicU32::new(0));
        let seen = notifier.register_sleeper(false);
        notifier.notify(Notification::MarkerPlaced);
        assert_eq!(notifier.0.load(Ordering::Relaxed), seen);
    }

    #[test]
    fn timer_slack_is_restored_after_a_sleep() {
        let before = current_timer_slack().unwrap();
        let notifier = Notifier(AtomicU32::new(0));
        notifier.sleep(0, Nanos::now());
        assert_eq!(current_timer_slack().unwrap(), before);
    }
}
