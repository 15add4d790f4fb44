//! Unscheduled programs: a task beside one that keeps the device busy has an ordinary time slice.
//!
//! ```text
//!   unscheduled program pauses    Throttled   a short time slice: a leader preempts it at once
//!   it never pauses               Peer        the driver's own time slice: with a short one the task would starve
//! ```
//!
//! A leader that has work still holds the task.

use xsched_core::Order;

use super::DeviceTasks;

/// Turns `Throttled` into `Peer` where that applies.
pub(super) fn use_ordinary_time_slices(tasks: &mut DeviceTasks) {
    if tasks.has_leader() {
        return;
    }
    for (order, status) in tasks.orders.iter_mut().zip(tasks.statuses) {
        if *order == Order::Throttled && status.has_unscheduled_neighbor {
            *order = Order::Peer;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Device, task};
    use super::*;
    use Order::{Drain, Leader, Peer, Throttled, Yield};

    fn orders(before: [Order; 3], has_leader: bool) -> Vec<Order> {
        let mut device = Device::new([task(1, 7), task(2, 8), task(3, 9)]);
        device.orders = before.to_vec();
        device.views[0].ready = has_leader;
        for status in &mut device.statuses[1..] {
            status.has_unscheduled_neighbor = true;
        }
        use_ordinary_time_slices(&mut device.tasks());
        device.orders
    }

    #[test]
    fn task_beside_an_unscheduled_program_has_an_ordinary_time_slice_unless_a_leader_has_work() {
        assert_eq!(orders([Leader, Throttled, Drain], false), [Leader, Peer, Drain]);
        assert_eq!(orders([Leader, Throttled, Yield], true), [Leader, Throttled, Yield]);
        assert_eq!(orders([Throttled, Drain, Throttled], true), [Throttled, Drain, Peer]);
    }
}
