//! HHPF, "priority-all": only the ready tasks of the highest ready priority of the whole machine run.
//!
//! ```text
//!   priority  device
//!     10   A   GPU   ··██····██········      while A runs on the GPU,
//!      0   B   GPU   ██··████··██··██··      B waits for the GPU,
//!      0   C   NPU   ██··████··██··██··      and C waits too, though the NPU is idle
//! ```
//!
//! Use it when accelerators slow each other down through what they share (memory, power, a bus) and the important work must
//! not be slowed down. Not otherwise: it leaves devices idle that HPF would use.

use xsched_core::Nanos;

use super::hpf::by_priority;
use crate::{Decision, GrantMode, Needs, Policy, PolicyInfo, Scope, Selection, TaskView};

/// Its entry in the table of policies.
pub(super) const POLICY: PolicyInfo = PolicyInfo {
    name: "HHPF",
    plain: "priority-all",
    number: 2,
    scope: Scope::Machine,
    work_conserving: true,
    grant_mode: GrantMode::Exclusive,
    selection: Selection::Precedence,
    needs: Needs::NOTHING,
    summary: "the same across all devices of the machine",
    make: || Box::new(MachineHighestPriorityFirst),
};

/// Highest priority first, on all devices together. Has no memory.
#[derive(Debug, Default)]
struct MachineHighestPriorityFirst;

impl Policy for MachineHighestPriorityFirst {
    fn decide(&mut self, _now: Nanos, tasks: &[TaskView], out: &mut Decision) {
        by_priority(tasks, |task| task.hints.priority, |task| task.hints.priority, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Grant::{Hold, Throttled, Unthrottled};
    use crate::policies::testing::{grants, idle, never, priority, ready};
    use xsched_core::DeviceId;

    fn on(device: u64, task: TaskView) -> TaskView {
        TaskView { device: DeviceId(device), ..task }
    }

    #[test]
    fn priority_counts_on_every_device() {
        let mut policy = MachineHighestPriorityFirst;
        let mut tasks =
            [on(0, ready(1, priority(9))), on(0, ready(2, priority(0))), on(1, ready(3, priority(0)))];
        assert_eq!(grants(&mut policy, 0, &tasks), [Unthrottled, Hold, Hold]);
        tasks[0].ready = false;
        assert_eq!(grants(&mut policy, 0, &tasks), [Unthrottled, Throttled, Throttled]);
    }

    #[test]
    fn equal_priorities_run_on_all_devices_except_tasks_with_priority_never() {
        let tasks = [on(0, ready(1, priority(9))), on(1, ready(2, priority(9))), on(2, idle(3, never()))];
        assert_eq!(grants(&mut MachineHighestPriorityFirst, 0, &tasks), [Unthrottled, Unthrottled, Hold]);
    }
}
