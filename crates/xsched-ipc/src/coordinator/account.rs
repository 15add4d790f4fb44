//! What is counted about a task while it lives.

use xsched_core::{DeviceId, Histogram, Nanos, Order, ProcessId, Task, TaskId};

use crate::protocol::TaskState;

/// One task's account.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) task: TaskId,
    pub(super) device: DeviceId,
    /// A person holds it.
    pub(super) suspended: bool,
    /// What it was last ordered.
    pub(super) order: Order,
    pub(super) state: TaskState,
    /// Told to stop, with something still on the device.
    pub(super) leaving: bool,
    /// When it was let go after it had been stopped.
    pub(super) let_go_at: Nanos,
    /// Let go, and not yet on the device again.
    pub(super) arriving: bool,
    /// What it costs to take the device from it and to give it back, as its program says.
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
            leaving: false,
            let_go_at: Nanos::ZERO,
            arriving: false,
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
        (self.state == TaskState::Running && !self.arriving) || self.leaving
    }

    /// Notes what the task does from now on, under the order it has.
    pub(super) fn turn_to(&mut self, ready: bool, now: Nanos) {
        let next = match (self.suspended, ready, self.order) {
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
pub(super) fn align(accounts: &mut Vec<Account>, tasks: &[Task], suspended: impl Fn(ProcessId) -> bool) {
    let mut old = std::mem::take(accounts).into_iter().peekable();
    // Both are in the order of device and task, so one walk along the two is enough.
    for task in tasks {
        let key = (task.device, task.id);
        while old.next_if(|account| (account.device, account.task) < key).is_some() {}
        let kept = old.next_if(|account| account.task == task.id);
        let mut account = kept.unwrap_or_else(|| Account::new(task));
        account.suspended = suspended(task.process.id);
        accounts.push(account);
    }
}

/// Of spans in nanoseconds; a quantile is off by no more than a sixteenth, and the whole takes 4 KiB at most.
#[derive(Debug, Default)]
pub(super) struct Spans(Histogram<3>);

impl Spans {
    fn record(&mut self, span: Nanos) {
        self.0.record(span.0);
    }

    /// The span that 99 of 100 do not exceed, if there are any.
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
    fn being_stopped_with_work_is_a_preemption_and_begins_a_wait() {
        let mut account = account();
        account.turn_to(true, Nanos(0));
        account.order = Order::Yield;
        account.turn_to(true, Nanos(10));
        assert_eq!((account.state, account.preemptions, account.waits.p99()), (TaskState::Held, 1, None));
        account.order = Order::Throttled;
        account.turn_to(true, Nanos(15));
        assert_eq!(account.waits.p99(), Some(Nanos(5)));
        account.turn_to(false, Nanos(20));
        account.order = Order::Yield;
        account.turn_to(false, Nanos(25));
        assert_eq!((account.state, account.preemptions), (TaskState::Idle, 1), "it had no work");
    }
}
