//! AWF, "focus": what the person looks at goes first.
//!
//! ```text
//!   editor   ·███··██·········      has the focus until here,
//!   browser  █···██··█·█████·█      and runs whenever it is ready;
//!   backup   █···█···█·█·····█      the others have the rest
//! ```
//!
//! Tasks of the process whose window has the focus run; the others only while none of those is ready.
//!
//! Use it on a desktop. Not on a server: without a focus all tasks run as if there were no policy.

use xsched_core::{Nanos, Priority};

use super::hpf::by_priority;
use crate::{Decision, Policy, TaskView};

/// Focused window first. Has no memory.
#[derive(Debug, Default)]
pub struct ActiveWindowFirst;

impl Policy for ActiveWindowFirst {
    fn decide(&mut self, _now: Nanos, tasks: &[TaskView], out: &mut Decision) {
        let focus = |task: &TaskView| unless_never(task, if task.focused { FOCUSED } else { OTHER });
        // One click and another process has the focus: only who has it now counts as safe.
        by_priority(tasks, focus, |task| unless_never(task, FOCUSED), out);
    }
}

const FOCUSED: Priority = Priority::HIGH;
const OTHER: Priority = Priority::DEFAULT;

/// `priority`, but for a task that must never run.
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
    fn the_focused_run_and_the_others_wait_whatever_their_priority() {
        let tasks =
            [ready(1, priority(200)), focused(ready(2, priority(-9))), focused(ready(3, priority(0)))];
        assert_eq!(grants(&mut ActiveWindowFirst, 0, &tasks), [Hold, Unthrottled, Unthrottled]);
    }

    #[test]
    fn the_others_run_while_the_focused_are_idle_and_may_lose_their_place() {
        let tasks = [ready(1, priority(0)), focused(idle(2, priority(0))), ready(3, priority(0))];
        assert_eq!(grants(&mut ActiveWindowFirst, 0, &tasks), [Throttled, Unthrottled, Throttled]);
        assert_eq!(grants(&mut ActiveWindowFirst, 0, &[tasks[0], tasks[2]]), [Throttled, Throttled]);
        assert_eq!(grants(&mut ActiveWindowFirst, 0, &[tasks[0]]), [Unthrottled]);
    }

    #[test]
    fn never_is_never_even_with_the_focus() {
        let tasks = [focused(ready(1, never())), ready(2, priority(0))];
        assert_eq!(grants(&mut ActiveWindowFirst, 0, &tasks), [Hold, Unthrottled]);
    }
}
