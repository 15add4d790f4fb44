//! Precedence: what each grant means beside the other tasks of the device.
//!
//! ```text
//!   suspended by a user                                       Drain
//!   unthrottled, the only task that the policy decides for    Free
//!   unthrottled, one process                                  Leader
//!   unthrottled, tasks of several processes                   Peer
//!   throttled, or held and waited for by a running task       Throttled
//!   held                                                      Yield      (eviction.rs may make it Evict or Drain)
//! ```

use xsched_core::Order;

use super::DeviceTasks;
use crate::{Grant, Scope, TaskView};

/// Whether the only task of a device is also the only task that its policy decides for.
///
/// A free task does not report when it becomes busy or idle. A policy for the whole machine has to know that as soon as there
/// is a task on another device.
pub(super) fn is_alone(scope: Scope, all: &[TaskView], on_device: &[TaskView]) -> bool {
    match scope {
        Scope::Device => on_device.len() == 1,
        Scope::Machine => all.len() == 1,
    }
}

/// Sets the order of each task from its grant, and from whether it runs by inheritance.
pub(super) fn order(tasks: &mut DeviceTasks, grants: &[Grant], runs: &[bool], is_alone: bool) {
    let unthrottled = || tasks.views.iter().zip(grants).filter(|(_, grant)| **grant == Grant::Unthrottled);
    let leader = unthrottled().next().map(|(task, _)| task.process);
    let has_peers = unthrottled().any(|(task, _)| Some(task.process) != leader);
    for (index, order) in tasks.orders.iter_mut().enumerate() {
        *order = match grants[index] {
            _ if tasks.statuses[index].is_suspended => Order::Drain,
            Grant::Unthrottled if is_alone => Order::Free,
            Grant::Unthrottled if has_peers => Order::Peer,
            Grant::Unthrottled => Order::Leader,
            Grant::Throttled => Order::Throttled,
            Grant::Hold if runs[index] => Order::Throttled,
            Grant::Hold => Order::Yield,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Device, task};
    use super::*;
    use Grant::{Hold, Throttled, Unthrottled};

    fn orders(device: &mut Device, grants: &[Grant], runs: &[bool], is_alone: bool) -> Vec<Order> {
        order(&mut device.tasks(), grants, runs, is_alone);
        device.orders.clone()
    }

    #[test]
    fn tasks_of_one_process_lead_together_and_tasks_of_two_processes_are_peers() {
        let mut one = Device::new([task(1, 7), task(2, 7), task(3, 8)]);
        let grants = [Unthrottled, Unthrottled, Throttled];
        assert_eq!(
            orders(&mut one, &grants, &[true; 3], false),
            [Order::Leader, Order::Leader, Order::Throttled]
        );
        let grants = [Unthrottled, Hold, Unthrottled];
        assert_eq!(
            orders(&mut one, &grants, &[true, false, true], false),
            [Order::Peer, Order::Yield, Order::Peer]
        );
    }

    #[test]
    fn held_task_with_an_inherited_right_runs_throttled() {
        let mut device = Device::new([task(1, 7), task(2, 7)]);
        assert_eq!(
            orders(&mut device, &[Unthrottled, Hold], &[true, true], false),
            [Order::Leader, Order::Throttled]
        );
    }

    #[test]
    fn only_a_task_alone_is_free_and_a_suspended_one_never() {
        let mut device = Device::new([task(1, 7)]);
        assert_eq!(orders(&mut device, &[Unthrottled], &[true], true), [Order::Free]);
        assert_eq!(orders(&mut device, &[Unthrottled], &[true], false), [Order::Leader]);
        device.statuses[0].is_suspended = true;
        assert_eq!(orders(&mut device, &[Unthrottled], &[true], true), [Order::Drain]);
    }

    #[test]
    fn machine_wide_policy_counts_tasks_on_all_devices() {
        let all = [task(1, 7), task(2, 8)];
        assert!(is_alone(Scope::Device, &all, &all[..1]));
        assert!(!is_alone(Scope::Machine, &all, &all[..1]));
        assert!(is_alone(Scope::Machine, &all[..1], &all[..1]));
    }
}
