//! HPF, "priority": on each device, only the ready tasks of the highest ready priority run.
//!
//! ```text
//!   priority
//!     10   A ··██····██········      A runs whenever it is ready;
//!      0   B ██··████··██··██··      B fills the rest,
//!      0   C ██··████··██··██··      C shares it with B
//!    -10   D ················██      D runs while no other task is ready
//! ```
//!
//! Tasks of the highest priority present run unthrottled, side by side. Lower ones are throttled, and the pipeline runs one
//! process of them at a time.
//!
//! Use it when some work matters more than other work, whatever its length. Not when every task should have a part: a task
//! of high priority that is always busy starves the rest.
//!
//! A task with priority -256 never runs.

use xsched_core::{Nanos, Priority};

use crate::{Decision, Grant, GrantMode, Needs, Policy, PolicyInfo, Scope, Selection, TaskView};

/// Its entry in the table of policies.
pub(super) const POLICY: PolicyInfo = PolicyInfo {
    name: "HPF",
    plain: "priority",
    number: 1,
    scope: Scope::Device,
    work_conserving: true,
    grant_mode: GrantMode::Exclusive,
    selection: Selection::Precedence,
    needs: Needs::HINTS,
    summary: "only the ready tasks of the highest ready priority run",
    make: || Box::new(HighestPriorityFirst),
};

/// Highest priority first. Has no memory.
#[derive(Debug, Default)]
struct HighestPriorityFirst;

impl Policy for HighestPriorityFirst {
    fn decide(&mut self, _now: Nanos, tasks: &[TaskView], out: &mut Decision) {
        by_priority(tasks, |task| task.hints.priority, |task| task.hints.priority, out);
    }
}

/// Grants the device to all tasks at or above the highest ready priority. `priority` is a task's priority now, `ceiling` the
/// highest that it can come to have while its hints stay the same.
///
/// An idle task at or above it may start at once when work arrives: the next decision holds the running ones. A task that no
/// other task present, ready or not, can come to exceed runs unthrottled.
pub(super) fn by_priority(
    tasks: &[TaskView],
    priority: impl Fn(&TaskView) -> Priority,
    ceiling: impl Fn(&TaskView) -> Priority,
    out: &mut Decision,
) {
    let mut bar = Priority::MIN;
    // The highest ceiling, the index of its task, and the highest among the rest.
    let (mut top, mut top_index, mut second) = (Priority::NO_EXECUTE, 0, Priority::NO_EXECUTE);
    for (index, task) in tasks.iter().enumerate() {
        if task.ready {
            bar = bar.max(priority(task));
        }
        let ceiling = ceiling(task);
        if ceiling > top {
            (top, top_index, second) = (ceiling, index, top);
        } else {
            second = second.max(ceiling);
        }
    }
    for (index, task) in tasks.iter().enumerate() {
        let own = priority(task);
        let rival = if index == top_index { second } else { top };
        // The bar is above the priority of tasks that must not run.
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
    fn idle_task_of_high_priority_may_start_at_once_while_lower_ones_are_throttled() {
        let tasks = [task(1, 10, false), task(2, 0, true), task(3, -5, true)];
        assert_eq!(grants(&tasks), [Grant::Unthrottled, Grant::Throttled, Grant::Hold]);
    }

    #[test]
    fn task_with_priority_never_does_not_run_even_when_alone() {
        assert_eq!(grants(&[task(1, -256, true)]), [Grant::Hold]);
    }
}
