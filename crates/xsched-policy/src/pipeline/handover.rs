//! Handover: the next throttled task starts after the previous one has drained.
//!
//! ```text
//!   previous   Throttled ──► Drain · · · · ┐ reports that the device runs nothing of it
//!   next       Drain · · · · · · · · · · · ┴──► Throttled
//!                        │◄── at most 15 ms ──►│
//! ```
//!
//! Without it both would be on the device for a time that is charged to one of them, and each would slow the other down. A
//! leader does not wait: it preempts by itself.

use xsched_core::{DeviceId, Nanos, Order, ProcessId};

use super::{DeviceTasks, Transition, WakeUp};
use crate::TaskView;

/// How long a task has to leave the device before the next one starts anyway. Also how long a released task may take to
/// be on the device again.
const MAX_DRAIN: Nanos = Nanos::from_millis(15);

/// The handovers in progress.
#[derive(Debug, Default)]
pub(super) struct Handover {
    /// Devices where a task waits for another to drain, and since when.
    waiting_since: Vec<(DeviceId, Nanos)>,
}

impl Handover {
    /// Orders tasks that are about to start to drain on until the tasks of other processes have left the device.
    pub(super) fn wait_for_drain(&mut self, now: Nanos, tasks: &mut DeviceTasks, wake_up: &mut WakeUp) {
        set_transitions(now, tasks);
        let leaving = Leaving::find(tasks);
        let waits = |tasks: &DeviceTasks, index: usize| {
            let task = &tasks.views[index];
            let starts = tasks.orders[index] == Order::Throttled && tasks.memory[index].order.stops();
            task.ready && starts && leaving.has_other_than(task.process)
        };
        if !(0..tasks.orders.len()).any(|index| waits(tasks, index)) {
            self.waiting_since.retain(|(device, _)| *device != tasks.device);
            return;
        }
        let deadline = self.waiting_since(tasks.device, now) + MAX_DRAIN;
        if now >= deadline {
            self.waiting_since.retain(|(device, _)| *device != tasks.device);
            return;
        }
        wake_up.at(deadline);
        for index in 0..tasks.orders.len() {
            if waits(tasks, index) {
                tasks.orders[index] = Order::Drain;
            }
        }
    }

    fn waiting_since(&mut self, device: DeviceId, now: Nanos) -> Nanos {
        if let Some((_, since)) = self.waiting_since.iter().find(|(waiting, _)| *waiting == device) {
            return *since;
        }
        self.waiting_since.push((device, now));
        now
    }

    /// Forgets devices without tasks.
    pub(super) fn forget_absent(&mut self, views: &[TaskView]) {
        self.waiting_since
            .retain(|(device, _)| views.binary_search_by_key(device, |task| task.device).is_ok());
    }
}

/// Sets which tasks are leaving the device, and which have been released and are not yet back on it.
fn set_transitions(now: Nanos, tasks: &mut DeviceTasks) {
    for (index, memory) in tasks.memory.iter_mut().enumerate() {
        let drains = tasks.orders[index] == Order::Drain;
        if memory.order == Order::Drain && !drains {
            memory.released_at = Some(now);
        }
        let was_released = memory.released_at.is_some_and(|at| now < at + MAX_DRAIN);
        let is_drained = tasks.statuses[index].is_drained;
        memory.transition = match tasks.views[index].ready {
            true if drains && !is_drained => Transition::Leaving,
            true if !drains && was_released && is_drained => Transition::Arriving,
            _ => Transition::Settled,
        };
    }
}

/// The processes with a task that is leaving the device.
#[derive(Clone, Copy, PartialEq)]
enum Leaving {
    None,
    One(ProcessId),
    Several,
}

impl Leaving {
    fn find(tasks: &DeviceTasks) -> Self {
        let leaves = |(task, memory): (&TaskView, &super::TaskMemory)| {
            (memory.transition == Transition::Leaving).then_some(task.process)
        };
        let mut processes = tasks.views.iter().zip(tasks.memory.iter()).filter_map(leaves);
        match processes.next() {
            None => Self::None,
            Some(first) if processes.any(|process| process != first) => Self::Several,
            Some(first) => Self::One(first),
        }
    }

    fn has_other_than(self, process: ProcessId) -> bool {
        match self {
            Self::None => false,
            Self::One(leaving) => leaving != process,
            Self::Several => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Device, task};
    use super::*;
    use Order::{Drain, Leader, Throttled};

    /// Orders of the tasks `(before, wanted, has drained)` after this stage, at `ms`.
    fn orders(handover: &mut Handover, ms: u64, tasks: &[(u32, Order, Order, bool)]) -> Vec<Order> {
        let mut device = Device::new(tasks.iter().zip(1..).map(|((process, ..), id)| task(id, *process)));
        for (index, (_, before, wanted, drained)) in tasks.iter().enumerate() {
            device.memory[index].order = *before;
            device.orders[index] = *wanted;
            device.statuses[index].is_drained = *drained;
        }
        handover.wait_for_drain(Nanos::from_millis(ms), &mut device.tasks(), &mut WakeUp::default());
        device.orders
    }

    #[test]
    fn next_task_waits_until_the_previous_one_has_drained() {
        let mut handover = Handover::default();
        let leaving = [(1, Throttled, Drain, false), (2, Drain, Throttled, true)];
        assert_eq!(orders(&mut handover, 100, &leaving), [Drain, Drain]);
        let drained = [(1, Drain, Drain, true), (2, Drain, Throttled, true)];
        assert_eq!(orders(&mut handover, 101, &drained), [Drain, Throttled]);
    }

    #[test]
    fn wait_is_bounded_and_the_bound_starts_again_with_the_next_handover() {
        let mut handover = Handover::default();
        let stuck = [(1, Drain, Drain, false), (2, Drain, Throttled, true)];
        assert_eq!(orders(&mut handover, 10, &stuck), [Drain, Drain]);
        assert_eq!(orders(&mut handover, 24, &stuck), [Drain, Drain]);
        assert_eq!(orders(&mut handover, 25, &stuck), [Drain, Throttled]);
        let done = [(1, Drain, Drain, true), (2, Throttled, Throttled, false)];
        assert_eq!(orders(&mut handover, 26, &done), [Drain, Throttled]);
        assert_eq!(orders(&mut handover, 27, &stuck), [Drain, Drain]);
    }

    #[test]
    fn leaders_running_tasks_and_tasks_of_the_same_process_do_not_wait() {
        let leaving = (1, Throttled, Drain, false);
        for next in [(2, Drain, Leader, true), (2, Throttled, Throttled, false), (1, Drain, Throttled, true)]
        {
            let (_, _, wanted, _) = next;
            assert_eq!(orders(&mut Handover::default(), 5, &[leaving, next]), [Drain, wanted]);
        }
    }

    #[test]
    fn released_task_is_arriving_until_it_is_on_the_device_or_15_ms_have_passed() {
        let mut device = Device::new([task(1, 7)]);
        let mut transition = |at, order, before, drained| {
            device.orders[0] = order;
            device.memory[0].order = before;
            device.statuses[0].is_drained = drained;
            set_transitions(Nanos::from_millis(at), &mut device.tasks());
            device.memory[0].transition
        };
        assert_eq!(transition(100, Drain, Throttled, false), Transition::Leaving);
        assert_eq!(transition(101, Drain, Drain, true), Transition::Settled);
        assert_eq!(transition(102, Throttled, Drain, true), Transition::Arriving);
        assert_eq!(transition(103, Throttled, Throttled, false), Transition::Settled);
        assert_eq!(transition(116, Throttled, Throttled, true), Transition::Arriving);
        assert_eq!(transition(117, Throttled, Throttled, true), Transition::Settled);
    }
}
