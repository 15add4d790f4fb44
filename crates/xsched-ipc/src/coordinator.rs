//! The scheduling loop: reads the pages, runs the decision pipeline and writes the orders that changed.
//!
//! ```text
//!   pages ──read──► tasks ──snapshot──► Pipeline::plan ──orders──► written into the pages
//! ```
//!
//! It has no thread and no clock of its own. [`Coordinator::step`] reads every page, runs one round and returns when the next
//! one is due. [`Coordinator::look_at`] and [`Coordinator::round`] are its two halves, for a service that knows which programs
//! have notified it. The service, the local scheduler and the demo run this same code. It makes no decision itself: those are
//! in [`xsched_policy::pipeline`].
//!
//! The cost of a round follows what has changed: the page of a program that did not notify is neither read nor written unless
//! its orders change, and nothing is allocated while no task comes or goes.

mod account;
mod events;
mod first_orders;
mod jobs;
mod parking;
mod program;
mod report;
mod snapshot;
mod stalls;
mod unscheduled;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use xsched_core::{DeviceId, Hints, Nanos, Order, Process, ProcessId, QueueId, Task, TaskTable};
use xsched_policy::{Params, Pipeline, PolicyInfo, Snapshot};

use self::account::Account;
use self::jobs::Jobs;
use self::program::{Program, Queue};
use crate::page::Page;
use crate::protocol::{Event, EventKind, TaskState};

pub use self::parking::ParkingReport;
pub use self::program::ProgramGrant;
pub use self::report::{QueueReport, TaskReport};
pub use self::stalls::STALL_CHECK_INTERVAL;

/// A program that is being scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(u64);

impl ClientId {
    /// A number that no other program of this coordinator has.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

/// How often held programs see a sign of life of the scheduler. Well below the time after which a program takes the scheduler
/// for dead.
const HEARTBEAT_INTERVAL: Nanos = Nanos::from_millis(20);

/// How many queues of one program can have hints of their own.
pub const OWN_TASKS_PER_PROGRAM: usize = 64;

/// All scheduled programs and the pipeline that decides for them.
#[expect(clippy::struct_excessive_bools, reason = "independent facts about what the next round has to do")]
pub struct Coordinator {
    pipeline: Pipeline,
    /// In ascending order of id.
    programs: Vec<Program>,
    table: TaskTable,
    last_client: u64,
    /// What is counted about each task, in the order of the table's tasks.
    accounts: Vec<Account>,
    /// Tasks or queues came or went since the accounts were aligned with the tasks.
    needs_alignment: bool,
    /// What a queue reports about its work or the device has changed since it was collected for its task.
    feedback_changed: bool,
    /// The first launch of some queue may wait for the scheduler's decision about that queue.
    has_undecided: bool,
    /// Which leaders need not report their work may have changed since it was written.
    permission_changed: bool,
    /// A tool traces the names of kernels.
    names_kernels: bool,
    /// The jobs of all processes, and when their keys have changed since they were joined.
    jobs: Jobs,
    jobs_changed_at: Option<Nanos>,
    suspended: Vec<ProcessId>,
    /// The orders of the last round, in the order of the table's tasks.
    orders: Vec<Order>,
    /// Processes whose grant is suspended, whatever their own state.
    suspended_with_grant: HashSet<ProcessId>,
    /// Devices that an unscheduled process keeps busy, and that process.
    unscheduled: Vec<(DeviceId, u32)>,
    /// How many queues each user has.
    queues_by_user: HashMap<u32, usize>,
    /// How many queues a user may have, if that is limited.
    queue_limits: HashMap<u32, usize>,
    last_round: Nanos,
    /// When all pages were last read.
    last_full_read: Nanos,
    last_heartbeat: Nanos,
    /// When the samples of free tasks were last read.
    samples_read_at: Nanos,
    snapshot: Snapshot,
    /// Orders to write: indices of program and queue.
    changes: Vec<(usize, usize)>,
    rounds: u64,
    orders_written: u64,
    events: Option<Vec<Event>>,
    events_lost: u64,
}

impl Coordinator {
    /// Starts without programs.
    #[must_use]
    pub fn new(policy: &'static PolicyInfo) -> Self {
        Self {
            pipeline: Pipeline::new(policy),
            programs: Vec::new(),
            table: TaskTable::default(),
            last_client: 0,
            accounts: Vec::new(),
            needs_alignment: false,
            feedback_changed: false,
            has_undecided: false,
            permission_changed: false,
            names_kernels: false,
            jobs: Jobs::default(),
            jobs_changed_at: None,
            suspended: Vec::new(),
            orders: Vec::new(),
            suspended_with_grant: HashSet::new(),
            unscheduled: Vec::new(),
            queues_by_user: HashMap::new(),
            queue_limits: HashMap::new(),
            last_round: Nanos::ZERO,
            last_full_read: Nanos::ZERO,
            last_heartbeat: Nanos::ZERO,
            samples_read_at: Nanos::ZERO,
            snapshot: Snapshot::default(),
            changes: Vec::new(),
            rounds: 0,
            orders_written: 0,
            events: None,
            events_lost: 0,
        }
    }

    /// Adds a program of this user.
    pub fn add_client(&mut self, process: Process, page: Arc<Page>, hints: Hints) -> ClientId {
        self.add_client_of(0, process, page, hints)
    }

    /// Adds a program of the user with this number.
    pub fn add_client_of(&mut self, user: u32, process: Process, page: Arc<Page>, hints: Hints) -> ClientId {
        self.last_client += 1;
        let id = ClientId(self.last_client);
        page.set_wants_kernel_names(self.names_kernels);
        self.programs.push(Program::new(id, user, process, page, hints));
        id
    }

    /// Limits how many queues of a user are scheduled; those beyond run unscheduled.
    pub fn set_queue_limit(&mut self, user: u32, queues: usize) {
        self.queue_limits.insert(user, queues);
    }

    /// Removes a program that has exited. Its tasks are gone from the next round on.
    pub fn remove_client(&mut self, id: ClientId) {
        let Some(place) = self.place_of(id) else { return };
        let mut program = self.programs.remove(place);
        let process = program.process.id;
        for mut queue in program.queues.drain(..) {
            if let Some(slot) = program.page.slot(queue.slot) {
                queue.count(slot);
            }
            self.forget_queue(program.user, queue_id(id, queue.slot), &queue, Nanos::now());
        }
        if !self.programs.iter().any(|other| other.process.id == process) {
            self.suspended.retain(|other| *other != process);
            self.suspended_with_grant.remove(&process);
        }
        self.needs_alignment = true;
        if program.has_job_key() {
            self.jobs_changed_at = Some(Nanos::now());
        }
    }

    fn place_of(&self, id: ClientId) -> Option<usize> {
        self.programs.binary_search_by_key(&id, |program| program.id).ok()
    }

    /// A program's hints.
    #[must_use]
    pub fn hints(&self, id: ClientId) -> Option<Hints> {
        self.place_of(id).map(|place| self.programs[place].hints)
    }

    /// Changes a program's hints.
    pub fn set_hints(&mut self, id: ClientId, hints: Hints) {
        if let Some(place) = self.place_of(id) {
            let program = &mut self.programs[place];
            program.hints = hints;
            self.table.set_hints(program.process.id, hints);
        }
    }

    /// Gives one queue hints of its own, and with them a task of its own. Returns whether there is such a queue and its
    /// program may have another task: see [`OWN_TASKS_PER_PROGRAM`].
    pub fn set_queue_hints(&mut self, id: ClientId, slot: usize, hints: Hints, now: Nanos) -> bool {
        self.look_at(id, now);
        let Some(place) = self.place_of(id) else { return false };
        let process = self.programs[place].process.id;
        let queue = queue_id(id, slot);
        let is_own_task = |task: &&Task| task.process.id == process && task.own;
        let task = self.table.task_of(queue);
        let has_own_task = self.table.tasks().iter().filter(is_own_task).any(|own| Some(own.id) == task);
        if !has_own_task && self.table.tasks().iter().filter(is_own_task).count() >= OWN_TASKS_PER_PROGRAM {
            return false;
        }
        self.needs_alignment = true;
        let before = self.task_for_events(queue);
        let is_given = self.table.give_own_hints(queue, hints, now).is_some();
        if let Some(before) = before {
            self.note_move(queue, &before, now);
        }
        is_given
    }

    /// The hints of a queue, its own or its program's.
    #[must_use]
    pub fn queue_hints(&self, id: ClientId, slot: usize) -> Option<Hints> {
        let place = self.table.position_of(queue_id(id, slot))?;
        Some(self.table.tasks()[place].hints)
    }

    /// Sets which process, if any, owns the window that has the focus.
    pub fn set_focus(&mut self, focused: Option<ProcessId>) {
        for program in &mut self.programs {
            let focused = focused == Some(program.process.id);
            if program.process.focused != focused {
                program.process.focused = focused;
                self.table.set_process(program.process);
            }
        }
    }

    /// Sets a process's CPU nice value. Returns whether it has changed.
    pub fn set_nice(&mut self, process: ProcessId, nice: i8) -> bool {
        let mut changed = false;
        for program in self.programs.iter_mut().filter(|program| program.process.id == process) {
            if program.process.nice != nice {
                program.process.nice = nice;
                self.table.set_process(program.process);
                changed = true;
            }
        }
        changed
    }

    /// Suspends or resumes a process at a user's request. While suspended it is held, and has no work as far as the policy knows.
    pub fn set_suspended(&mut self, process: ProcessId, suspended: bool) {
        self.suspended.retain(|other| *other != process);
        if suspended {
            self.suspended.push(process);
        }
        self.needs_alignment = true;
    }

    /// Suspends or resumes a process together with its grant. It runs only if neither it nor its grant is suspended.
    pub fn set_suspended_with_grant(&mut self, process: ProcessId, is_suspended: bool) {
        let has_changed = if is_suspended {
            self.suspended_with_grant.insert(process)
        } else {
            self.suspended_with_grant.remove(&process)
        };
        self.needs_alignment |= has_changed;
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> &'static PolicyInfo {
        self.pipeline.policy()
    }

    /// Changes the policy.
    pub fn set_policy(&mut self, policy: &'static PolicyInfo) {
        self.pipeline.set_policy(policy);
        self.permission_changed = true;
    }

    /// Changes the policy's settings.
    pub fn configure(&mut self, params: Params) {
        self.pipeline.configure(params);
    }

    /// The tasks as of the last time their pages were read.
    #[must_use]
    pub fn tasks(&self) -> &[Task] {
        self.table.tasks()
    }

    /// Rounds run and orders written so far.
    #[must_use]
    pub fn figures(&self) -> (u64, u64) {
        (self.rounds, self.orders_written)
    }

    /// Reads all pages and runs one round. Returns when the next is due if no program notifies before.
    pub fn step(&mut self, now: Nanos) -> Option<Nanos> {
        for place in 0..self.programs.len() {
            self.read_page(place, now);
        }
        self.last_full_read = now;
        self.round(now)
    }

    /// Reads one program's page. What has changed counts from the next round on.
    pub fn look_at(&mut self, id: ClientId, now: Nanos) {
        if let Some(place) = self.place_of(id) {
            self.read_page(place, now);
        }
    }

    /// Runs the pipeline on what was read and writes the orders. Returns when all pages have to be read again.
    pub fn round(&mut self, now: Nanos) -> Option<Nanos> {
        self.rounds += 1;
        self.align();
        self.charge(now);
        self.fill_snapshot();
        let wake_up = self.pipeline.plan(now, &mut self.snapshot);
        self.take_orders(now);
        let orders_changed = self.record_orders(now);
        self.write_orders(orders_changed, now);
        let heartbeat = self.show_heartbeat(now);
        [wake_up, heartbeat, self.launches_due()].into_iter().flatten().min()
    }

    /// Frees all queues: the scheduler is about to end.
    pub fn release_all(&mut self) {
        for mut program in self.programs.drain(..) {
            program.release_parking();
            for (_, slot) in program.page.used_slots() {
                slot.gate.set_order(Order::Free);
                slot.gate.mark_decided();
            }
            program.page.orders().bump();
        }
        self.table = TaskTable::default();
        self.accounts.clear();
        self.suspended.clear();
        self.suspended_with_grant.clear();
        self.queues_by_user.clear();
    }

    /// Adds the time since the last round to the tasks that were allowed to use it; several on a device share it.
    fn charge(&mut self, now: Nanos) {
        let span = now - self.last_round;
        self.last_round = now;
        for on_device in self.accounts.chunk_by_mut(|a, b| a.device == b.device) {
            let running = on_device.iter().filter(|account| account.uses_device()).count();
            let mut unreported = Nanos::ZERO;
            // Most tasks have none, and looking up each of thousands takes longer than the decision.
            for account in on_device.iter_mut().filter(|account| account.unreported > Nanos::ZERO) {
                let charged = account.take_unreported(span);
                self.table.charge(account.device, account.task, charged);
                unreported += charged;
            }
            let part = Nanos((span - unreported).0 / running.max(1) as u64);
            for account in on_device {
                match account.state {
                    _ if account.uses_device() => self.table.charge(account.device, account.task, part),
                    TaskState::Held => account.held += span,
                    TaskState::Running
                    | TaskState::Idle
                    | TaskState::Suspended
                    | TaskState::Stalled
                    | TaskState::Parked => {}
                }
            }
        }
    }

    /// Counts what the orders mean for each task. Returns whether any differs from the last round's.
    fn record_orders(&mut self, now: Nanos) -> bool {
        let mut changed = false;
        for (index, account) in self.accounts.iter_mut().enumerate() {
            let (view, order) = (&self.snapshot.views[index], self.orders[index]);
            changed |= account.order != order;
            let was_held = account.order.stops();
            account.order = order;
            account.transition = self.pipeline.transition(index);
            let was_stalled = account.state == TaskState::Stalled;
            account.set_state(self.snapshot.statuses[index].has_work, now);
            let is_stalled = account.state == TaskState::Stalled;
            if was_stalled != is_stalled
                && let Some(events) = &mut self.events
            {
                let what = EventKind::Stalled(is_stalled);
                events::note(events, &mut self.events_lost, now, view.into(), what);
            }
            if was_held != order.stops()
                && let Some(events) = &mut self.events
            {
                let what = if was_held { EventKind::Running } else { EventKind::Held };
                events::note(events, &mut self.events_lost, now, view.into(), what);
            }
        }
        for on_device in self.accounts.chunk_by_mut(|a, b| a.device == b.device) {
            self.permission_changed |= account::find_rivals(on_device, now);
        }
        changed
    }

    /// Writes the orders that have changed: those that stop a queue first, so that the two sides overlap as little as possible.
    /// The programs' own threads are woken afterwards: a thread held at a gate is woken by its gate.
    fn write_orders(&mut self, orders_changed: bool, now: Nanos) {
        self.changes.clear();
        let may_permit = std::mem::take(&mut self.permission_changed) || orders_changed;
        let permits = may_permit && self.permits_unreported_leaders();
        let accounts = &self.accounts;
        let orders = &self.orders;
        for (place, program) in self.programs.iter_mut().enumerate() {
            let was_read = std::mem::take(&mut program.was_read);
            if orders_changed || was_read {
                program.find_changes(orders, was_read, |queue| self.changes.push((place, queue)));
            }
        }
        for stopping in [true, false] {
            for (place, queue) in &self.changes {
                self.programs[*place].write(*queue, orders, stopping, now);
            }
        }
        if may_permit {
            for program in &mut self.programs {
                program.permit_unreported(
                    |place| {
                        permits
                            && accounts[place].is_among_preemptible
                            && !accounts[place].has_unscheduled_neighbor
                    },
                    |place| accounts[place].has_rival,
                );
            }
        }
        self.decide_new_queues();
        self.orders_written += self.changes.len() as u64;
        self.programs.iter_mut().for_each(Program::wake_threads);
    }

    /// While a task is held or a program is parked, shows all programs every 20 ms that the scheduler is alive. Returns when to do so again.
    fn show_heartbeat(&mut self, now: Nanos) -> Option<Nanos> {
        if !self.orders.iter().any(|order| order.stops()) && !self.has_parked() {
            return None;
        }
        if now >= self.last_heartbeat + HEARTBEAT_INTERVAL {
            self.programs.iter().for_each(|program| program.page.set_heartbeat(now));
            self.last_heartbeat = now;
        }
        Some(self.last_heartbeat + HEARTBEAT_INTERVAL)
    }

    /// Forgets a queue, and its task if it was the last.
    fn forget_queue(&mut self, user: u32, id: QueueId, gone: &Queue, now: Nanos) {
        let task = self.table.task_of(id);
        if let Some(account) = self.accounts.iter_mut().find(|account| Some(account.task) == task) {
            account.launches = account.launches.saturating_add(gone.launches());
        }
        let before = self.task_for_events(id);
        self.table.remove_queue(id);
        if let Some(before) = before {
            self.note_leave(id, gone, &before, now);
        }
        if let Some(count) = self.queues_by_user.get_mut(&user) {
            *count -= 1;
            if *count == 0 {
                self.queues_by_user.remove(&user);
            }
        }
    }
}

/// The bits of a queue's id that are its slot. The rest is its program: 2^48 programs can join before an id repeats.
const SLOT_BITS: u32 = 16;
const _: () = assert!(crate::page::SLOTS < 1 << SLOT_BITS);

fn queue_id(client: ClientId, slot: usize) -> QueueId {
    QueueId((client.0 << SLOT_BITS) | slot as u64)
}
