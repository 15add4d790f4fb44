//! One program: its page, and what was last seen there and written there.
//!
//! Queues with hints of their own are tasks of their own, and then this can happen:
//!
//! ```text
//!    high:  ── wait(event) ── runs nothing, yet is ready, so the policy runs it and nobody else
//!    low:   ── ... record(event)   never gets that far
//! ```
//!
//! so whoever a running queue waits for inherits its right to run ([`Program::inherit`]). It is the right to run that is
//! inherited, not the number of a priority: that ends the deadlock under every policy, whether it goes by priority,
//! deadline or share.

use std::sync::Arc;

use xsched_core::{DeviceId, Hints, Nanos, Order, Process};

use super::{ClientId, Coordinator, QUEUES_PER_USER, queue_id};
use crate::page::{Dependencies, Page, Slot};
use crate::protocol::EventKind;

pub(super) struct Program {
    pub(super) id: ClientId,
    pub(super) user: u32,
    pub(super) process: Process,
    pub(super) page: Arc<Page>,
    pub(super) hints: Hints,
    /// In ascending order of slot.
    pub(super) queues: Vec<Queue>,
    /// Since the last orders: what stands in its page is to be compared, not what was written last. A program that
    /// thought us dead has freed itself.
    pub(super) looked_at: bool,
    /// Some queue waits for another.
    waits: bool,
    /// Its threads have to learn of the orders just written.
    to_be_called: bool,
}

/// A queue as last seen in its slot.
pub(super) struct Queue {
    pub(super) slot: usize,
    pub(super) device: DeviceId,
    pub(super) ready: bool,
    /// Its work comes in many small pieces, each of which is waited for.
    pub(super) sync_bound: bool,
    waits: Dependencies,
    pub(super) given: Order,
    /// Where its task stands.
    pub(super) place: Option<usize>,
    /// Its program's threads slept through an order, because it had no work.
    call_owed: bool,
    /// What taking the device from it and giving it back costs, as its program says.
    pub(super) switch_cost: Nanos,
    /// Launches seen, and those of queues that had this slot before without our noticing.
    passes: u64,
    passes_before: u64,
    /// How many of them whoever traces knows of, and since when.
    pub(super) noted: u64,
    pub(super) noted_at: Nanos,
}

impl Queue {
    fn new(slot: usize, device: DeviceId) -> Self {
        Self {
            slot,
            device,
            ready: false,
            sync_bound: false,
            waits: Dependencies::NONE,
            given: Order::Free,
            place: None,
            call_owed: false,
            switch_cost: Nanos::ZERO,
            passes: 0,
            passes_before: 0,
            noted: 0,
            noted_at: Nanos::ZERO,
        }
    }

    /// Launches counted so far.
    pub(super) fn launches(&self) -> u64 {
        self.passes_before.saturating_add(self.passes)
    }

    /// Takes note of the launches counted in the slot. What the slot says never makes the sum go back.
    pub(super) fn count(&mut self, slot: &Slot) {
        let passes = slot.gate.counts().passes;
        if passes < self.passes {
            self.passes_before = self.passes_before.saturating_add(self.passes);
        }
        self.passes = passes;
    }
}

impl Program {
    pub(super) fn new(id: ClientId, user: u32, process: Process, page: Arc<Page>, hints: Hints) -> Self {
        let (queues, looked_at, waits, to_be_called) = (Vec::new(), false, false, false);
        Self { id, user, process, page, hints, queues, looked_at, waits, to_be_called }
    }

    /// Extends the right to run to whom running queues of this program wait for, and so on along the chain. Only
    /// queues of the program itself can be named, so whatever it writes concerns it alone.
    pub(super) fn inherit(&self, runs: &mut [bool]) {
        let mut grew = self.waits;
        // Each turn but the last lets another task run, so there are no more turns than the program has tasks.
        while std::mem::take(&mut grew) {
            let mut anybody = false;
            for waiter in &self.queues {
                match waiter.waits {
                    _ if !waiter.ready || !waiter.runs(runs) => {}
                    Dependencies::Any => anybody = true,
                    Dependencies::Slots(slots, n) => {
                        for holder in slots[..n].iter().filter_map(|slot| self.queue_in(*slot)) {
                            grew |= holder.let_run(runs);
                        }
                    }
                }
            }
            for holder in self.queues.iter().filter(|_| anybody) {
                grew |= holder.let_run(runs);
            }
        }
    }

    fn queue_in(&self, slot: usize) -> Option<&Queue> {
        let place = self.queues.binary_search_by_key(&slot, |queue| queue.slot).ok()?;
        Some(&self.queues[place])
    }

    /// Names the queues whose order has to be written.
    pub(super) fn compare(&mut self, orders: &[Order], looked_at: bool, mut differs: impl FnMut(usize)) {
        for (index, queue) in self.queues.iter_mut().enumerate() {
            let Some(order) = queue.place.and_then(|place| orders.get(place)) else { continue };
            if looked_at && let Some(slot) = self.page.slot(queue.slot) {
                queue.given = slot.gate.order();
            }
            if queue.given != *order {
                differs(index);
            }
        }
    }

    /// Writes the order of one queue if it is one that stops, or one that does not, as asked for.
    pub(super) fn write(&mut self, queue: usize, orders: &[Order], stopping: bool, now: Nanos) {
        let queue = &mut self.queues[queue];
        let Some(order) = queue.place.and_then(|place| orders.get(place)).copied() else { return };
        let Some(slot) = self.page.slot(queue.slot) else { return };
        if order.stops() != stopping {
            return;
        }
        if stopping {
            // Before the word: whoever is held by it asks at once whether we are alive.
            self.page.set_heartbeat(now);
        }
        slot.gate.give(order);
        // A queue that was free did not count its work: only its program knows whether it has any.
        let may_sleep = !queue.ready && queue.given != Order::Free && order != Order::Free;
        queue.call_owed = may_sleep;
        self.to_be_called |= !may_sleep;
        queue.given = order;
    }

    /// Tells the program's threads about the orders, if it concerns work they have.
    pub(super) fn call(&mut self) {
        if std::mem::take(&mut self.to_be_called) {
            self.page.orders().bump();
        }
    }
}

impl Queue {
    fn runs(&self, runs: &[bool]) -> bool {
        self.place.is_some_and(|place| runs.get(place).is_some_and(|runs| *runs))
    }

    /// Lets its task run. Answers whether that is new.
    fn let_run(&self, runs: &mut [bool]) -> bool {
        self.place.and_then(|place| runs.get_mut(place)).is_some_and(|runs| !std::mem::replace(runs, true))
    }
}

/// What has become of one queue between two looks.
enum Found {
    /// It is new.
    Came,
    /// It is the one we know.
    Stayed,
    /// Its slot is empty, or belongs to a queue on another device.
    Left,
}

impl Coordinator {
    pub(super) fn look_at_place(&mut self, place: usize, now: Nanos) {
        let page = Arc::clone(&self.programs[place].page);
        // Before looking: whoever rings from here on has news.
        page.acknowledge();
        let mut next = 0;
        let mut waits = false;
        for (index, slot) in page.used_slots() {
            let device = slot.device();
            loop {
                match self.find(place, next, index, device) {
                    Found::Left => self.queue_left(place, next, now),
                    Found::Came => {
                        if !self.queue_came(place, next, index, device, now) {
                            break;
                        }
                    }
                    Found::Stayed => {
                        waits |= self.look_at_queue(place, next, slot, now);
                        next += 1;
                        break;
                    }
                }
            }
        }
        while next < self.programs[place].queues.len() {
            self.queue_left(place, next, now);
        }
        let program = &mut self.programs[place];
        program.waits = waits;
        program.looked_at = true;
    }

    /// The slots are walked along in ascending order, and so are the queues we know.
    fn find(&self, place: usize, next: usize, slot: usize, device: DeviceId) -> Found {
        match self.programs[place].queues.get(next) {
            Some(known) if known.slot < slot => Found::Left,
            Some(known) if known.slot == slot && known.device != device => Found::Left,
            Some(known) if known.slot == slot => Found::Stayed,
            _ => Found::Came,
        }
    }

    fn queue_came(&mut self, place: usize, next: usize, slot: usize, device: DeviceId, now: Nanos) -> bool {
        let program = &mut self.programs[place];
        let count = self.users.entry(program.user).or_default();
        if *count >= QUEUES_PER_USER {
            return false;
        }
        *count += 1;
        let tasks = self.table.tasks().len();
        let queue = queue_id(program.id, slot);
        let task = self.table.add_queue(queue, program.process, device, program.hints);
        program.queues.insert(next, Queue::new(slot, device));
        self.out_of_line = true;
        if self.table.tasks().len() > tasks {
            self.note_task(task, now, || EventKind::TaskAdded(String::new()));
        }
        true
    }

    fn queue_left(&mut self, place: usize, next: usize, now: Nanos) {
        let program = &mut self.programs[place];
        let mut gone = program.queues.remove(next);
        if let Some(slot) = program.page.slot(gone.slot) {
            gone.count(slot);
        }
        let (user, queue) = (program.user, queue_id(program.id, gone.slot));
        self.out_of_line = true;
        self.forget_queue(user, queue, &gone, now);
    }

    /// Takes note of one queue. Answers whether it waits for others.
    fn look_at_queue(&mut self, place: usize, next: usize, slot: &Slot, now: Nanos) -> bool {
        let program = &mut self.programs[place];
        let queue = &mut program.queues[next];
        queue.waits = slot.dependencies();
        queue.sync_bound = slot.gate.is_sync_bound();
        let cost = slot.switch_cost();
        self.out_of_line |= std::mem::replace(&mut queue.switch_cost, cost) != cost;
        let waits = queue.waits != Dependencies::NONE;
        let ready = slot.gate.is_ready();
        let edge = ready != queue.ready;
        if edge {
            queue.ready = ready;
            program.to_be_called |= ready && std::mem::take(&mut queue.call_owed);
            let id = queue_id(program.id, queue.slot);
            if self.table.set_ready(id, ready, now)
                && self.events.is_some()
                && let Some(task) = self.table.task_of(id)
            {
                self.note_task(task, now, || if ready { EventKind::Busy } else { EventKind::Idle });
            }
        }
        if self.events.is_some() {
            self.programs[place].queues[next].count(slot);
            self.note_queue(place, next, edge, now);
        }
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program whose queues are tasks of their own, each in the slot and the place of its number.
    fn program(waits: &[Dependencies]) -> Program {
        let mut program =
            Program::new(ClientId(1), 0, Process::default(), Page::create().unwrap(), Hints::default());
        program.waits = true;
        program.queues = waits
            .iter()
            .enumerate()
            .map(|(number, waits)| Queue {
                ready: true,
                waits: *waits,
                place: Some(number),
                ..Queue::new(number, DeviceId(1))
            })
            .collect();
        program
    }

    fn on(slot: usize) -> Dependencies {
        Dependencies::Slots([slot, 0, 0, 0], 1)
    }

    #[test]
    fn the_right_to_run_is_inherited_along_a_chain_and_around_a_circle() {
        let circle = program(&[on(1), on(2), on(0), Dependencies::NONE]);
        let mut runs = [true, false, false, false];
        circle.inherit(&mut runs);
        assert_eq!(runs, [true, true, true, false]);
        // What nobody who runs waits for stays where it is.
        let mut runs = [false, false, false, true];
        circle.inherit(&mut runs);
        assert_eq!(runs, [false, false, false, true]);
    }

    #[test]
    fn who_may_wait_for_anybody_lets_everybody_run_and_rubbish_nobody() {
        let unknown = program(&[Dependencies::Any, Dependencies::NONE, Dependencies::NONE]);
        let mut runs = [true, false, false];
        unknown.inherit(&mut runs);
        assert_eq!(runs, [true; 3]);
        let rubbish = program(&[on(usize::MAX - 1), on(12_345)]);
        let mut runs = [true, false];
        rubbish.inherit(&mut runs);
        assert_eq!(runs, [true, false]);
    }
}
