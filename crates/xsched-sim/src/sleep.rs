//! Sleeping until a time or until a word changes, precisely.
//!
//! The kernel may deliver timers up to 50 us late to save power ("timer slack"). For a device whose commands last
//! some microseconds that is long, so the slack of the sleeping thread is set to the minimum while it sleeps.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::thread::futex::{self, Timespec};
use rustix::thread::{current_timer_slack, set_current_timer_slack};
use xsched_core::Nanos;

/// Dependencies until the word differs from `seen`, somebody wakes, or the time comes; says whether it was woken or changed.
pub(crate) fn wait_on(word: &AtomicU32, seen: u32, until: Nanos) -> bool {
    let limit = timespec(until);
    let waited = futex::wait_bitset(word, futex::Flags::empty(), seen, Some(&limit), NonZeroU32::MAX);
    waited != Err(Errno::TIMEDOUT)
}

/// Who sleeps until the device comes to something has to be told when the device was made to get there sooner.
///
/// The two low bits say whether anybody listens, so that ringing costs a load when nobody does. Ringing clears them,
/// so a listener that was killed is forgotten with the next ring.
#[repr(transparent)]
pub(crate) struct Doorbell(AtomicU32);

/// What a sleeper wants to hear of. Marks come often and only matter to who waits for one that was not placed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ring {
    /// A marker was placed.
    Mark = 0b01,
    /// Work was stopped, let go on or removed.
    Change = 0b10,
}

impl Doorbell {
    const LISTENERS: u32 = 0b11;

    /// Announces a sleeper; to be called under the lock, so that every later change sees it. The answer goes to
    /// [`Doorbell::sleep`].
    pub(crate) fn listen(&self, marks_too: bool) -> u32 {
        let bits = if marks_too { Self::LISTENERS } else { Ring::Change as u32 };
        // Relaxed: the lock orders this before any change that comes after.
        self.0.fetch_or(bits, Ordering::Relaxed) | bits
    }

    /// Sleeps until the notifier rings after `heard` was given out, or the time comes.
    pub(crate) fn sleep(&self, heard: u32, until: Nanos) {
        let _sharp = SharpTimers::new();
        wait_on(&self.0, heard, until);
    }

    /// Wakes those who listen for this.
    pub(crate) fn ring(&self, what: Ring) {
        let mut seen = self.0.load(Ordering::Relaxed);
        while seen & what as u32 != 0 {
            let rung = (seen & !Self::LISTENERS).wrapping_add(Self::LISTENERS + 1);
            match self.0.compare_exchange_weak(seen, rung, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    let _ = futex::wake(&self.0, futex::Flags::empty(), u32::MAX >> 1);
                    return;
                }
                Err(now) => seen = now,
            }
        }
    }
}

/// A time of the absolute clock, so that an interrupted sleep does not become a longer one.
fn timespec(at: Nanos) -> Timespec {
    const SECOND: u64 = 1_000_000_000;
    Timespec {
        tv_sec: i64::try_from(at.0 / SECOND).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(at.0 % SECOND).unwrap_or(0),
    }
}

/// The thread's timers are exact while this lives.
struct SharpTimers(Option<NonZeroU64>);

impl SharpTimers {
    fn new() -> Self {
        let before = current_timer_slack().ok().and_then(NonZeroU64::new).filter(|slack| slack.get() > 1);
        if before.is_some() {
            let _ = set_current_timer_slack(NonZeroU64::new(1));
        }
        Self(before)
    }
}

impl Drop for SharpTimers {
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
    fn a_ring_between_listening_and_sleeping_is_heard() {
        let notifier = Doorbell(AtomicU32::new(0));
        for (marks_too, what) in [(false, Ring::Change), (true, Ring::Change), (true, Ring::Mark)] {
            let heard = notifier.listen(marks_too);
            notifier.ring(what);
            // Would never end otherwise.
            notifier.sleep(heard, Nanos::MAX);
        }
    }

    #[test]
    fn marks_do_not_wake_who_does_not_wait_for_one() {
        let notifier = Doorbell(AtomicU32::new(0));
        let heard = notifier.listen(false);
        notifier.ring(Ring::Mark);
        assert_eq!(notifier.0.load(Ordering::Relaxed), heard);
    }

    #[test]
    fn the_thread_gets_its_timer_slack_back() {
        let before = current_timer_slack().unwrap();
        let notifier = Doorbell(AtomicU32::new(0));
        notifier.sleep(0, Nanos::now());
        assert_eq!(current_timer_slack().unwrap(), before);
    }
}
