//! AWF, "focus": the process whose window has the focus takes precedence.
//!
//! ```text
//!   editor   ·███··██·········      has the focus in the first half,
//!   browser  █···██··█·█████·█      the browser in the second: each runs whenever it is ready then;
//!   backup   █···█···█·█·····█      the rest of the device time is for the other processes
//! ```
//!
//! Tasks of the process whose window has the focus run; those of other processes only while none of the former is ready.
//!
//! Use it on a desktop. Not on a server: without a focus all tasks run as if there were no policy.

use xsched_core::{Nanos, Priority};

use super::hpf::by_priority;
use crate::{Decision, GrantMode, Needs, Policy, PolicyInfo, Scope, Selection, TaskView};

/// Its entry in the table of policies.
pub(super) const POLICY: PolicyInfo = PolicyInfo {
    name: "AWF",
    plain: "focus",
    number: 9,
    scope: Scope::Device,
    work_conserving: true,
    grant_mode: GrantMode::Exclusive,
    selection: Selection::Precedence,
    needs: Needs::FOCUS,
    summary: "tasks of the process with the focused window run, the rest while it is idle",
    make: || Box::new(ActiveWindowFirst),
};

/// Focused window first. Has no memory.
#[derive(Debug, Default)]
struct ActiveWindowFirst;

impl Policy for ActiveWindowFirst {
    fn decide(&mut self, _now: Nanos, tasks: &[TaskView], out: &mut Decision) {
        let focus = |task: &TaskView| unless_never(task, if task.focused { FOCUSED } else { OTHER });
        // Any process can have the focus next: only a focused task runs unthrottled.
        by_priority(tasks, focus, |task| unless_never(task, FOCUSED), out);
    }
}

const FOCUSED: Priority = Priority::HIGH;
const OTHER: Priority = Priority::DEFAULT;

/// `priority`, except for a task that must never run.
pub(super) fn unless_never(task: &TaskView, priority: Priority) -> Priority {
    match task.hints.priority {
        Priority::NO_EXECUTE => Priority::NO_EXECUTE,
        _ => priority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Grant::{Hold, Throttled, Unthrottled};
    use crate::policies::testing::{grants, idle, never, priority, ready};

    fn focused(task: TaskView) -> TaskView {
        TaskView { focused: true, ..task }
    }

    #[test]
    fn focused_tasks_run_and_the_rest_wait_whatever_their_priority() {
        let tasks =
            [ready(1, priority(200)), focused(ready(2, priority(-9))), focused(ready(3, priority(0)))];
        assert_eq!(grants(&mut ActiveWindowFirst, 0, &tasks), [Hold, Unthrottled, Unthrottled]);
    }

    #[test]
    fn unfocused_tasks_run_throttled_while_the_focused_ones_are_idle() {
        let tasks = [ready(1, priority(0)), focused(idle(2, priority(0))), ready(3, priority(0))];
        assert_eq!(grants(&mut ActiveWindowFirst, 0, &tasks), [Throttled, Unthrottled, Throttled]);
        assert_eq!(grants(&mut ActiveWindowFirst, 0, &[tasks[0], tasks[2]]), [Throttled, Throttled]);
        assert_eq!(grants(&mut ActiveWindowFirst, 0, &[tasks[0]]), [Unthrottled]);
    }

    #[test]
    fn focused_task_with_priority_never_does_not_run() {
        let tasks = [focused(ready(1, never())), ready(2, priority(0))];
        assert_eq!(grants(&mut ActiveWindowFirst, 0, &tasks), [Hold, Unthrottled]);
    }
}
