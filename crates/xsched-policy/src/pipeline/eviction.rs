//! How held tasks leave the device: yield, evict or drain.
//!
//! ```text
//!   a leader runs                           Yield    the leader preempts the held task by time slice
//!   a sync-bound leader runs                Evict    it would have to preempt again after each small piece of work
//!   no leader runs                          Drain    the next task is throttled: it starts after the held one has drained
//!   evicted or drained in the last round    stays    until it may run again: bringing it back to yield gains nothing
//! ```

use xsched_core::Order;

use super::DeviceTasks;

/// Turns `Yield` into `Evict` or `Drain` where that applies.
pub(super) fn choose_stop_orders(tasks: &mut DeviceTasks) {
    let has_leader = tasks.has_leader();
    let leader_is_sync_bound =
        (0..tasks.orders.len()).any(|index| tasks.leads(index) && tasks.statuses[index].is_sync_bound);
    for (order, memory) in tasks.orders.iter_mut().zip(tasks.memory.iter()) {
        if *order != Order::Yield {
            continue;
        }
        if !has_leader || memory.order == Order::Drain {
            *order = Order::Drain;
        } else if leader_is_sync_bound || memory.order == Order::Evict {
            *order = Order::Evict;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Device, task};
    use super::*;
    use Order::{Drain, Evict, Leader, Throttled, Yield};

    /// The order of a held task beside one with `order`, after it had the order `before`.
    fn held(order: Order, is_sync_bound: bool, before: Order) -> Order {
        let mut device = Device::new([task(1, 7), task(2, 8)]);
        device.orders = vec![order, Yield];
        device.statuses[0].is_sync_bound = is_sync_bound;
        device.memory[1].order = before;
        choose_stop_orders(&mut device.tasks());
        assert_eq!(device.orders[0], order);
        device.orders[1]
    }

    #[test]
    fn held_task_yields_to_a_leader_and_is_evicted_beside_a_sync_bound_one() {
        assert_eq!(held(Leader, false, Throttled), Yield);
        assert_eq!(held(Leader, true, Throttled), Evict);
        assert_eq!(held(Order::Peer, true, Throttled), Evict);
    }

    #[test]
    fn held_task_drains_beside_a_throttled_one() {
        assert_eq!(held(Throttled, true, Throttled), Drain);
    }

    #[test]
    fn task_that_left_the_device_stays_off_it_until_it_may_run() {
        assert_eq!(held(Leader, false, Evict), Evict);
        assert_eq!(held(Leader, true, Drain), Drain);
    }

    #[test]
    fn leader_without_work_holds_no_task_back() {
        let mut device = Device::new([task(1, 7), task(2, 8)]);
        device.orders = vec![Leader, Yield];
        device.views[0].ready = false;
        choose_stop_orders(&mut device.tasks());
        assert_eq!(device.orders, [Leader, Drain]);
    }
}
