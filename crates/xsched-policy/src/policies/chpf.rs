//! CHPF, "nice": HPF with the CPU nice value of a task's process as its priority.
//!
//! ```text
//!   nice
//!    -5   A ··██····██········      a lower nice value takes precedence on the device,
//!     0   B ██··████··██··██··      as it does on the CPU
//!    19   C ················██
//! ```
//!
//! A priority hint counts only if it is -256: such a task never runs.
//!
//! Use it when processes already have the nice values that suit them. Not when a process is important on the CPU only, or on
//! the device only.

use xsched_core::{Nanos, Priority};

use super::awf::unless_never;
use super::hpf::by_priority;
use crate::{Decision, GrantMode, Needs, Policy, PolicyInfo, Scope, Selection, TaskView};

/// Its entry in the table of policies.
pub(super) const POLICY: PolicyInfo = PolicyInfo {
    name: "CHPF",
    plain: "nice",
    number: 3,
    scope: Scope::Device,
    work_conserving: true,
    grant_mode: GrantMode::Exclusive,
    selection: Selection::Precedence,
    needs: Needs::NICE,
    summary: "the ready tasks of the process with the lowest CPU nice value run",
    make: || Box::new(LowestNiceFirst),
};

/// Lowest nice value first. Has no memory.
#[derive(Debug, Default)]
struct LowestNiceFirst;

impl Policy for LowestNiceFirst {
    fn decide(&mut self, _now: Nanos, tasks: &[TaskView], out: &mut Decision) {
        by_priority(tasks, priority, priority, out);
    }
}

fn priority(task: &TaskView) -> Priority {
    // Every i8 is within the range of priorities.
    unless_never(task, Priority::new(-i64::from(task.nice)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Grant::{Hold, Throttled, Unthrottled};
    use crate::policies::testing::{grants, idle, never, priority, ready};

    fn nice(nice: i8, task: TaskView) -> TaskView {
        TaskView { nice, ..task }
    }

    #[test]
    fn lowest_nice_value_runs_whatever_its_priority() {
        let tasks = [nice(0, ready(1, priority(50))), nice(-20, ready(2, priority(0)))];
        assert_eq!(grants(&mut LowestNiceFirst, 0, &tasks), [Hold, Unthrottled]);
        let tasks =
            [nice(0, ready(1, priority(0))), nice(-1, idle(2, priority(0))), nice(19, ready(3, priority(9)))];
        assert_eq!(grants(&mut LowestNiceFirst, 0, &tasks), [Throttled, Unthrottled, Hold]);
    }

    #[test]
    fn priority_never_counts_and_no_nice_value_is_out_of_range() {
        let tasks = [nice(-20, ready(1, never())), nice(i8::MIN, ready(2, priority(0)))];
        assert_eq!(grants(&mut LowestNiceFirst, 0, &tasks), [Hold, Unthrottled]);
    }
}
