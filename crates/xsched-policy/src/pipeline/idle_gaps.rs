//! Short idle gaps: a task that usually has its next work within 1 ms counts as ready between two pieces of work.
//!
//! ```text
//!   work      ███   ███   ███   ███                    a process that waits for each piece before it launches the next
//!   ready     ███ ██████████████████··                 · up to 1.5 times the longest recent gap, at most 1 ms
//!                └ the first gap teaches the stage
//! ```
//!
//! A device that were given to another task in each gap would pay for two context switches and gain nothing. A longer gap
//! halves the time that a task counts as ready, so a task that has stopped working in this way is soon forgotten.

use xsched_core::Nanos;

use super::{TaskMemory, TaskStatus, WakeUp};
use crate::TaskView;

/// A task whose gap is longer is not waited for.
const MAX_GAP: Nanos = Nanos::from_millis(1);

/// The idle gaps of one task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct IdleGap {
    had_work: bool,
    /// Since when it has no work.
    idle_since: Nanos,
    /// How long it counts as ready after its work has ended.
    ready_for: Nanos,
}

impl IdleGap {
    /// Takes note of whether the task has work. If it has none and is in a short gap, returns when the gap becomes too long.
    fn observe(&mut self, has_work: bool, now: Nanos) -> Option<Nanos> {
        match (std::mem::replace(&mut self.had_work, has_work), has_work) {
            (true, false) => self.idle_since = now,
            (false, true) => self.learn(now - self.idle_since),
            (true, true) | (false, false) => {}
        }
        let end = self.idle_since + self.ready_for;
        (!has_work && now < end).then_some(end)
    }

    fn learn(&mut self, gap: Nanos) {
        self.ready_for = if gap <= MAX_GAP {
            // Half as long again: the next gap may be a little longer.
            self.ready_for.max(Nanos(gap.0 + gap.0 / 2)).min(MAX_GAP)
        } else {
            Nanos(self.ready_for.0 / 2)
        };
    }
}

/// Sets which tasks count as ready: those that have work or are in a short gap, and are neither suspended nor stalled.
pub(super) fn set_ready(
    now: Nanos,
    views: &mut [TaskView],
    statuses: &[TaskStatus],
    memory: &mut [TaskMemory],
    wake_up: &mut WakeUp,
) {
    for ((view, status), memory) in views.iter_mut().zip(statuses).zip(memory) {
        let gap_end = memory.gap.observe(status.has_work, now);
        let can_run = !status.is_suspended && !status.is_stalled;
        view.ready = (status.has_work || gap_end.is_some()) && can_run;
        view.in_gap = view.ready && !status.has_work;
        if let Some(end) = gap_end {
            wake_up.at(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Nanos {
        Nanos::from_secs(1) + Nanos::from_micros(us)
    }

    #[test]
    fn task_with_short_gaps_counts_as_ready_in_them_until_it_stays_idle() {
        let mut gap = IdleGap::default();
        assert_eq!(gap.observe(true, us(0)), None);
        assert_eq!(gap.observe(false, us(500)), None, "nothing is known about its gaps yet");
        gap.observe(true, us(700));
        assert_eq!(gap.observe(false, us(1_000)), Some(us(1_300)), "its last gap took 200 us");
        assert_eq!(gap.observe(false, us(1_299)), Some(us(1_300)));
        assert_eq!(gap.observe(false, us(1_300)), None);
        gap.observe(true, us(11_000));
        assert_eq!(gap.observe(false, us(12_000)), Some(us(12_150)), "halved after one long gap");
        for pause in 1..20 {
            gap.observe(true, us(12_000 + pause * 10_000));
            gap.observe(false, us(13_000 + pause * 10_000));
        }
        assert_eq!(gap.observe(false, us(203_000)), None);
    }

    #[test]
    fn gap_of_a_suspended_task_does_not_make_it_ready() {
        let mut memory = [TaskMemory::default()];
        let mut views = [TaskView::default()];
        let mut ready = |has_work, is_suspended, at| {
            let status = TaskStatus { has_work, is_suspended, ..TaskStatus::default() };
            let mut wake_up = WakeUp::default();
            set_ready(us(at), &mut views, &[status], &mut memory, &mut wake_up);
            assert_eq!(views[0].in_gap, views[0].ready && !has_work);
            (views[0].ready, wake_up.0)
        };
        assert_eq!(ready(true, false, 0), (true, None));
        assert_eq!(ready(false, false, 100), (false, None));
        assert_eq!(ready(true, false, 200), (true, None));
        assert_eq!(ready(false, false, 300), (true, Some(us(450))));
        assert_eq!(ready(false, true, 301), (false, Some(us(450))));
        assert_eq!(ready(true, true, 400), (false, None));
    }
}
