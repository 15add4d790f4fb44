//! How held tasks leave the device: yield, evict or drain.
//!
//! ```text
//!   a leader runs                           Yield    the leader preempts the held task by time slice
//!   a sync-bound leader runs                Evict    it would have to preempt again after each small piece of work
//!   no leader runs                          Drain    the next task is throttled: it starts after the held one has drained
//!   the same, and the next task has a       Evict    it must not wait until the held task reaches a point where it can stop,
//!   higher precedence                                which takes up to 10 ms
//!   evicted or drained in the last round    stays    until it may run again: bringing it back to yield gains nothing
//! ```
//!
//! A device that completes launched work although the task is held drains in any case.

use xsched_core::Order;

use super::{DeviceTasks, LaunchedWork};

/// Turns `Yield` into `Evict` or `Drain` where that applies. `Yield` is the order of tasks that the policy holds; `holds_lower_precedence`
/// tells whether that is because a task of higher precedence has work.
pub(super) fn choose_stop_orders(tasks: &mut DeviceTasks, holds_lower_precedence: bool) {
    let has_leader = tasks.has_leader();
    let leader_is_sync_bound =
        (0..tasks.orders.len()).any(|index| tasks.leads(index) && tasks.statuses[index].is_sync_bound);
    let runs_throttled = |index: usize| {
        tasks.views[index].ready && tasks.orders[index] == Order::Throttled && !tasks.completes_peers(index)
    };
    // Jobs are held in rotation, too, whatever the policy.
    let has_successor =
        holds_lower_precedence && tasks.jobs.is_none() && (0..tasks.orders.len()).any(runs_throttled);
    for (index, order) in tasks.orders.iter_mut().enumerate() {
        if *order != Order::Yield {
            continue;
        }
        let before = tasks.memory[index].order;
        let stops_at_once = tasks.statuses[index].launched_work == LaunchedWork::Stops;
        let is_superseded = !has_leader && has_successor && stops_at_once;
        if before == Order::Drain || (!has_leader && !is_superseded) {
            *order = Order::Drain;
        } else if is_superseded || leader_is_sync_bound || before == Order::Evict {
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
        choose_stop_orders(&mut device.tasks(), false);
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
        choose_stop_orders(&mut device.tasks(), false);
        assert_eq!(device.orders, [Leader, Drain]);
    }

    #[test]
    fn task_of_lower_precedence_is_evicted_for_a_throttled_one_if_the_device_stops_it_at_once() {
        let held = |holds_lower_precedence, launched_work, before| {
            let mut device = Device::new([task(1, 7), task(2, 8)]);
            device.orders = vec![Throttled, Yield];
            device.statuses[1].launched_work = launched_work;
            device.memory[1].order = before;
            choose_stop_orders(&mut device.tasks(), holds_lower_precedence);
            device.orders[1]
        };
        assert_eq!(held(true, LaunchedWork::Stops, Throttled), Evict);
        assert_eq!(held(true, LaunchedWork::Continues, Throttled), Drain);
        assert_eq!(held(true, LaunchedWork::MayContinue, Throttled), Drain);
        assert_eq!(held(false, LaunchedWork::Stops, Throttled), Drain, "equals take turns");
        assert_eq!(held(true, LaunchedWork::Stops, Drain), Drain, "it has left the device");
    }
}
