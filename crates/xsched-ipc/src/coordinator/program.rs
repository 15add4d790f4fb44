//! One program: its page, and what was last read there and written there.

use std::sync::Arc;

use xsched_core::{DeviceId, Hints, Nanos, Order, Process};
use xsched_policy::Dependency;

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
    /// Its page was read since the last orders: they are compared with its gates, not with what was written last. A program
    /// that took the scheduler for dead has freed itself.
    pub(super) was_read: bool,
    /// Some queue waits for another.
    has_dependencies: bool,
    /// Its threads have to be woken for the orders just written.
    wake_pending: bool,
}

/// A queue as last read from its slot.
#[expect(clippy::struct_excessive_bools, reason = "independent facts that the slot reports")]
pub(super) struct Queue {
    pub(super) slot: usize,
    pub(super) device: DeviceId,
    /// Has work.
    pub(super) ready: bool,
    /// The program waits for each small piece of its work.
    pub(super) is_sync_bound: bool,
    /// Ordered to drain, and the device runs nothing of it.
    pub(super) is_drained: bool,
    dependencies: Dependencies,
    /// The order in its gate.
    pub(super) order: Order,
    /// The index of its task.
    pub(super) place: Option<usize>,
    /// An order was written without waking the program's threads, because the queue had no work.
    wake_deferred: bool,
    /// What it costs to preempt it and to resume it, as its program reports.
    pub(super) switch_cost: Nanos,
    /// Launches counted in the slot, and those of queues that had this slot before without being noticed.
    passes: u64,
    passes_before: u64,
    /// How many launches have been reported as events, and when.
    pub(super) noted: u64,
    pub(super) noted_at: Nanos,
}

impl Queue {
    fn new(slot: usize, device: DeviceId) -> Self {
        Self {
            slot,
            device,
            ready: false,
            is_sync_bound: false,
            is_drained: false,
            dependencies: Dependencies::NONE,
            order: Order::Free,
            place: None,
            wake_deferred: false,
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

    /// Reads the launches counted in the slot. The sum never decreases, whatever the slot holds.
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
        let (queues, was_read, has_dependencies, wake_pending) = (Vec::new(), false, false, false);
        Self { id, user, process, page, hints, queues, was_read, has_dependencies, wake_pending }
    }

    /// Adds which of its tasks wait for which. A program can only name queues of its own, so what it writes concerns its own
    /// tasks alone.
    pub(super) fn add_dependencies(&self, out: &mut Vec<Dependency>) {
        if !self.has_dependencies {
            return;
        }
        // The first task that may wait for any queue depends on all tasks, and the rest of such tasks depend on the first: the
        // same tasks run as if each depended on all, and the list stays short.
        let mut first_on_any = None;
        for queue in self.queues.iter().filter(|queue| queue.ready) {
            let Some(waiter) = queue.place else { continue };
            let mut add = |holder| {
                if holder != waiter {
                    out.push(Dependency { waiter, holder });
                }
            };
            match (queue.dependencies, first_on_any) {
                (Dependencies::Any, Some(first)) => add(first),
                (Dependencies::Any, None) => {
                    first_on_any = Some(waiter);
                    self.queues.iter().filter_map(|holder| holder.place).for_each(add);
                }
                (Dependencies::Slots(slots, n), _) => {
                    let holders = slots[..n].iter().filter_map(|slot| self.queue_in(*slot)?.place);
                    holders.for_each(add);
                }
            }
        }
    }

    fn queue_in(&self, slot: usize) -> Option<&Queue> {
        let place = self.queues.binary_search_by_key(&slot, |queue| queue.slot).ok()?;
        Some(&self.queues[place])
    }

    /// Reports the queues whose order has to be written.
    pub(super) fn find_changes(&mut self, orders: &[Order], was_read: bool, mut report: impl FnMut(usize)) {
        for (index, queue) in self.queues.iter_mut().enumerate() {
            let Some(order) = queue.place.and_then(|place| orders.get(place)) else { continue };
            if was_read && let Some(slot) = self.page.slot(queue.slot) {
                queue.order = slot.gate.order();
            }
            if queue.order != *order {
                report(index);
            }
        }
    }

    /// Writes the order of one queue if it stops the queue and `stopping`, or if it does neither.
    pub(super) fn write(&mut self, queue: usize, orders: &[Order], stopping: bool, now: Nanos) {
        let queue = &mut self.queues[queue];
        let Some(order) = queue.place.and_then(|place| orders.get(place)).copied() else { return };
        let Some(slot) = self.page.slot(queue.slot) else { return };
        if order.stops() != stopping {
            return;
        }
        if stopping {
            // Before the order: a thread that is held by it checks at once whether the scheduler is alive.
            self.page.set_heartbeat(now);
        }
        slot.gate.set_order(order);
        // A queue that was free did not count its work: only its program knows whether it has any.
        let is_idle = !queue.ready && queue.order != Order::Free && order != Order::Free;
        queue.wake_deferred = is_idle;
        self.wake_pending |= !is_idle;
        queue.order = order;
    }

    /// Wakes the program's threads if the orders concern work it has.
    pub(super) fn wake_threads(&mut self) {
        if std::mem::take(&mut self.wake_pending) {
            self.page.orders().bump();
        }
    }
}

/// How a slot in use compares with the next queue that is known.
enum SlotState {
    /// No queue is known for this slot.
    New,
    /// It still belongs to the known queue.
    Known,
    /// The slot of the known queue is empty, or belongs to a queue on another device.
    KnownQueueGone,
}

impl Coordinator {
    pub(super) fn read_page(&mut self, place: usize, now: Nanos) {
        let page = Arc::clone(&self.programs[place].page);
        // Before reading: a notification from here on means another change.
        page.acknowledge();
        let mut next = 0;
        let mut has_dependencies = false;
        for (index, slot) in page.used_slots() {
            let device = slot.device();
            loop {
                match self.compare_slot(place, next, index, device) {
                    SlotState::KnownQueueGone => self.remove_queue(place, next, now),
                    SlotState::New => {
                        if !self.add_queue(place, next, index, device, now) {
                            break;
                        }
                    }
                    SlotState::Known => {
                        has_dependencies |= self.read_slot(place, next, slot, now);
                        next += 1;
                        break;
                    }
                }
            }
        }
        while next < self.programs[place].queues.len() {
            self.remove_queue(place, next, now);
        }
        let program = &mut self.programs[place];
        program.has_dependencies = has_dependencies;
        program.was_read = true;
    }

    /// Slots are read in ascending order, and the known queues are in the same order.
    fn compare_slot(&self, place: usize, next: usize, slot: usize, device: DeviceId) -> SlotState {
        match self.programs[place].queues.get(next) {
            Some(known) if known.slot < slot => SlotState::KnownQueueGone,
            Some(known) if known.slot == slot && known.device != device => SlotState::KnownQueueGone,
            Some(known) if known.slot == slot => SlotState::Known,
            _ => SlotState::New,
        }
    }

    /// Adds a queue. Returns false if its user has too many.
    fn add_queue(&mut self, place: usize, next: usize, slot: usize, device: DeviceId, now: Nanos) -> bool {
        let program = &mut self.programs[place];
        let count = self.queues_by_user.entry(program.user).or_default();
        if *count >= QUEUES_PER_USER {
            return false;
        }
        *count += 1;
        let tasks = self.table.tasks().len();
        let queue = queue_id(program.id, slot);
        let task = self.table.add_queue(queue, program.process, device, program.hints);
        program.queues.insert(next, Queue::new(slot, device));
        self.needs_alignment = true;
        if self.table.tasks().len() > tasks {
            self.note_task(task, now, || EventKind::TaskAdded(String::new()));
        }
        true
    }

    fn remove_queue(&mut self, place: usize, next: usize, now: Nanos) {
        let program = &mut self.programs[place];
        let mut gone = program.queues.remove(next);
        if let Some(slot) = program.page.slot(gone.slot) {
            gone.count(slot);
        }
        let (user, queue) = (program.user, queue_id(program.id, gone.slot));
        self.needs_alignment = true;
        self.forget_queue(user, queue, &gone, now);
    }

    /// Reads what a queue's slot reports. Returns whether it waits for other queues.
    fn read_slot(&mut self, place: usize, next: usize, slot: &Slot, now: Nanos) -> bool {
        let program = &mut self.programs[place];
        let queue = &mut program.queues[next];
        queue.dependencies = slot.dependencies();
        let (is_sync_bound, is_drained) = (slot.gate.is_sync_bound(), slot.is_drained());
        self.feedback_changed |= (queue.is_sync_bound, queue.is_drained) != (is_sync_bound, is_drained);
        (queue.is_sync_bound, queue.is_drained) = (is_sync_bound, is_drained);
        let cost = slot.switch_cost();
        self.needs_alignment |= std::mem::replace(&mut queue.switch_cost, cost) != cost;
        let has_dependencies = queue.dependencies != Dependencies::NONE;
        let ready = slot.gate.is_ready();
        let edge = ready != queue.ready;
        if edge {
            queue.ready = ready;
            self.feedback_changed = true;
            program.wake_pending |= ready && std::mem::take(&mut queue.wake_deferred);
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
        has_dependencies
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The dependencies of a program whose queues are tasks of their own, each in the slot and at the index of its number.
    fn dependencies(queues: &[Dependencies]) -> Vec<(usize, usize)> {
        let mut program =
            Program::new(ClientId(1), 0, Process::default(), Page::create().unwrap(), Hints::default());
        program.has_dependencies = true;
        program.queues = queues
            .iter()
            .enumerate()
            .map(|(number, dependencies)| Queue {
                ready: true,
                dependencies: *dependencies,
                place: Some(number),
                ..Queue::new(number, DeviceId(1))
            })
            .collect();
        let mut out = Vec::new();
        program.add_dependencies(&mut out);
        out.iter().map(|edge| (edge.waiter, edge.holder)).collect()
    }

    fn on(slot: usize) -> Dependencies {
        Dependencies::Slots([slot, 0, 0, 0], 1)
    }

    #[test]
    fn queue_depends_on_the_tasks_of_the_slots_it_names() {
        let queues = [on(1), Dependencies::Slots([3, 0, 2, 0], 3), Dependencies::NONE, on(3)];
        assert_eq!(dependencies(&queues), [(0, 1), (1, 3), (1, 0), (1, 2)]);
    }

    #[test]
    fn queue_that_may_wait_for_any_queue_depends_on_all_tasks() {
        assert_eq!(dependencies(&[on(2), Dependencies::Any, Dependencies::NONE]), [(0, 2), (1, 0), (1, 2)]);
        let two = [Dependencies::Any, Dependencies::NONE, Dependencies::Any];
        assert_eq!(dependencies(&two), [(0, 1), (0, 2), (2, 0)]);
    }

    #[test]
    fn slots_without_a_queue_are_ignored() {
        assert_eq!(dependencies(&[on(usize::MAX - 1), on(12_345)]), []);
    }
}
