//! What is counted about a task while it exists.

use xsched_core::{DeviceId, Histogram, Nanos, Order, ProcessId, Task, TaskId};
use xsched_policy::Transition;

use crate::protocol::TaskState;

/// One task's account.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) task: TaskId,
    pub(super) device: DeviceId,
    /// A user holds it.
    pub(super) suspended: bool,
    /// The order of the last round.
    pub(super) order: Order,
    pub(super) state: TaskState,
    pub(super) transition: Transition,
    /// A queue with work waits for each small piece of it.
    pub(super) is_sync_bound: bool,
    /// The device runs nothing of its queues with work, as their program reports.
    pub(super) is_drained: bool,
    /// What it costs to preempt it and to resume it, as its program reports.
    pub(super) switch_cost: Nanos,
    /// Since when it is held with work to do.
    held_since: Nanos,
    /// Time it had work and was held.
    pub(super) held: Nanos,
    /// Times it was stopped while it had work.
    pub(super) preemptions: u64,
    /// Launches of queues that are gone.
    pub(super) launches: u64,
    pub(super) waits: Spans,
}

impl Account {
    fn new(task: &Task) -> Self {
        Self {
            task: task.id,
            device: task.device,
            suspended: false,
            order: Order::Free,
            state: TaskState::Idle,
            transition: Transition::Settled,
            is_sync_bound: false,
            is_drained: true,
            switch_cost: Nanos::ZERO,
            held_since: Nanos::ZERO,
            held: Nanos::ZERO,
            preemptions: 0,
            launches: 0,
            waits: Spans::default(),
        }
    }

    /// Whether the device works for it.
    pub(super) fn uses_device(&self) -> bool {
        match self.transition {
            Transition::Settled => self.state == TaskState::Running,
            Transition::Leaving => true,
            Transition::Arriving => false,
        }
    }

    /// Sets what the task does from now on, under the order it has.
    pub(super) fn set_state(&mut self, has_work: bool, now: Nanos) {
        let next = match (self.suspended, has_work, self.order) {
            (true, ..) => TaskState::Suspended,
            (false, false, _) => TaskState::Idle,
            (false, true, order) if order.stops() => TaskState::Held,
            (false, true, _) => TaskState::Running,
        };
        if next == TaskState::Held && self.state != TaskState::Held {
            self.held_since = now;
            self.preemptions += u64::from(self.state == TaskState::Running);
        } else if next == TaskState::Running && self.state == TaskState::Held {
            self.waits.record(now - self.held_since);
        }
        self.state = next;
    }
}

/// Makes the accounts those of `tasks`, in the same order: opens missing ones and closes those of tasks that are gone.
pub(super) fn align(accounts: &mut Vec<Account>, tasks: &[Task], is_suspended: impl Fn(ProcessId) -> bool) {
    let mut old = std::mem::take(accounts).into_iter().peekable();
    // Both are in the order of device and task, so one walk along the two is enough.
    for task in tasks {
        let key = (task.device, task.id);
        while old.next_if(|account| (account.device, account.task) < key).is_some() {}
        let kept = old.next_if(|account| account.task == task.id);
        let mut account = kept.unwrap_or_else(|| Account::new(task));
        account.suspended = is_suspended(task.process.id);
        accounts.push(account);
    }
}

/// A distribution of spans. A quantile is off by 1/16 at most, and the whole takes 4 KiB at most.
#[derive(Debug, Default)]
pub(super) struct Spans(Histogram<3>);

impl Spans {
    fn record(&mut self, span: Nanos) {
        self.0.record(span.0);
    }

    /// The 99th percentile, if any span was recorded.
    pub(super) fn p99(&self) -> Option<Nanos> {
        (!self.0.is_empty()).then(|| Nanos(self.0.quantile(990)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account() -> Account {
        let mut table = xsched_core::TaskTable::default();
        table.add_queue(
            xsched_core::QueueId(1),
            xsched_core::Process::default(),
            DeviceId(1),
            xsched_core::Hints::default(),
        );
        Account::new(&table.tasks()[0])
    }

    #[test]
    fn holding_a_task_with_work_counts_as_preemption_and_starts_a_wait() {
        let mut account = account();
        account.set_state(true, Nanos(0));
        account.order = Order::Yield;
        account.set_state(true, Nanos(10));
        assert_eq!((account.state, account.preemptions, account.waits.p99()), (TaskState::Held, 1, None));
        account.order = Order::Throttled;
        account.set_state(true, Nanos(15));
        assert_eq!(account.waits.p99(), Some(Nanos(5)));
        account.set_state(false, Nanos(20));
        account.order = Order::Yield;
        account.set_state(false, Nanos(25));
        assert_eq!((account.state, account.preemptions), (TaskState::Idle, 1), "it had no work");
    }

    #[test]
    fn device_time_is_charged_while_a_task_leaves_and_not_before_it_has_arrived() {
        let mut account = account();
        account.set_state(true, Nanos(0));
        assert!(account.uses_device());
        (account.order, account.transition) = (Order::Drain, Transition::Leaving);
        account.set_state(true, Nanos(10));
        assert!(account.uses_device());
        account.transition = Transition::Settled;
        assert!(!account.uses_device());
        (account.order, account.transition) = (Order::Throttled, Transition::Arriving);
        account.set_state(true, Nanos(20));
        assert!(!account.uses_device());
    }
}
