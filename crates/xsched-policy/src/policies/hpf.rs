//! HPF, "priority": on each device, only the ready tasks of the highest ready priority run.
//!
//! ```text
//!   priority
//!     10   A ··██····██········      A runs whenever it is ready;
//!      0   B ██··████··██··██··      B fills the rest,
//!      0   C ██··████··██··██··      C shares it with B as the device sees fit
//!    -10   D ················██      D runs when nobody else wants to
//! ```
//!
//! Use it when some work matters more than other work, whatever its length. Not when everybody should get a part:
//! a busy important task starves the rest for as long as it is busy.
//!
//! A task with priority -256 never runs.

use xsched_core::{Nanos, Priority};

use crate::{Decision, Grant, Policy, TaskView};

/// Highest priority first. Has no memory.
#[derive(Debug, Default)]
pub struct HighestPriorityFirst;

impl Policy for HighestPriorityFirst {
    fn decide(&mut self, _now: Nanos, tasks: &[TaskView], out: &mut Decision) {
        by_priority(tasks, |task| task.hints.priority, |task| task.hints.priority, out);
    }
}

/// Grants the device to everyone at or above the highest ready priority, where `priority` says what counts as such,
/// and `ceiling` what it may become without anybody doing anything.
///
/// Who is at or above it but idle may begin at once when work arrives: whoever runs then is stopped by the next
/// decision. Those whom no other task present, ready or not, can come to exceed need no pacing.
pub(super) fn by_priority(
    tasks: &[TaskView],
    priority: impl Fn(&TaskView) -> Priority,
    ceiling: impl Fn(&TaskView) -> Priority,
    out: &mut Decision,
) {
    let mut bar = Priority::MIN;
    // The highest ceiling, whose it is, and the highest among the rest.
    let (mut top, mut whose, mut second) = (Priority::NO_EXECUTE, 0, Priority::NO_EXECUTE);
    for (index, task) in tasks.iter().enumerate() {
        if task.ready {
            bar = bar.max(priority(task));
        }
        let ceiling = ceiling(task);
        if ceiling > top {
            (top, whose, second) = (ceiling, index, top);
        } else {
            second = second.max(ceiling);
        }
    }
    for (index, task) in tasks.iter().enumerate() {
        let own = priority(task);
        let rival = if index == whose { second } else { top };
        // The bar is never so low that a task may pass which must not run.
        if own >= bar {
            out.grant(index, if own >= rival { Grant::Unthrottled } else { Grant::Throttled });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xsched_core::{Hints, TaskId};

    fn task(id: u64, priority: i64, ready: bool) -> TaskView {
        let hints = Hints { priority: Priority::new(priority).unwrap(), ..Hints::default() };
        TaskView { id: TaskId(id), ready, hints, ..TaskView::default() }
    }

    fn grants(tasks: &[TaskView]) -> Vec<Grant> {
        let mut out = Decision::default();
        out.reset(tasks.len());
        HighestPriorityFirst.decide(Nanos::ZERO, tasks, &mut out);
        out.grants().to_vec()
    }

    #[test]
    fn only_the_highest_ready_priority_runs() {
        let tasks = [task(1, 10, true), task(2, 0, true), task(3, 10, true)];
        assert_eq!(grants(&tasks), [Grant::Unthrottled, Grant::Hold, Grant::Unthrottled]);
    }

    #[test]
    fn an_idle_important_task_may_begin_without_asking_while_others_are_paced() {
        let tasks = [task(1, 10, false), task(2, 0, true), task(3, -5, true)];
        assert_eq!(grants(&tasks), [Grant::Unthrottled, Grant::Throttled, Grant::Hold]);
    }

    #[test]
    fn a_task_marked_never_to_run_does_not_even_when_alone() {
        assert_eq!(grants(&[task(1, -256, true)]), [Grant::Hold]);
    }
}
