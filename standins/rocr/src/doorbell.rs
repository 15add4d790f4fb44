//! The doorbell of a queue: it wakes the submitting thread, and its times are those of the ledger.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use xsched_core::Nanos;

use crate::signals::{futex_wait, futex_wake};

/// Wakes the submitting thread of a queue.
pub(crate) struct WakeWord(AtomicU32);

impl WakeWord {
    const AWAKE: u32 = 0;
    const ASLEEP: u32 = 1;

    /// A word that is never freed, because a doorbell may be rung while its queue is destroyed.
    pub(crate) fn leaked() -> &'static Self {
        Box::leak(Box::new(Self(AtomicU32::new(Self::AWAKE))))
    }

    pub(crate) fn wake(&self) {
        if self.0.load(Ordering::SeqCst) == Self::ASLEEP
            && self.0.swap(Self::AWAKE, Ordering::SeqCst) == Self::ASLEEP
        {
            futex_wake(&self.0);
        }
    }

    /// Sleeps until it is woken, unless `is_ready`.
    pub(crate) fn sleep(&self, limit: Duration, is_ready: impl FnOnce() -> bool) {
        // SeqCst: a thread that changes what `is_ready` reads then reads this word in `wake`.
        self.0.store(Self::ASLEEP, Ordering::SeqCst);
        if !is_ready() {
            futex_wait(&self.0, Self::ASLEEP, limit);
        }
        self.0.store(Self::AWAKE, Ordering::SeqCst);
    }
}

/// When the doorbell of a queue was rung, for the packets that were not read yet.
#[derive(Default)]
pub(crate) struct DoorbellTimes {
    /// The last packet of a range and when the doorbell was rung for it, both increasing.
    ranges: VecDeque<(i64, Nanos)>,
}

impl DoorbellTimes {
    /// The doorbell is rung for the packets up to `last`.
    pub(crate) fn rung(&mut self, last: i64, now: Nanos) {
        if self.ranges.back().is_none_or(|(known, _)| *known < last) {
            self.ranges.push_back((last, now));
        }
    }

    /// The time for a packet; none if it is not known. Forgets the times of earlier packets.
    pub(crate) fn of_packet(&mut self, index: u64) -> Option<Nanos> {
        let index = i64::try_from(index).ok()?;
        while self.ranges.front().is_some_and(|(last, _)| *last < index) {
            self.ranges.pop_front();
        }
        self.ranges.front().map(|(_, time)| *time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_have_the_time_of_the_first_doorbell_that_covers_them() {
        let mut times = DoorbellTimes::default();
        times.rung(1, Nanos(10));
        times.rung(4, Nanos(20));
        // A thread that reserved an earlier packet rings later.
        times.rung(3, Nanos(30));
        times.rung(5, Nanos(40));
        let found: Vec<_> = (0..7).map(|index| times.of_packet(index).map(|time| time.0)).collect();
        assert_eq!(found, [Some(10), Some(10), Some(20), Some(20), Some(20), Some(40), None]);
        assert!(times.ranges.is_empty());
    }
}
