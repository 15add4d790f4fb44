//! The events that the coordinator records for tracing. While tracing is off, nothing is recorded, counted or read for it.
//!
//! ```text
//!   queue    ──mark_busy──mark_busy──mark_busy──────mark_busy── ... ──mark_idle──
//!   notifies     │                                                       │
//!   page read    ▼          ▼ timer       ▼ timer      ▼ timer           ▼
//!   events   QueueReady   Launched 2    Launched 1   Launched 40     Launched 3
//!            Launched 1                                              QueueIdle
//! ```
//!
//! A launch on a busy queue does not notify the scheduler. So launches are counted, not recorded one by one: when their queue
//! becomes busy or idle, and in between once every [`LAUNCH_COUNT_INTERVAL`], however often the program notifies.

use xsched_core::{Nanos, QueueId, Task, TaskId, is_control};
use xsched_policy::TaskView;

use super::program::Queue;
use super::{ClientId, Coordinator, queue_id};
use crate::protocol::{Event, EventKind, KernelLaunches};

/// Events kept until the tracer takes them; those beyond are lost, and counted.
const MAX_EVENTS: usize = 4_096;

/// The longest name of a kernel, in bytes.
const MAX_KERNEL_NAME: usize = 255;
/// The launches that a process reports are no older than this.
const MAX_KERNEL_AGE: Nanos = Nanos::from_secs(2);

/// How long launches of a busy queue stay uncounted at most while tracing is on.
const LAUNCH_COUNT_INTERVAL: Nanos = Nanos::from_millis(10);

impl Coordinator {
    /// Whether events are kept for [`Coordinator::take_events`].
    pub fn set_tracing(&mut self, tracing: bool) {
        if tracing == self.events.is_some() {
            return;
        }
        self.events = tracing.then(|| Vec::with_capacity(MAX_EVENTS));
        self.permission_changed = true;
        // Launches from before tracing started are not reported.
        for program in self.programs.iter_mut().filter(|_| tracing) {
            program.noted_memory.clear();
            for queue in &mut program.queues {
                if let Some(slot) = program.page.slot(queue.slot) {
                    queue.count(slot);
                }
                queue.noted = queue.launches();
            }
        }
    }

    /// Whether events are kept.
    #[must_use]
    pub fn is_tracing(&self) -> bool {
        self.events.is_some()
    }

    /// Appends the events since the last call to `out`; a new task has no name in them. Returns how many were lost.
    pub fn take_events(&mut self, out: &mut Vec<Event>) -> u64 {
        if let Some(events) = &mut self.events {
            out.append(events);
        }
        std::mem::take(&mut self.events_lost)
    }

    /// Sets whether programs report the names of the kernels that they launch.
    pub fn set_naming_kernels(&mut self, is_wanted: bool) {
        if is_wanted != std::mem::replace(&mut self.names_kernels, is_wanted) {
            for program in &self.programs {
                program.page.set_wants_kernel_names(is_wanted);
                // The watcher thread reads it when it wakes.
                program.page.orders().bump();
            }
        }
    }

    /// Records the launches of a kernel. A process may report any slot, name and age.
    pub fn note_kernel(&mut self, id: ClientId, launches: &KernelLaunches, now: Nanos) {
        let queue = queue_id(id, launches.slot);
        if self.names_kernels
            && let Some(task) = self.task_for_events(queue)
        {
            let mut room = MAX_KERNEL_NAME;
            let fits = |c: &char| {
                let left = room.checked_sub(c.len_utf8());
                room = left.unwrap_or(0);
                left.is_some()
            };
            let name = launches.name.chars().take_while(fits);
            let name = name.map(|c| if is_control(c) { '?' } else { c }).collect();
            let age = Nanos(launches.age_ns).min(MAX_KERNEL_AGE);
            let kind =
                EventKind::Kernel { queue: queue.0, name, count: launches.count, began_ns: (now - age).0 };
            self.note(now, (&task).into(), kind);
        }
    }

    /// Records how long a round took.
    pub fn note_round(&mut self, now: Nanos, took: Nanos) {
        self.note(now, EventSubject::SCHEDULER, EventKind::Decision(took.0));
    }

    /// Records that the policy was changed.
    pub fn note_policy(&mut self, now: Nanos) {
        let name = self.policy().name.to_owned();
        self.note(now, EventSubject::SCHEDULER, EventKind::PolicyChanged(name));
    }

    /// When all pages have to be read to count launches.
    pub(super) fn launches_due(&self) -> Option<Nanos> {
        (self.events.is_some() && !self.programs.is_empty())
            .then(|| self.last_full_read + LAUNCH_COUNT_INTERVAL)
    }

    /// A copy of a queue's task, to record later what it was. None while tracing is off.
    pub(super) fn task_for_events(&self, queue: QueueId) -> Option<Task> {
        let place = self.events.as_ref().and_then(|_| self.table.position_of(queue))?;
        Some(self.table.tasks()[place].clone())
    }

    pub(super) fn note_task(&mut self, task: TaskId, now: Nanos, what: impl FnOnce() -> EventKind) {
        if self.events.is_some()
            && let Some(task) = self.table.tasks().iter().find(|other| other.id == task).cloned()
        {
            self.note(now, (&task).into(), what());
        }
    }

    /// Records what was read about a queue: whether it became busy or idle, and its launches.
    pub(super) fn note_queue(&mut self, place: usize, next: usize, edge: bool, now: Nanos) {
        let Some(events) = &mut self.events else { return };
        let program = &mut self.programs[place];
        let queue = &mut program.queues[next];
        let count = queue.launches().saturating_sub(queue.noted);
        // Launches that are not recorded now are recorded later, so they leave room for the other events.
        let is_due = (edge || now >= queue.noted_at + LAUNCH_COUNT_INTERVAL) && events.len() < MAX_EVENTS / 2;
        let records_launches = count > 0 && is_due;
        if !edge && !records_launches {
            return;
        }
        let id = queue_id(program.id, queue.slot);
        let Some(task) = self.table.position_of(id).map(|place| &self.table.tasks()[place]) else { return };
        if records_launches {
            (queue.noted, queue.noted_at) = (queue.launches(), now);
            note(events, &mut self.events_lost, now, task.into(), EventKind::Launched { queue: id.0, count });
        }
        if edge {
            let what = if queue.ready { EventKind::QueueBusy(id.0) } else { EventKind::QueueIdle(id.0) };
            note(events, &mut self.events_lost, now, task.into(), what);
        }
    }

    /// Records the device memory of a program's tasks, if it has changed.
    pub(super) fn note_memory(&mut self, place: usize, now: Nanos) {
        let Some(events) = &mut self.events else { return };
        let program = &mut self.programs[place];
        for queue in &program.queues {
            let id = queue_id(program.id, queue.slot);
            let Some(task) = self.table.position_of(id).map(|place| &self.table.tasks()[place]) else {
                continue;
            };
            let Some(memory) = program.page.memory(queue.device) else { continue };
            if program.noted_memory.insert(task.id, memory.used) != Some(memory.used) {
                note(events, &mut self.events_lost, now, task.into(), EventKind::Memory(memory.used));
            }
        }
    }

    /// Records that a queue is gone.
    pub(super) fn note_leave(&mut self, id: QueueId, gone: &Queue, before: &Task, now: Nanos) {
        let count = gone.launches().saturating_sub(gone.noted);
        if count > 0 {
            self.note(now, before.into(), EventKind::Launched { queue: id.0, count });
        }
        if gone.ready {
            self.note(now, before.into(), EventKind::QueueIdle(id.0));
        }
        self.note_left(before, now);
    }

    /// Records that a queue is in another task than before, if it is.
    pub(super) fn note_move(&mut self, id: QueueId, before: &Task, now: Nanos) {
        let Some(after) = self.task_for_events(id).filter(|after| after.id != before.id) else { return };
        self.note(now, (&after).into(), EventKind::TaskAdded(String::new()));
        if after.ready {
            self.note(now, before.into(), EventKind::QueueIdle(id.0));
            self.note(now, (&after).into(), EventKind::Busy);
            self.note(now, (&after).into(), EventKind::QueueBusy(id.0));
        }
        self.note_left(before, now);
    }

    /// Records whether a task that lost a queue is gone or idle.
    fn note_left(&mut self, before: &Task, now: Nanos) {
        match self.table.tasks().iter().find(|task| task.id == before.id) {
            None => self.note(now, before.into(), EventKind::TaskRemoved),
            Some(task) if before.ready && !task.ready => self.note(now, before.into(), EventKind::Idle),
            Some(_) => {}
        }
    }

    fn note(&mut self, now: Nanos, subject: EventSubject, what: EventKind) {
        if let Some(events) = &mut self.events {
            note(events, &mut self.events_lost, now, subject, what);
        }
    }
}

/// The task that an event is about.
#[derive(Clone, Copy)]
pub(super) struct EventSubject {
    task: u64,
    pid: u32,
    device: u64,
}

impl EventSubject {
    /// The scheduler itself.
    const SCHEDULER: Self = Self { task: 0, pid: 0, device: 0 };
}

impl From<&TaskView> for EventSubject {
    fn from(task: &TaskView) -> Self {
        Self { task: task.id.0, pid: task.process.0, device: task.device.0 }
    }
}

impl From<&Task> for EventSubject {
    fn from(task: &Task) -> Self {
        Self { task: task.id.0, pid: task.process.id.0, device: task.device.0 }
    }
}

pub(super) fn note(
    events: &mut Vec<Event>,
    lost: &mut u64,
    now: Nanos,
    EventSubject { task, pid, device }: EventSubject,
    what: EventKind,
) {
    if events.len() < MAX_EVENTS {
        events.push(Event { at_ns: now.0, task, pid, device, kind: what });
    } else {
        *lost += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use xsched_core::{DeviceId, Hints, NoScheduler, Process, ProcessId};
    use xsched_policy::PolicyInfo;

    use super::*;
    use crate::coordinator::ClientId;
    use crate::page::Page;

    const MS: u64 = 1_000_000;

    /// A program with queues on one device.
    struct Program {
        id: ClientId,
        page: Arc<Page>,
    }

    impl Program {
        fn new(coordinator: &mut Coordinator, pid: u32, queues: usize) -> Self {
            let page = Page::create().unwrap();
            for _ in 0..queues {
                page.allocate_slot(DeviceId(1)).unwrap();
            }
            let process = Process { id: ProcessId(pid), ..Process::default() };
            Self { id: coordinator.add_client(process, Arc::clone(&page), Hints::default()), page }
        }

        fn launch(&self, slot: usize, times: u64) {
            (0..times).for_each(|_| self.page.slot(slot).unwrap().gate.mark_busy(&NoScheduler));
        }

        fn finish(&self, slot: usize) {
            let gate = &self.page.slot(slot).unwrap().gate;
            assert!(gate.mark_idle(gate.epoch(), &NoScheduler));
        }

        fn handle(&self, slot: usize) -> u64 {
            queue_id(self.id, slot).0
        }
    }

    fn coordinator() -> Coordinator {
        Coordinator::new(PolicyInfo::find("priority").unwrap())
    }

    /// The events about queues since the last call. Fails if one was lost.
    fn queue_events(coordinator: &mut Coordinator) -> Vec<EventKind> {
        let mut events = Vec::new();
        assert_eq!(coordinator.take_events(&mut events), 0);
        let is_of_queue = |what: &EventKind| {
            matches!(what, EventKind::QueueBusy(_) | EventKind::QueueIdle(_) | EventKind::Launched { .. })
        };
        events.into_iter().map(|event| event.kind).filter(is_of_queue).collect()
    }

    #[test]
    fn launches_are_counted_when_a_queue_becomes_busy_or_idle_and_every_10_ms_between() {
        let mut coordinator = coordinator();
        let program = Program::new(&mut coordinator, 7, 2);
        program.launch(0, 5);
        program.finish(0);
        coordinator.step(Nanos(MS));
        coordinator.set_tracing(true);
        let (first, second) = (program.handle(0), program.handle(1));
        coordinator.step(Nanos(20 * MS));
        assert_eq!(queue_events(&mut coordinator), [], "launches from before tracing are not reported");

        program.launch(0, 1);
        coordinator.look_at(program.id, Nanos(21 * MS));
        let expected = [EventKind::Launched { queue: first, count: 1 }, EventKind::QueueBusy(first)];
        assert_eq!(queue_events(&mut coordinator), expected);

        program.launch(0, 3);
        coordinator.look_at(program.id, Nanos(22 * MS));
        assert_eq!(queue_events(&mut coordinator), [], "less than 10 ms since the last count");
        program.launch(0, 1);
        coordinator.look_at(program.id, Nanos(31 * MS));
        assert_eq!(queue_events(&mut coordinator), [EventKind::Launched { queue: first, count: 4 }]);

        program.launch(0, 2);
        program.finish(0);
        program.launch(1, 1);
        program.finish(1);
        coordinator.look_at(program.id, Nanos(32 * MS));
        let brief = EventKind::Launched { queue: second, count: 1 };
        let expected = [EventKind::Launched { queue: first, count: 2 }, EventKind::QueueIdle(first), brief];
        assert_eq!(queue_events(&mut coordinator), expected);
    }

    #[test]
    fn kernels_are_recorded_while_a_tool_wants_them_and_untrusted_names_are_cleaned() {
        let mut coordinator = coordinator();
        let program = Program::new(&mut coordinator, 7, 1);
        coordinator.step(Nanos(MS));
        coordinator.set_tracing(true);
        let launches =
            |slot, name: &str, age_ns| KernelLaunches { slot, name: name.into(), count: 3, age_ns };
        let at = Nanos(5_000 * MS);
        coordinator.note_kernel(program.id, &launches(0, "a", 0), at);
        coordinator.set_naming_kernels(true);
        assert!(program.page.wants_kernel_names());
        let long = "é".repeat(200);
        for launches in
            [launches(0, "two\nlines", MS), launches(0, &long, u64::MAX), launches(99, "no such queue", 0)]
        {
            coordinator.note_kernel(program.id, &launches, at);
        }
        let mut events = Vec::new();
        coordinator.take_events(&mut events);
        let kernels: Vec<_> = events
            .into_iter()
            .filter(|event| matches!(event.kind, EventKind::Kernel { .. }))
            .map(|event| (event.at_ns, event.kind))
            .collect();
        let kernel = |name: String, began: u64| {
            let kind = EventKind::Kernel { queue: program.handle(0), name, count: 3, began_ns: began };
            (at.0, kind)
        };
        let oldest = (at - MAX_KERNEL_AGE).0;
        assert_eq!(kernels, [kernel("two?lines".into(), at.0 - MS), kernel("é".repeat(127), oldest)]);
        let later = Program::new(&mut coordinator, 8, 1);
        assert!(later.page.wants_kernel_names());
        coordinator.set_naming_kernels(false);
        assert!(!program.page.wants_kernel_names() && !later.page.wants_kernel_names());
    }

    #[test]
    fn all_pages_are_read_every_10_ms_only_while_tracing_is_on() {
        let mut coordinator = coordinator();
        coordinator.set_tracing(true);
        assert_eq!(coordinator.step(Nanos(MS)), None, "there is no program");
        coordinator.set_tracing(false);
        let program = Program::new(&mut coordinator, 7, 1);
        program.launch(0, 1);
        assert_eq!(coordinator.step(Nanos(MS)), None);
        coordinator.set_tracing(true);
        assert_eq!(coordinator.step(Nanos(2 * MS)), Some(Nanos(12 * MS)));
        assert_eq!(
            coordinator.round(Nanos(9 * MS)),
            Some(Nanos(12 * MS)),
            "a round in between does not delay it"
        );
        coordinator.set_tracing(false);
        assert_eq!(coordinator.round(Nanos(10 * MS)), None);
    }

    #[test]
    fn queue_that_is_removed_with_work_is_recorded_as_idle_with_its_last_launches() {
        let mut coordinator = coordinator();
        coordinator.set_tracing(true);
        let program = Program::new(&mut coordinator, 7, 2);
        program.launch(0, 1);
        program.launch(1, 1);
        coordinator.step(Nanos(MS));
        queue_events(&mut coordinator);
        let (first, second) = (program.handle(0), program.handle(1));
        program.launch(0, 1);
        program.page.release_slot(0);
        coordinator.step(Nanos(2 * MS));
        let expected = [EventKind::Launched { queue: first, count: 1 }, EventKind::QueueIdle(first)];
        assert_eq!(queue_events(&mut coordinator), expected);
        program.launch(1, 2);
        coordinator.remove_client(program.id);
        let mut events = Vec::new();
        coordinator.take_events(&mut events);
        let expected = [
            EventKind::Launched { queue: second, count: 2 },
            EventKind::QueueIdle(second),
            EventKind::TaskRemoved,
        ];
        assert_eq!(events.into_iter().map(|event| event.kind).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn queue_that_becomes_its_own_task_keeps_its_work() {
        let mut coordinator = coordinator();
        coordinator.set_tracing(true);
        let program = Program::new(&mut coordinator, 7, 2);
        program.launch(1, 1);
        coordinator.step(Nanos(MS));
        coordinator.take_events(&mut Vec::new());
        assert!(coordinator.set_queue_hints(program.id, 1, Hints::default(), Nanos(2 * MS)));
        let mut events = Vec::new();
        coordinator.take_events(&mut events);
        let queue = program.handle(1);
        let expected = [
            (2, EventKind::TaskAdded(String::new())),
            (1, EventKind::QueueIdle(queue)),
            (2, EventKind::Busy),
            (2, EventKind::QueueBusy(queue)),
            (1, EventKind::Idle),
        ];
        assert_eq!(events.into_iter().map(|event| (event.task, event.kind)).collect::<Vec<_>>(), expected);
        coordinator.set_queue_hints(program.id, 1, Hints::default(), Nanos(3 * MS));
        assert_eq!(queue_events(&mut coordinator), [], "it has its own task already");
    }

    #[test]
    fn launch_counts_wait_while_the_event_buffer_is_half_full() {
        let mut coordinator = coordinator();
        let program = Program::new(&mut coordinator, 7, 1);
        coordinator.set_tracing(true);
        coordinator.step(Nanos(MS));
        for _ in 0..MAX_EVENTS / 2 {
            coordinator.note_round(Nanos(MS), Nanos(1));
        }
        program.launch(0, 1);
        coordinator.step(Nanos(2 * MS));
        let queue = program.handle(0);
        assert_eq!(queue_events(&mut coordinator), [EventKind::QueueBusy(queue)]);
        program.launch(0, 1);
        coordinator.step(Nanos(12 * MS));
        assert_eq!(queue_events(&mut coordinator), [EventKind::Launched { queue, count: 2 }]);
    }
}
