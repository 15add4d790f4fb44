//! The scheduler proper: pages in, a policy in the middle, orders out.
//!
//! ```text
//!   pages ──look──► tasks ──snapshot──► Policy::decide ──► grants ──► orders written into the pages
//! ```
//!
//! It has no thread and no clock of its own: [`Coordinator::step`] does one round and says when the next is due. The
//! service, a process that schedules itself, and the demo all run this same code.

use std::sync::Arc;

use xsched_core::{DeviceId, Hints, Nanos, Order, Process, ProcessId, QueueId, TaskId, TaskTable};
use xsched_policy::{Decision, Grant, Params, PolicyInfo, Scheduler, TaskView};

use crate::page::{Page, SLOTS, Waits};

/// A program that is being scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientId(u32);

/// How often held programs are shown that the scheduler is alive. Well below [`crate::client::PATIENCE`].
const BEAT: Nanos = Nanos::from_millis(20);

struct Client {
    id: ClientId,
    process: Process,
    page: Arc<Page>,
    hints: Hints,
    /// What was last seen in each slot.
    seen: Vec<Option<Seen>>,
}

#[derive(Clone, Copy, PartialEq)]
struct Seen {
    device: DeviceId,
    ready: bool,
    waits: Waits,
}

/// Everything a scheduler knows and does.
pub struct Coordinator {
    scheduler: Scheduler,
    clients: Vec<Client>,
    table: TaskTable,
    last_client: u32,
    /// Who has been running since the last round, to be charged for it.
    running: Vec<(DeviceId, TaskId)>,
    last_round: Nanos,
    views: Vec<TaskView>,
    decision: Decision,
    runs: Vec<bool>,
    orders: Vec<Order>,
}

impl Coordinator {
    /// Schedules nobody yet.
    #[must_use]
    pub fn new(policy: &'static PolicyInfo) -> Self {
        Self {
            scheduler: Scheduler::new(policy),
            clients: Vec::new(),
            table: TaskTable::default(),
            last_client: 0,
            running: Vec::new(),
            last_round: Nanos::ZERO,
            views: Vec::new(),
            decision: Decision::default(),
            runs: Vec::new(),
            orders: Vec::new(),
        }
    }

    /// Takes in a program.
    pub fn add_client(&mut self, process: Process, page: Arc<Page>, hints: Hints) -> ClientId {
        self.last_client += 1;
        let id = ClientId(self.last_client);
        self.clients.push(Client { id, process, page, hints, seen: vec![None; SLOTS] });
        id
    }

    /// A program is gone. Its place is given to others in the next round.
    pub fn remove_client(&mut self, id: ClientId) {
        if let Some(place) = self.clients.iter().position(|client| client.id == id) {
            let client = self.clients.swap_remove(place);
            for slot in (0..SLOTS).filter(|slot| client.seen[*slot].is_some()) {
                self.table.remove_queue(queue_id(id, slot));
            }
        }
    }

    /// Changes a program's hints.
    pub fn set_hints(&mut self, id: ClientId, hints: Hints) {
        if let Some(client) = self.clients.iter_mut().find(|client| client.id == id) {
            client.hints = hints;
            self.table.set_hints(client.process.id, hints);
        }
    }

    /// Gives one queue hints of its own, and with them a task of its own. Answers whether there is such a queue.
    pub fn set_queue_hints(&mut self, id: ClientId, slot: usize, hints: Hints, now: Nanos) -> bool {
        self.look(now);
        self.table.give_own_hints(queue_id(id, slot), hints, now).is_some()
    }

    /// Says that one process, or none, owns the window that has the focus.
    pub fn set_focus(&mut self, focused: Option<ProcessId>) {
        for client in &mut self.clients {
            let focused = focused == Some(client.process.id);
            if client.process.focused != focused {
                client.process.focused = focused;
                self.table.set_process(client.process);
            }
        }
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

    /// The tasks as of the last round.
    #[must_use]
    pub fn tasks(&self) -> &[xsched_core::Task] {
        self.table.tasks()
    }

    /// One round. Answers when the next is due if nobody rings before.
    pub fn step(&mut self, now: Nanos) -> Option<Nanos> {
        self.charge(now);
        self.look(now);
        self.decide(now);
        self.give_orders();
        let somebody_waits = self.account_for_running();
        for client in &self.clients {
            client.page.beat(now);
        }
        let beat = somebody_waits.then(|| now + BEAT);
        [self.decision.next_look(), beat].into_iter().flatten().min()
    }

    /// Lets everybody go: the scheduler is about to end.
    pub fn release_all(&mut self) {
        for client in self.clients.drain(..) {
            client.page.used_slots().for_each(|(_, slot)| slot.gate.give(Order::Free));
            client.page.orders().bump();
        }
        self.table = TaskTable::default();
        self.running.clear();
    }

    /// The time since the last round goes to those who were allowed to use it; several on a device share it.
    fn charge(&mut self, now: Nanos) {
        let span = now - self.last_round;
        for together in self.running.chunk_by(|a, b| a.0 == b.0) {
            let part = Nanos(span.0 / together.len() as u64);
            for (device, task) in together {
                self.table.charge(*device, *task, part);
            }
        }
        self.last_round = now;
    }

    /// Takes note of what has changed in the pages.
    fn look(&mut self, now: Nanos) {
        for client in &mut self.clients {
            let mut still_there = [false; SLOTS];
            for (index, slot) in client.page.used_slots() {
                still_there[index] = true;
                let device = slot.device();
                let queue = queue_id(client.id, index);
                if client.seen[index].is_some_and(|seen| seen.device != device) {
                    // Another queue has taken the slot between two rounds.
                    self.table.remove_queue(queue);
                    client.seen[index] = None;
                }
                let before = *client.seen[index].get_or_insert_with(|| {
                    self.table.add_queue(queue, client.process, device, client.hints);
                    Seen { device, ready: false, waits: Waits::NOBODY }
                });
                let now_seen = Seen { device, ready: slot.gate.is_ready(), waits: slot.waits() };
                if now_seen.ready != before.ready {
                    self.table.set_ready(queue, now_seen.ready, now);
                }
                if now_seen.waits != before.waits {
                    self.table.set_waits(queue, &holders(client.id, now_seen.waits));
                }
                client.seen[index] = Some(now_seen);
            }
            for index in (0..SLOTS).filter(|index| !still_there[*index]) {
                if client.seen[index].take().is_some() {
                    self.table.remove_queue(queue_id(client.id, index));
                }
            }
        }
    }

    fn decide(&mut self, now: Nanos) {
        self.views.clear();
        self.views.extend(self.table.tasks().iter().map(|task| TaskView {
            id: task.id,
            process: task.process.id,
            device: task.device,
            ready: task.ready,
            ready_since: task.ready_since,
            used: task.used,
            hints: task.hints,
            nice: task.process.nice,
            focused: task.process.focused,
        }));
        self.scheduler.decide(now, &self.views, &mut self.decision);
        self.runs.clear();
        self.runs.extend(self.decision.grants().iter().map(|grant| grant.runs()));
        self.table.inherit(&mut self.runs);
        self.orders.clear();
        for together in self.views.chunk_by(|a, b| a.device == b.device) {
            for _ in together {
                let index = self.orders.len();
                self.orders.push(match self.decision.grants()[index] {
                    Grant::Unpaced if together.len() == 1 => Order::Free,
                    Grant::Unpaced => Order::Watched,
                    Grant::Paced => Order::Paced,
                    Grant::Hold if self.runs[index] => Order::Paced,
                    Grant::Hold => Order::Hold,
                });
            }
        }
    }

    /// Writes what has changed: first whom to stop, then whom to let go, so that the two overlap as little as possible.
    fn give_orders(&self) {
        for stopping in [true, false] {
            for client in &self.clients {
                let mut changed = false;
                for (index, slot) in
                    client.page.used_slots().filter(|(index, _)| client.seen[*index].is_some())
                {
                    let place = self.table.position_of(queue_id(client.id, index));
                    let Some(order) = place.map(|place| self.orders[place]) else { continue };
                    // What stands in the page counts, not what was written last: a program that thought us dead has
                    // freed itself.
                    if (order == Order::Hold) == stopping && slot.gate.order() != order {
                        slot.gate.give(order);
                        changed = true;
                    }
                }
                if changed {
                    client.page.orders().bump();
                }
            }
        }
    }

    /// Notes who uses the devices from now on. Answers whether somebody waits for one.
    fn account_for_running(&mut self) -> bool {
        self.running.clear();
        let ready = self.views.iter().zip(&self.runs).filter(|(view, _)| view.ready);
        let mut somebody_waits = false;
        for (view, runs) in ready {
            if *runs {
                self.running.push((view.device, view.id));
            } else {
                somebody_waits = true;
            }
        }
        somebody_waits
    }
}

fn queue_id(client: ClientId, slot: usize) -> QueueId {
    QueueId((u64::from(client.0) << 32) | slot as u64)
}

fn holders(client: ClientId, waits: Waits) -> Vec<QueueId> {
    match waits {
        Waits::Slots(slots, n) => slots[..n].iter().map(|slot| queue_id(client, *slot)).collect(),
        Waits::Any => (0..SLOTS).map(|slot| queue_id(client, slot)).collect(),
    }
}
