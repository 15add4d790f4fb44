//! What is counted about a task while it exists.

use xsched_core::{DeviceId, Histogram, Nanos, Order, ProcessId, Task, TaskId};
use xsched_policy::{JobId, LaunchedWork, Transition};

use crate::protocol::TaskState;

/// The most unreported time that is charged in later rounds. Bounds what a program's claims can cost the program later.
const MAX_UNCHARGED: Nanos = Nanos::from_secs(1);

/// For how long a task that has become idle counts as a rival: a program pauses between two steps of a training.
const RIVAL_MEMORY: Nanos = Nanos::from_secs(1);

/// One task's account.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about a task")]
pub(super) struct Account {
    pub(super) task: TaskId,
    pub(super) device: DeviceId,
    /// A user holds it.
    pub(super) suspended: bool,
    /// Its device memory is in memory of the host, or moving.
    pub(super) is_parked: bool,
    /// Its process does not run.
    pub(super) is_stalled: bool,
    /// The order of the last round.
    pub(super) order: Order,
    pub(super) state: TaskState,
    pub(super) transition: Transition,
    /// A queue with work waits for each small piece of it.
    pub(super) is_sync_bound: bool,
    /// The device runs nothing of its queues with work, as their program reports.
    pub(super) is_drained: bool,
    /// Whether the device completes launched work of its queues after an order to stop.
    pub(super) launched_work: LaunchedWork,
    /// The job that it is a member of.
    pub(super) job: Option<JobId>,
    /// What it costs to preempt it and to resume it, as its program reports.
    pub(super) switch_cost: Nanos,
    /// Every queue on its device can be preempted by time slice.
    pub(super) is_among_preemptible: bool,
    /// An unscheduled process keeps its device busy.
    pub(super) has_unscheduled_neighbor: bool,
    /// When it last had work that was reported.
    pub(super) worked_at: Option<Nanos>,
    /// Another task on its device had work a short time ago.
    pub(super) has_rival: bool,
    /// Time that its queues were busy without a report, and that is not charged yet.
    pub(super) unreported: Nanos,
    /// Estimated time it was busy while it was free, if samples were taken.
    pub(super) sampled: Option<Nanos>,
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
            is_parked: false,
            is_stalled: false,
            order: Order::Free,
            state: TaskState::Idle,
            transition: Transition::Settled,
            is_sync_bound: false,
            is_drained: true,
            launched_work: LaunchedWork::Stops,
            job: None,
            switch_cost: Nanos::ZERO,
            is_among_preemptible: false,
            has_unscheduled_neighbor: false,
            worked_at: None,
            has_rival: false,
            unreported: Nanos::ZERO,
            sampled: None,
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
            // The work that it reported before it was free may have completed since then. Its samples count instead.
            _ if self.is_sampled() => false,
            Transition::Settled => self.state == TaskState::Running,
            Transition::Leaving => true,
            Transition::Arriving => false,
        }
    }

    /// Whether samples show how busy it is: it is free, and does not report its work.
    pub(super) fn is_sampled(&self) -> bool {
        self.order == Order::Free && self.sampled.is_some()
    }

    /// Returns how much unreported time is charged for the `span` since the last round. The pages of leaders are read less often
    /// than rounds run, so the rest belongs to earlier rounds, and is charged in the next ones.
    pub(super) fn take_unreported(&mut self, span: Nanos) -> Nanos {
        let charged = self.unreported.min(span);
        self.unreported = (self.unreported - charged).min(MAX_UNCHARGED);
        charged
    }

    /// Sets what the task does from now on, under the order it has.
    pub(super) fn set_state(&mut self, has_work: bool, now: Nanos) {
        let next = match (has_work, self.order) {
            _ if self.is_parked => TaskState::Parked,
            _ if self.suspended => TaskState::Suspended,
            _ if self.is_stalled => TaskState::Stalled,
            (false, _) => TaskState::Idle,
            (true, order) if order.stops() => TaskState::Held,
            (true, _) => TaskState::Running,
        };
        if has_work {
            self.worked_at = Some(now);
        }
        if next == TaskState::Held && self.state != TaskState::Held {
            self.held_since = now;
            self.preemptions += u64::from(self.state == TaskState::Running);
        } else if next == TaskState::Running && self.state == TaskState::Held {
            self.waits.record(now - self.held_since);
        }
        self.state = next;
    }
}

/// Sets for the accounts of one device which of them have a rival: another task that had work a short time ago. Returns whether that
/// has changed for any.
pub(super) fn find_rivals(on_device: &mut [Account], now: Nanos) -> bool {
    let works = |account: &Account| account.worked_at.is_some_and(|at| now - at < RIVAL_MEMORY);
    let working = on_device.iter().filter(|account| works(account)).count();
    let mut is_changed = false;
    for account in on_device {
        let has_rival = working > usize::from(works(account));
        is_changed |= std::mem::replace(&mut account.has_rival, has_rival) != has_rival;
    }
    is_changed
}

/// Makes the accounts those of `tasks`, in the same order: opens missing ones and closes those of tasks that are gone.
pub(super) fn align(
    accounts: &mut Vec<Account>,
    tasks: &[Task],
    is_suspended: impl Fn(ProcessId) -> bool,
    is_stalled: impl Fn(ProcessId) -> bool,
    is_parked: impl Fn(ProcessId) -> bool,
    job_of: impl Fn(ProcessId) -> Option<JobId>,
) {
    let mut old = std::mem::take(accounts).into_iter().peekable();
    // Both are in the order of device and task, so one walk along the two is enough.
    for task in tasks {
        let key = (task.device, task.id);
        while old.next_if(|account| (account.device, account.task) < key).is_some() {}
        let kept = old.next_if(|account| account.task == task.id);
        let mut account = kept.unwrap_or_else(|| Account::new(task));
        account.suspended = is_suspended(task.process.id);
        account.is_stalled = is_stalled(task.process.id);
        account.is_parked = is_parked(task.process.id);
        account.job = job_of(task.process.id);
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
