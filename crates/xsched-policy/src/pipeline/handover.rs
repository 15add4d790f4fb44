//! Handover: the next throttled task starts after the previous one has drained.
//!
//! ```text
//!   previous   Throttled ──► Drain · · · · ┐ reports that the device runs nothing of it
//!   next       Drain · · · · · · · · · · · ┴──► Throttled
//!                        │◄── at most 15 ms ──►│
//! ```
//!
//! Without it both would be on the device for a time that is charged to one of them, and each would slow the other down. A
//! leader does not wait: it preempts by itself. While it runs, the wait is interrupted, and the times before and after
//! count together: otherwise a leader with a request every 10 ms would keep the next task waiting without a bound.

use xsched_core::{DeviceId, Nanos, Order, ProcessId};

use super::{DeviceTasks, Transition, WakeUp};
use crate::TaskView;

/// How long a task has to leave the device before the next one starts anyway. Also how long a released task may take to
/// be on the device again.
const MAX_DRAIN: Nanos = Nanos::from_millis(15);

/// The handovers in progress.
#[derive(Debug, Default)]
pub(super) struct Handover {
    waits: Vec<Wait>,
}

/// A device where a task waits for another to drain.
#[derive(Debug)]
struct Wait {
    device: DeviceId,
    /// When the wait began or was last resumed. None while a leader runs.
    since: Option<Nanos>,
    /// How long it lasted before that.
    before: Nanos,
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
            if tasks.has_leader() {
                self.interrupt(tasks.device, now);
            } else {
                self.end(tasks.device);
            }
            return;
        }
        let waited = self.time_waited(tasks.device, now);
        if waited >= MAX_DRAIN {
            self.end(tasks.device);
            for memory in tasks.memory.iter_mut() {
                memory.is_overdue |= memory.transition == Transition::Leaving;
            }
            return;
        }
        wake_up.at(now + (MAX_DRAIN - waited));
        for index in 0..tasks.orders.len() {
            if waits(tasks, index) {
                tasks.orders[index] = Order::Drain;
            }
        }
    }

    /// How long the wait on a device has lasted. It begins now if there is none.
    fn time_waited(&mut self, device: DeviceId, now: Nanos) -> Nanos {
        let place = self.waits.iter().position(|wait| wait.device == device).unwrap_or_else(|| {
            self.waits.push(Wait { device, since: None, before: Nanos::ZERO });
            self.waits.len() - 1
        });
        let wait = &mut self.waits[place];
        wait.before + (now - *wait.since.get_or_insert(now))
    }

    fn interrupt(&mut self, device: DeviceId, now: Nanos) {
        if let Some(wait) = self.waits.iter_mut().find(|wait| wait.device == device) {
            wait.before += wait.since.take().map_or(Nanos::ZERO, |since| now - since);
        }
    }

    fn end(&mut self, device: DeviceId) {
        self.waits.retain(|wait| wait.device != device);
    }

    /// Forgets devices without tasks.
    pub(super) fn forget_absent(&mut self, views: &[TaskView]) {
        self.waits.retain(|wait| views.binary_search_by_key(&wait.device, |task| task.device).is_ok());
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
        memory.is_overdue &= tasks.orders[index].stops() && !is_drained;
        memory.transition = match tasks.views[index].ready {
            true if drains && !is_drained => Transition::Leaving,
            true if !drains && was_released && is_drained => Transition::Arriving,
            _ => Transition::Settled,
        };
    }
}

/// The processes with a task that is leaving the device, and that the next task waits for.
#[derive(Clone, Copy, PartialEq)]
enum Leaving {
    None,
    One(ProcessId),
    Several,
}

impl Leaving {
    fn find(tasks: &DeviceTasks) -> Self {
        let leaves = |(task, memory): (&TaskView, &super::TaskMemory)| {
            (memory.transition == Transition::Leaving && !memory.is_overdue).then_some(task.process)
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
    use Order::{Drain, Leader, Throttled, Yield};

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
    fn leader_that_runs_from_time_to_time_does_not_extend_the_wait() {
        let mut handover = Handover::default();
        let waits = [(1, Drain, Drain, false), (2, Drain, Throttled, true), (3, Leader, Drain, true)];
        let leads = [(1, Drain, Yield, false), (2, Drain, Yield, true), (3, Leader, Leader, true)];
        assert_eq!(orders(&mut handover, 10, &waits), [Drain, Drain, Drain]);
        assert_eq!(orders(&mut handover, 18, &leads), [Yield, Yield, Leader]);
        assert_eq!(orders(&mut handover, 30, &waits), [Drain, Drain, Drain], "8 ms have passed");
        assert_eq!(orders(&mut handover, 36, &waits), [Drain, Drain, Drain]);
        assert_eq!(orders(&mut handover, 37, &waits), [Drain, Throttled, Drain]);
    }

    #[test]
    fn task_that_did_not_drain_in_time_is_waited_for_again_after_it_has_run() {
        let mut device = Device::new([task(1, 1), task(2, 2)]);
        let mut handover = Handover::default();
        let mut next = |ms, wanted: [Order; 2], drained| {
            device.orders = wanted.to_vec();
            device.statuses[0].is_drained = drained;
            handover.wait_for_drain(Nanos::from_millis(ms), &mut device.tasks(), &mut WakeUp::default());
            for (memory, order) in device.memory.iter_mut().zip(&device.orders) {
                memory.order = *order;
            }
            device.orders.clone()
        };
        next(0, [Throttled, Drain], false);
        assert_eq!(next(10, [Drain, Throttled], false), [Drain, Drain]);
        assert_eq!(next(25, [Drain, Throttled], false), [Drain, Throttled]);
        // A leader runs for 1 ms.
        next(30, [Yield, Yield], false);
        assert_eq!(next(31, [Drain, Throttled], false), [Drain, Throttled], "it was waited for");
        next(40, [Throttled, Drain], false);
        assert_eq!(next(50, [Drain, Throttled], false), [Drain, Drain]);
        assert_eq!(next(65, [Drain, Throttled], false), [Drain, Throttled]);
        next(70, [Yield, Yield], true);
        assert_eq!(next(71, [Drain, Throttled], false), [Drain, Drain], "it has drained meanwhile");
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
