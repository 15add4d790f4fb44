//! One program: its page, and what was last read there and written there.

use std::collections::HashMap;
use std::sync::Arc;

use xsched_core::{DeviceId, Hints, Level, Nanos, Order, Process, TaskId};
use xsched_policy::{Dependency, JobId, LaunchedWork};

use super::parking::ProgramParking;
use super::stalls::StallWatch;
use super::{ClientId, Coordinator, queue_id};
use crate::page::{Dependencies, Page, Samples, Slot};
use crate::protocol::{EventKind, JobKey};

/// The grant of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramGrant {
    /// Its number; 0 if the program has none. Job keys of programs with another grant are other keys.
    pub number: u64,
    /// Its name.
    pub name: Option<Arc<str>>,
    /// The programs of one user that have it are a job.
    pub is_job: bool,
}

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
    /// What identifies the job that it is a member of, in ascending order.
    pub(super) job_keys: Vec<JobKey>,
    pub(super) grant: ProgramGrant,
    pub(super) job: Option<JobId>,
    pub(super) stall: StallWatch,
    pub(super) parking: ProgramParking,
    /// The device memory of each of its tasks that was recorded as an event.
    pub(super) noted_memory: HashMap<TaskId, u64>,
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
    /// Its first launch waits for the scheduler's decision about it.
    pub(super) is_undecided: bool,
    /// Ordered to drain, and the device runs nothing of it.
    pub(super) is_drained: bool,
    /// Whether the device completes launched work though the queue is ordered to stop.
    pub(super) launched_work: LaunchedWork,
    dependencies: Dependencies,
    /// The order in its gate.
    pub(super) order: Order,
    /// The index of its task.
    pub(super) place: Option<usize>,
    /// An order was written without waking the program's threads, because the queue had no work.
    wake_deferred: bool,
    /// What it costs to preempt it and to resume it, as its program reports.
    pub(super) switch_cost: Nanos,
    /// Its running command can be preempted, as its program reports.
    pub(super) is_interruptible: bool,
    /// It may keep its work unreported.
    permits_unreported: bool,
    /// It may defer its launches.
    permits_deferral: bool,
    /// How long it was busy without a report, as last read, and when that was.
    unreported: Nanos,
    unreported_read_at: Nanos,
    /// What the samples of its free task showed when they were last read, and when that was.
    samples: Samples,
    samples_read_at: Nanos,
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
            is_undecided: false,
            is_drained: false,
            launched_work: LaunchedWork::Stops,
            dependencies: Dependencies::NONE,
            order: Order::Free,
            place: None,
            wake_deferred: false,
            switch_cost: Nanos::ZERO,
            is_interruptible: false,
            permits_unreported: false,
            permits_deferral: false,
            unreported: Nanos::ZERO,
            unreported_read_at: Nanos::ZERO,
            samples: Samples::default(),
            samples_read_at: Nanos::MAX,
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

    /// Reads how long the queue was busy without a report. Returns the time since the last call, at most what has passed.
    fn read_unreported(&mut self, slot: &Slot, now: Nanos) -> Nanos {
        let total = slot.gate.unreported_time();
        let span = total - std::mem::replace(&mut self.unreported, total);
        span.min(now - std::mem::replace(&mut self.unreported_read_at, now))
    }

    /// Reads what samples of the queue's free task show. Returns the busy time since the last call, at most what has passed, or
    /// none if no sample was taken since then.
    pub(super) fn read_samples(&mut self, slot: &Slot, now: Nanos) -> Option<Nanos> {
        let samples = slot.samples();
        let before = std::mem::replace(&mut self.samples, samples);
        let passed = now - std::mem::replace(&mut self.samples_read_at, now);
        (samples.count != before.count).then(|| (samples.busy - before.busy).min(passed))
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
        Self {
            id,
            user,
            process,
            page,
            hints,
            queues: Vec::new(),
            was_read: false,
            has_dependencies: false,
            wake_pending: false,
            job_keys: Vec::new(),
            grant: ProgramGrant::default(),
            job: None,
            stall: StallWatch::default(),
            parking: ProgramParking::default(),
            noted_memory: HashMap::new(),
        }
    }

    /// Whether it has something that identifies a job.
    pub(super) fn has_job_key(&self) -> bool {
        !self.job_keys.is_empty() || self.grant.is_job
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
        // Between two orders with the same time slice an idle queue has nothing to do. A queue that was free did not count its
        // work: only its program knows whether it has any.
        let is_deferred = !queue.ready && is_preemptible(queue.order) && is_preemptible(order);
        queue.wake_deferred = is_deferred;
        self.wake_pending |= !is_deferred;
        queue.order = order;
    }

    /// Sets which of its queues may keep their work unreported: those that lead, and whose task has the permission. They may defer
    /// their launches if `has_rival` returns true for their task.
    pub(super) fn permit_unreported(
        &mut self,
        has_permission: impl Fn(usize) -> bool,
        has_rival: impl Fn(usize) -> bool,
    ) {
        for queue in &mut self.queues {
            let permits = queue.order == Order::Leader && queue.place.is_some_and(&has_permission);
            let permits_deferral = permits && queue.place.is_some_and(&has_rival);
            if permits_deferral != std::mem::replace(&mut queue.permits_deferral, permits_deferral)
                && let Some(slot) = self.page.slot(queue.slot)
            {
                slot.gate.permit_deferral(permits_deferral);
            }
            if permits != std::mem::replace(&mut queue.permits_unreported, permits)
                && let Some(slot) = self.page.slot(queue.slot)
            {
                // The process reports what it has kept unreported.
                self.wake_pending |= slot.gate.permit_unreported(permits);
            }
        }
    }

    /// Whether one of its queues may keep its work unreported.
    pub(super) fn permits_unreported(&self) -> bool {
        self.queues.iter().any(|queue| queue.permits_unreported)
    }

    /// Wakes the program's threads if the orders concern work it has.
    pub(super) fn wake_threads(&mut self) {
        if std::mem::take(&mut self.wake_pending) {
            self.page.orders().bump();
        }
    }
}

/// Whether the device completes work that the queue has launched, after an order to stop.
fn launched_work(slot: &Slot) -> LaunchedWork {
    match slot.settings().0 {
        _ if slot.gate.epoch().is_idle() => LaunchedWork::Stops,
        0 | 1 => LaunchedWork::Continues,
        2 => LaunchedWork::MayContinue,
        _ => LaunchedWork::Stops,
    }
}

/// Whether a queue with this order has the short time slice of tasks that can be preempted.
fn is_preemptible(order: Order) -> bool {
    matches!(order, Order::Throttled | Order::Yield | Order::Evict | Order::Drain)
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
                            // It runs unscheduled, without an order to wait for.
                            slot.gate.mark_decided();
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
        self.needs_alignment |= program.notice_progress();
        self.needs_alignment |= program.parking.read(page.parking());
        self.note_memory(place, now);
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
        if self.queue_limits.get(&program.user).is_some_and(|limit| *count >= *limit) {
            return false;
        }
        *count += 1;
        let tasks = self.table.tasks().len();
        let queue = queue_id(program.id, slot);
        let task = self.table.add_queue(queue, program.process, device, program.hints);
        program.queues.insert(next, Queue { samples_read_at: now, ..Queue::new(slot, device) });
        self.needs_alignment = true;
        if self.table.tasks().len() > tasks {
            self.note_task(task, now, || EventKind::TaskAdded(String::new()));
            if self.programs[place].job.is_some() {
                self.note_job(place, now);
            }
            if self.programs[place].grant.name.is_some() {
                self.note_grant(place, now);
            }
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
        queue.is_undecided = slot.gate.is_undecided();
        self.has_undecided |= queue.is_undecided;
        let (is_sync_bound, is_drained) = (slot.gate.is_sync_bound(), slot.is_drained());
        self.feedback_changed |= (queue.is_sync_bound, queue.is_drained) != (is_sync_bound, is_drained);
        (queue.is_sync_bound, queue.is_drained) = (is_sync_bound, is_drained);
        let launched_work = launched_work(slot);
        self.feedback_changed |= std::mem::replace(&mut queue.launched_work, launched_work) != launched_work;
        let cost = slot.switch_cost();
        self.needs_alignment |= std::mem::replace(&mut queue.switch_cost, cost) != cost;
        let is_interruptible = slot.settings().0 >= Level::Interrupt.number();
        self.needs_alignment |=
            std::mem::replace(&mut queue.is_interruptible, is_interruptible) != is_interruptible;
        let unreported = queue.read_unreported(slot, now);
        if let Some(account) = queue.place.and_then(|place| self.accounts.get_mut(place)) {
            account.unreported += unreported;
        }
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
