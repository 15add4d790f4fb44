//! The scheduler proper: pages in, a policy in the middle, orders out.
//!
//! ```text
//!   pages ──look──► tasks ──snapshot──► Policy::decide ──► grants ──► orders written into the pages
//! ```
//!
//! It has no thread and no clock of its own: [`Coordinator::step`] looks at every page, does one round and says when
//! the next is due; [`Coordinator::look_at`] and [`Coordinator::round`] are its two halves, for a service that knows
//! who has rung. The service, a process that schedules itself, and the demo all run this same code.
//!
//! A round costs what has changed, not what there is: pages of programs that did not ring are neither read nor
//! written unless their orders change, and nothing is allocated while nobody comes or goes.

mod account;
mod events;
mod orders;
mod program;
mod report;
mod turns;

use std::collections::HashMap;
use std::sync::Arc;

use xsched_core::{Hints, Nanos, Order, Process, ProcessId, QueueId, Task, TaskTable};
use xsched_policy::{Decision, Params, PolicyInfo, Scheduler, TaskView};

use self::account::Account;
use self::program::{Program, Queue};
use self::turns::Turns;
use crate::page::Page;
use crate::protocol::{Event, EventKind, TaskState};

pub use self::report::{QueueReport, TaskReport};

/// A program that is being scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(u32);

/// How often held programs are shown that the scheduler is alive. Well below [`crate::client::PATIENCE`].
const BEAT: Nanos = Nanos::from_millis(20);

/// How many queues one user can have scheduled; those beyond run unscheduled.
pub const QUEUES_PER_USER: usize = 8_192;

/// How many queues of one program can have hint_request of their own.
pub const OWN_TASKS_PER_PROGRAM: usize = 64;

/// Everything a scheduler knows and does.
pub struct Coordinator {
    scheduler: Scheduler,
    /// In ascending order of id.
    programs: Vec<Program>,
    table: TaskTable,
    last_client: u32,
    /// What is counted about each task, in the order of the table's tasks.
    accounts: Vec<Account>,
    /// Tasks or queues came or went since the accounts and places were brought in line.
    out_of_line: bool,
    suspended: Vec<ProcessId>,
    /// How many queues each user has.
    users: HashMap<u32, usize>,
    last_round: Nanos,
    /// When everybody was last looked at.
    last_look: Nanos,
    last_heartbeat: Nanos,
    views: Vec<TaskView>,
    decision: Decision,
    runs: Vec<bool>,
    orders: Vec<Order>,
    turns: Turns,
    /// When somebody's gap has become too long to wait for it.
    gaps_end: Option<Nanos>,
    /// Where orders have to be written: program and queue, by their places.
    changes: Vec<(usize, usize)>,
    rounds: u64,
    written: u64,
    events: Option<Vec<Event>>,
    events_lost: u64,
}

impl Coordinator {
    /// Schedules nobody yet.
    #[must_use]
    pub fn new(policy: &'static PolicyInfo) -> Self {
        Self {
            scheduler: Scheduler::new(policy),
            programs: Vec::new(),
            table: TaskTable::default(),
            last_client: 0,
            accounts: Vec::new(),
            out_of_line: false,
            suspended: Vec::new(),
            users: HashMap::new(),
            last_round: Nanos::ZERO,
            last_look: Nanos::ZERO,
            last_heartbeat: Nanos::ZERO,
            views: Vec::new(),
            decision: Decision::default(),
            runs: Vec::new(),
            orders: Vec::new(),
            turns: Turns::default(),
            gaps_end: None,
            changes: Vec::new(),
            rounds: 0,
            written: 0,
            events: None,
            events_lost: 0,
        }
    }

    /// Takes in a program of this user.
    pub fn add_client(&mut self, process: Process, page: Arc<Page>, hints: Hints) -> ClientId {
        self.add_client_of(0, process, page, hints)
    }

    /// Takes in a program of the user with this number.
    pub fn add_client_of(&mut self, user: u32, process: Process, page: Arc<Page>, hints: Hints) -> ClientId {
        self.last_client += 1;
        let id = ClientId(self.last_client);
        self.programs.push(Program::new(id, user, process, page, hints));
        id
    }

    /// A program is gone. Its place is given to others in the next round.
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
        }
        self.out_of_line = true;
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

    /// Gives one queue hints of its own, and with them a task of its own. Answers whether there is such a queue and
    /// its program may have another task: see [`OWN_TASKS_PER_PROGRAM`].
    pub fn set_queue_hints(&mut self, id: ClientId, slot: usize, hints: Hints, now: Nanos) -> bool {
        self.look_at(id, now);
        let Some(place) = self.place_of(id) else { return false };
        let process = self.programs[place].process.id;
        let queue = queue_id(id, slot);
        let of_process = |task: &&Task| task.process.id == process && task.own;
        let task = self.table.task_of(queue);
        let has_one = self.table.tasks().iter().filter(of_process).any(|own| Some(own.id) == task);
        if !has_one && self.table.tasks().iter().filter(of_process).count() >= OWN_TASKS_PER_PROGRAM {
            return false;
        }
        self.out_of_line = true;
        let before = self.task_for_events(queue);
        let given = self.table.give_own_hints(queue, hints, now).is_some();
        if let Some(before) = before {
            self.note_move(queue, &before, now);
        }
        given
    }

    /// The hints of a queue, its own or its program's.
    #[must_use]
    pub fn queue_hints(&self, id: ClientId, slot: usize) -> Option<Hints> {
        let place = self.table.position_of(queue_id(id, slot))?;
        Some(self.table.tasks()[place].hints)
    }

    /// Says that one process, or none, owns the window that has the focus.
    pub fn set_focus(&mut self, focused: Option<ProcessId>) {
        for program in &mut self.programs {
            let focused = focused == Some(program.process.id);
            if program.process.focused != focused {
                program.process.focused = focused;
                self.table.set_process(program.process);
            }
        }
    }

    /// Says what a process's CPU nice value is. Answers whether that is news.
    pub fn set_nice(&mut self, process: ProcessId, nice: i8) -> bool {
        let mut news = false;
        for program in self.programs.iter_mut().filter(|program| program.process.id == process) {
            if program.process.nice != nice {
                program.process.nice = nice;
                self.table.set_process(program.process);
                news = true;
            }
        }
        news
    }

    /// A person suspends a process, or takes that back. While suspended it is held, and to the policy it has no work.
    pub fn set_suspended(&mut self, process: ProcessId, suspended: bool) {
        self.suspended.retain(|other| *other != process);
        if suspended {
            self.suspended.push(process);
        }
        self.out_of_line = true;
    }

    /// The policy at work.
    #[must_use]
    pub fn policy(&self) -> &'static PolicyInfo {
        self.scheduler.policy()
    }

    /// Changes the policy.
    pub fn set_policy(&mut self, policy: &'static PolicyInfo) {
        self.scheduler.set_policy(policy);
    }

    /// Changes the policy's settings.
    pub fn configure(&mut self, params: Params) {
        self.scheduler.configure(params);
    }

    /// The tasks as of the last look.
    #[must_use]
    pub fn tasks(&self) -> &[Task] {
        self.table.tasks()
    }

    /// Rounds made and orders written so far.
    #[must_use]
    pub fn figures(&self) -> (u64, u64) {
        (self.rounds, self.written)
    }

    /// Looks at everybody and does one round. Answers when the next is due if nobody rings before.
    pub fn step(&mut self, now: Nanos) -> Option<Nanos> {
        for place in 0..self.programs.len() {
            self.look_at_place(place, now);
        }
        self.last_look = now;
        self.round(now)
    }

    /// Takes note of what has changed in one program's page. Counts from the next round on.
    pub fn look_at(&mut self, id: ClientId, now: Nanos) {
        if let Some(place) = self.place_of(id) {
            self.look_at_place(place, now);
        }
    }

    /// Decides on what was seen and gives the orders. Answers when everybody has to be looked at again.
    pub fn round(&mut self, now: Nanos) -> Option<Nanos> {
        self.rounds += 1;
        self.bring_in_line();
        self.charge(now);
        self.decide(now);
        let orders_changed = self.take_account(now);
        self.give_orders(orders_changed, now);
        let somebody_is_held = self.orders.iter().any(|order| order.stops());
        if somebody_is_held && now >= self.last_heartbeat + BEAT {
            self.programs.iter().for_each(|program| program.page.set_heartbeat(now));
            self.last_heartbeat = now;
        }
        let beat = somebody_is_held.then(|| self.last_heartbeat + BEAT);
        let due =
            [self.decision.next_look(), self.turns.next_look(), self.gaps_end, beat, self.launches_due()];
        due.into_iter().flatten().min()
    }

    /// Lets everybody go: the scheduler is about to end.
    pub fn release_all(&mut self) {
        for program in self.programs.drain(..) {
            program.page.used_slots().for_each(|(_, slot)| slot.gate.give(Order::Free));
            program.page.orders().bump();
        }
        self.table = TaskTable::default();
        self.accounts.clear();
        self.suspended.clear();
        self.users.clear();
    }

    /// The accounts follow the tasks, and every queue knows where its task stands.
    fn bring_in_line(&mut self) {
        if !std::mem::take(&mut self.out_of_line) {
            return;
        }
        account::align(&mut self.accounts, self.table.tasks(), |process| self.suspended.contains(&process));
        for program in &mut self.programs {
            for queue in &mut program.queues {
                queue.place = self.table.position_of(queue_id(program.id, queue.slot));
                if let Some(account) = queue.place.and_then(|place| self.accounts.get_mut(place)) {
                    account.switch_cost = account.switch_cost.max(queue.switch_cost);
                }
            }
        }
    }

    /// The time since the last round goes to those who were allowed to use it; several on a device share it.
    fn charge(&mut self, now: Nanos) {
        let span = now - self.last_round;
        self.last_round = now;
        let mut begin = 0;
        while begin < self.accounts.len() {
            let device = self.accounts[begin].device;
            let end =
                begin + self.accounts[begin..].iter().take_while(|other| other.device == device).count();
            let here = &mut self.accounts[begin..end];
            let running = here.iter().filter(|account| account.uses_device()).count();
            let part = Nanos(span.0 / running.max(1) as u64);
            for account in here {
                match account.state {
                    _ if account.uses_device() => self.table.charge(device, account.task, part),
                    TaskState::Held => account.held += span,
                    TaskState::Running | TaskState::Idle | TaskState::Suspended => {}
                }
            }
            begin = end;
        }
    }

    fn decide(&mut self, now: Nanos) {
        self.views.clear();
        self.gaps_end = self.table.tasks().iter().filter_map(|task| task.active_until(now)).min();
        self.views.extend(self.table.tasks().iter().zip(&self.accounts).map(|(task, account)| TaskView {
            id: task.id,
            process: task.process.id,
            device: task.device,
            ready: (task.ready || task.active_until(now).is_some()) && !account.suspended,
            ready_since: task.ready_since,
            used: task.used,
            hints: task.hints,
            nice: task.process.nice,
            focused: task.process.focused,
            switch_cost: account.switch_cost,
        }));
        self.scheduler.decide(now, &self.views, &mut self.decision);
        self.runs.clear();
        self.runs.extend(self.decision.grants().iter().map(|grant| grant.runs()));
        for program in &self.programs {
            program.inherit(&mut self.runs);
        }
        self.order(now);
    }

    /// Counts what the decision means for each task. Answers whether somebody's order is another than before.
    fn take_account(&mut self, now: Nanos) -> bool {
        let mut changed = false;
        for (index, account) in self.accounts.iter_mut().enumerate() {
            let (view, order) = (&self.views[index], self.orders[index]);
            let ready = self.table.tasks()[index].ready;
            changed |= account.order != order;
            let was_held = account.order.stops();
            account.order = order;
            account.turn_to(ready, now);
            if was_held != order.stops()
                && let Some(events) = &mut self.events
            {
                let what = if was_held { EventKind::Running } else { EventKind::Held };
                events::note(events, &mut self.events_lost, now, view, what);
            }
        }
        changed
    }

    /// Writes what has changed: first whom to stop, then whom to let go, so that the two overlap as little as
    /// possible. Waking the programs' own threads comes after the words: a held thread needs only its word.
    fn give_orders(&mut self, orders_changed: bool, now: Nanos) {
        self.changes.clear();
        for (place, program) in self.programs.iter_mut().enumerate() {
            let looked_at = std::mem::take(&mut program.looked_at);
            if orders_changed || looked_at {
                program.compare(&self.orders, looked_at, |queue| self.changes.push((place, queue)));
            }
        }
        for stopping in [true, false] {
            for (place, queue) in &self.changes {
                self.programs[*place].write(*queue, &self.orders, stopping, now);
            }
        }
        self.written += self.changes.len() as u64;
        self.programs.iter_mut().for_each(Program::call);
    }

    /// A queue is gone, and its task with it if it was the last.
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
        if let Some(count) = self.users.get_mut(&user) {
            *count -= 1;
            if *count == 0 {
                self.users.remove(&user);
            }
        }
    }
}

fn queue_id(client: ClientId, slot: usize) -> QueueId {
    QueueId((u64::from(client.0) << 32) | slot as u64)
}
