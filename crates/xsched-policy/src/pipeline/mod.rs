//! The decision pipeline: from a snapshot of all tasks to one order for each.
//!
//! ```text
//!   Snapshot ─► idle_gaps ──► policy ◄─► jobs ──► inheritance ─► precedence ─► time_slices ─► eviction ─► handover ─► orders
//!               which tasks   a grant    a job    tasks that a   grants        one process    how held    the next
//!               count as      for each   runs on  running task   become        at a time if   tasks       task starts
//!               ready         task       all its  waits for run  orders        exclusive      leave       after a drain
//!                                        devices
//!                                        or none
//! ```
//!
//! It is a pure function of its inputs and its own memory: it reads no clock, takes no lock, does no I/O and touches no
//! shared page. The service, the local scheduler and the simulator fill a [`Snapshot`], call [`Pipeline::plan`] and carry
//! out the orders, so that nothing below a policy decides differently in one of them.
//!
//! Last, `unscheduled` gives tasks beside an unscheduled program an ordinary time slice.
//!
//! Stages from precedence on look at one device at a time. A round allocates only while tasks come or go.

mod eviction;
mod handover;
mod idle_gaps;
mod inheritance;
mod jobs;
mod precedence;
mod time_slices;
mod unscheduled;

use xsched_core::{DeviceId, Nanos, Order, ProcessId, TaskId};

use self::handover::Handover;
use self::idle_gaps::IdleGap;
use self::inheritance::Inheritance;
use self::jobs::Jobs;
use self::time_slices::TimeSlices;
use crate::ledger::Ledger;
use crate::policies::{GrantMode, Selection};
use crate::{Decision, Params, PolicyInfo, Scheduler, TaskView};

pub use self::jobs::JobId;

/// What the pipeline needs to know about one task beside what its policy sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each of which a stage reads")]
pub struct TaskStatus {
    /// Has work that is not finished, or a thread held at the gate.
    pub has_work: bool,
    /// A user suspended it: it is held, and has no work as far as the policy knows.
    pub is_suspended: bool,
    /// Its process does not run, so it makes no progress: it has no work as far as the policy knows, and other tasks are not held
    /// for it.
    pub is_stalled: bool,
    /// Waits for each small piece of the work that it has now.
    pub is_sync_bound: bool,
    /// The device runs nothing of the work it has, as its process reports after an order to drain.
    pub is_drained: bool,
    /// The job that it is a member of: its members are held and resumed together.
    pub job: Option<JobId>,
    /// An unscheduled program keeps its device busy: with a short time slice it would starve.
    pub has_unscheduled_neighbor: bool,
    /// Whether a device that was ordered to stop it completes work that was launched.
    pub launched_work: LaunchedWork,
}

/// Whether a device that was ordered to stop a task completes work that the task has launched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LaunchedWork {
    /// There is none, or the device stops in the middle of it: level 3.
    #[default]
    Stops,
    /// The device stops behind the command that it has begun, if it has begun one: level 2.
    MayContinue,
    /// The device completes all of it: level 1.
    Continues,
}

/// One task waits for work of another. Both are indices into the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dependency {
    /// The task that waits and has work.
    pub waiter: usize,
    /// The task it waits for.
    pub holder: usize,
}

/// All tasks at one moment, in ascending order of device, then of id.
///
/// A caller keeps its snapshot from round to round and changes what has changed, or clears and fills it again.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// What the policy sees. The pipeline sets [`TaskView::ready`] and [`TaskView::in_gap`], from [`TaskStatus::has_work`].
    pub views: Vec<TaskView>,
    /// The rest, in the same order.
    pub statuses: Vec<TaskStatus>,
    /// Which tasks wait for which other tasks, in any order.
    pub dependencies: Vec<Dependency>,
}

impl Snapshot {
    /// Removes all tasks and dependencies. Keeps its memory.
    pub fn clear(&mut self) {
        self.views.clear();
        self.statuses.clear();
        self.dependencies.clear();
    }

    /// Adds a task behind all others.
    pub fn push(&mut self, view: TaskView, status: TaskStatus) {
        self.views.push(view);
        self.statuses.push(status);
    }
}

/// Whether a task is between the device and the gate after its order has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transition {
    /// The device follows the order.
    #[default]
    Settled,
    /// Ordered to drain, with work still on the device.
    Leaving,
    /// Released after a drain, and not yet on the device again.
    Arriving,
}

/// What the pipeline remembers about one task.
#[derive(Clone, Copy, Debug, Default)]
struct TaskMemory {
    /// The order of the last round.
    order: Order,
    transition: Transition,
    /// It did not drain in time. The next task does not wait for it again until it has drained or run.
    is_overdue: bool,
    /// When it was last released after a drain.
    released_at: Option<Nanos>,
    gap: IdleGap,
    /// Its job is blocked, and its peers run until its launched work has completed.
    is_awaited: bool,
}

/// Where a task is: devices ascend, and ids ascend within each.
type TaskKey = (DeviceId, TaskId);

/// The earliest of several times.
#[derive(Clone, Copy, Debug, Default)]
struct WakeUp(Option<Nanos>);

impl WakeUp {
    fn at(&mut self, at: Nanos) {
        self.0 = Some(self.0.map_or(at, |earlier| earlier.min(at)));
    }
}

/// The tasks of one device in the order of the snapshot, as the stages from precedence on see them.
struct DeviceTasks<'a> {
    device: DeviceId,
    views: &'a [TaskView],
    statuses: &'a [TaskStatus],
    orders: &'a mut [Order],
    memory: &'a mut [TaskMemory],
    /// The jobs of all devices, and the index of this device's first task in the snapshot; none without jobs.
    jobs: Option<(&'a Jobs, usize)>,
}

impl DeviceTasks<'_> {
    /// Whether the task at `index` has work and runs unthrottled, so that tasks of lower precedence are held for it.
    fn leads(&self, index: usize) -> bool {
        self.views[index].ready && matches!(self.orders[index], Order::Free | Order::Leader | Order::Peer)
    }

    fn has_leader(&self) -> bool {
        (0..self.orders.len()).any(|index| self.leads(index))
    }

    /// Whether a task runs only because launched work of its job waits for it. It has no time slice.
    fn completes_peers(&self, index: usize) -> bool {
        self.jobs.is_some_and(|(jobs, first)| jobs.completes_peers()[first + index])
    }

    /// The process that a task shares its time slice with: its own, or the first of its job.
    fn slice_process(&self, index: usize) -> ProcessId {
        let first = self.jobs.and_then(|(jobs, first)| jobs.first_process(first + index));
        first.unwrap_or(self.views[index].process)
    }

    /// Whether a job or a process other than the task's has the time slice. None if jobs do not share this device.
    fn loses_slice(&self, index: usize) -> Option<bool> {
        let (jobs, first) = self.jobs?;
        jobs.loses_slice(self.device, first + index, self.views[index].process)
    }
}

/// A policy and all stages that turn its grants into orders.
pub struct Pipeline {
    scheduler: Scheduler,
    decision: Decision,
    memory: Ledger<TaskKey, TaskMemory>,
    jobs: Jobs,
    inheritance: Inheritance,
    time_slices: TimeSlices,
    handover: Handover,
    orders: Vec<Order>,
}

impl Pipeline {
    /// Starts with `policy` and its default settings, and remembers no task.
    #[must_use]
    pub fn new(policy: &'static PolicyInfo) -> Self {
        Self {
            scheduler: Scheduler::new(policy),
            decision: Decision::default(),
            memory: Ledger::default(),
            jobs: Jobs::default(),
            inheritance: Inheritance::default(),
            time_slices: TimeSlices::default(),
            handover: Handover::default(),
            orders: Vec::new(),
        }
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> &'static PolicyInfo {
        self.scheduler.policy()
    }

    /// Changes the policy from the next round on.
    pub fn set_policy(&mut self, policy: &'static PolicyInfo) {
        self.scheduler.set_policy(policy);
    }

    /// Changes the policy's settings from the next round on.
    pub fn configure(&mut self, params: Params) {
        self.scheduler.configure(params);
    }

    /// Plans one round: an order for each task of the snapshot, in its order, in [`Pipeline::orders`]. Returns when to plan
    /// again if nothing changes before.
    ///
    /// `now` never decreases from call to call.
    ///
    /// # Panics
    /// If the snapshot does not have one status for each view.
    pub fn plan(&mut self, now: Nanos, snapshot: &mut Snapshot) -> Option<Nanos> {
        let Snapshot { views, statuses, dependencies } = snapshot;
        assert_eq!(views.len(), statuses.len(), "a snapshot has one status for each task");
        let mut wake_up = WakeUp::default();
        let keys = views.iter().map(|task| (task.device, task.id));
        if !self.memory.is_aligned_with(keys.clone()) {
            self.time_slices.forget_absent(views);
            self.handover.forget_absent(views);
        }
        let memory = self.memory.align(keys, TaskMemory::default());
        idle_gaps::set_ready(now, views, statuses, memory, &mut wake_up);

        let has_jobs = self.jobs.find(views, statuses);
        if has_jobs {
            let policy = (&mut self.scheduler, &mut self.decision);
            self.jobs.decide(now, (views, statuses), memory, policy, &mut wake_up);
        } else {
            self.scheduler.decide(now, views, &mut self.decision);
            if let Some(at) = self.decision.next_look() {
                wake_up.at(at);
            }
        }
        let grants = if has_jobs { self.jobs.grants() } else { self.decision.grants() };

        let runs = self.inheritance.extend(grants, dependencies);
        let policy = self.scheduler.policy();
        self.orders.clear();
        self.orders.resize(views.len(), Order::Free);
        let mut begin = 0;
        for together in views.chunk_by(|a, b| a.device == b.device) {
            let range = begin..begin + together.len();
            begin = range.end;
            let mut tasks = DeviceTasks {
                device: together[0].device,
                views: together,
                statuses: &statuses[range.clone()],
                orders: &mut self.orders[range.clone()],
                memory: &mut memory[range.clone()],
                jobs: None,
            };
            precedence::order(
                &mut tasks,
                &grants[range.clone()],
                &runs[range.clone()],
                precedence::is_alone(policy.scope, views, together),
            );
            if has_jobs {
                tasks.jobs = Some((&self.jobs, range.start));
            }
            match policy.grant_mode {
                GrantMode::Exclusive if !tasks.has_leader() => {
                    self.time_slices.run_one_process(now, &mut tasks, &mut wake_up);
                }
                GrantMode::Exclusive | GrantMode::Concurrent => self.time_slices.pause(tasks.device, now),
            }
            let is_exclusive = policy.grant_mode == GrantMode::Exclusive;
            let holds_lower_precedence = is_exclusive && policy.selection == Selection::Precedence;
            eviction::choose_stop_orders(&mut tasks, holds_lower_precedence);
            self.handover.wait_for_drain(now, &mut tasks, &mut wake_up);
            unscheduled::use_ordinary_time_slices(&mut tasks);
        }
        for (memory, order) in memory.iter_mut().zip(&self.orders) {
            memory.order = *order;
        }
        wake_up.0
    }

    /// The orders of the last round, in the order of its snapshot.
    #[must_use]
    pub fn orders(&self) -> &[Order] {
        &self.orders
    }

    /// Whether the task at `index` of the last snapshot is on its way to the device or away from it.
    #[must_use]
    pub fn transition(&self, index: usize) -> Transition {
        self.memory.get(index).map_or(Transition::Settled, |memory| memory.transition)
    }

    /// How many tasks the pipeline and its policy remember something about; never more than twice the last snapshot's.
    #[must_use]
    pub fn tracked(&self) -> usize {
        self.memory.len() + self.scheduler.tracked()
    }
}

#[cfg(test)]
mod tests;
