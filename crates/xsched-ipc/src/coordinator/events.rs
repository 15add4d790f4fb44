//! What the coordinator notes for whoever traces. While nobody does, nothing is noted, counted or looked at for it.
//!
//! ```text
//!   queue    ──mark_busy──mark_busy──mark_busy──────mark_busy── ... ──quiet──
//!   rings        │                                                   │
//!   looks        ▼          ▼ timer       ▼ timer      ▼ timer       ▼
//!   events   QueueReady   Launched 2    Launched 1   Launched 40   Launched 3
//!            Launched 1                                            QueueIdle
//! ```
//!
//! A launch of a queue that has work rings no notifier. So launches are counted, not reported one by one: at the edges of
//! their queue, and in between once every [`LAUNCHES_EVERY`], however often its program rings.

use xsched_core::{Nanos, QueueId, Task, TaskId};
use xsched_policy::TaskView;

use super::program::Queue;
use super::{Coordinator, queue_id};
use crate::protocol::{Event, EventKind};

/// Events kept for whoever traces until they are taken; those beyond are lost, and counted.
const EVENTS_KEPT: usize = 4_096;

/// How long launches of a busy queue go unseen at most while somebody traces.
const LAUNCHES_EVERY: Nanos = Nanos::from_millis(10);

impl Coordinator {
    /// Whether events are kept for [`Coordinator::take_events`].
    pub fn set_tracing(&mut self, tracing: bool) {
        if tracing == self.events.is_some() {
            return;
        }
        self.events = tracing.then(|| Vec::with_capacity(EVENTS_KEPT));
        // Launches from before are no news.
        for program in self.programs.iter_mut().filter(|_| tracing) {
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

    /// Moves the events since the last call to the end of `out`; a task that came has no name in them. Answers how
    /// many were lost.
    pub fn take_events(&mut self, out: &mut Vec<Event>) -> u64 {
        if let Some(events) = &mut self.events {
            out.append(events);
        }
        std::mem::take(&mut self.events_lost)
    }

    /// Notes that a round took so long.
    pub fn note_round(&mut self, now: Nanos, took: Nanos) {
        self.note(now, &Nobody, EventKind::Decision(took.0));
    }

    /// Notes that the policy was changed.
    pub fn note_policy(&mut self, now: Nanos) {
        let name = self.policy().name.to_owned();
        self.note(now, &Nobody, EventKind::PolicyChanged(name));
    }

    /// When everybody has to be looked at for their launches.
    pub(super) fn launches_due(&self) -> Option<Nanos> {
        (self.events.is_some() && !self.programs.is_empty()).then(|| self.last_look + LAUNCHES_EVERY)
    }

    /// The task of a queue as it is, if anybody will want to know what it was.
    pub(super) fn task_for_events(&self, queue: QueueId) -> Option<Task> {
        let place = self.events.as_ref().and_then(|_| self.table.position_of(queue))?;
        Some(self.table.tasks()[place].clone())
    }

    pub(super) fn note_task(&mut self, task: TaskId, now: Nanos, what: impl FnOnce() -> EventKind) {
        if self.events.is_some()
            && let Some(task) = self.table.tasks().iter().find(|other| other.id == task).cloned()
        {
            self.note(now, &task, what());
        }
    }

    /// Notes what a look at a queue has shown: whether it turned ready or idle, and its launches.
    pub(super) fn note_queue(&mut self, place: usize, next: usize, edge: bool, now: Nanos) {
        let Some(events) = &mut self.events else { return };
        let program = &mut self.programs[place];
        let queue = &mut program.queues[next];
        let count = queue.launches().saturating_sub(queue.noted);
        // Launches that are not told now are told later. So they make room where edges would be lost for them.
        let is_due = (edge || now >= queue.noted_at + LAUNCHES_EVERY) && events.len() < EVENTS_KEPT / 2;
        let tells = count > 0 && is_due;
        if !edge && !tells {
            return;
        }
        let id = queue_id(program.id, queue.slot);
        let Some(task) = self.table.position_of(id).map(|place| &self.table.tasks()[place]) else { return };
        if tells {
            (queue.noted, queue.noted_at) = (queue.launches(), now);
            note(events, &mut self.events_lost, now, task, EventKind::Launched { queue: id.0, count });
        }
        if edge {
            let what = if queue.ready { EventKind::QueueBusy(id.0) } else { EventKind::QueueIdle(id.0) };
            note(events, &mut self.events_lost, now, task, what);
        }
    }

    /// Notes that a queue has left its task for good.
    pub(super) fn note_leave(&mut self, id: QueueId, gone: &Queue, before: &Task, now: Nanos) {
        let count = gone.launches().saturating_sub(gone.noted);
        if count > 0 {
            self.note(now, before, EventKind::Launched { queue: id.0, count });
        }
        if gone.ready {
            self.note(now, before, EventKind::QueueIdle(id.0));
        }
        self.note_left(before, now);
    }

    /// Notes that a queue is in another task than before, if it is.
    pub(super) fn note_move(&mut self, id: QueueId, before: &Task, now: Nanos) {
        let Some(after) = self.task_for_events(id).filter(|after| after.id != before.id) else { return };
        self.note(now, &after, EventKind::TaskAdded(String::new()));
        if after.ready {
            self.note(now, before, EventKind::QueueIdle(id.0));
            self.note(now, &after, EventKind::Busy);
            self.note(now, &after, EventKind::QueueBusy(id.0));
        }
        self.note_left(before, now);
    }

    /// Notes what has become of a task that one of its queues has left.
    fn note_left(&mut self, before: &Task, now: Nanos) {
        match self.table.tasks().iter().find(|task| task.id == before.id) {
            None => self.note(now, before, EventKind::TaskRemoved),
            Some(task) if before.ready && !task.ready => self.note(now, before, EventKind::Idle),
            Some(_) => {}
        }
    }

    fn note(&mut self, now: Nanos, whom: &impl Whom, what: EventKind) {
        if let Some(events) = &mut self.events {
            note(events, &mut self.events_lost, now, whom, what);
        }
    }
}

/// Whom an event concerns: task, process, device.
pub(super) trait Whom {
    fn whom(&self) -> (u64, u32, u64);
}

impl Whom for TaskView {
    fn whom(&self) -> (u64, u32, u64) {
        (self.id.0, self.process.0, self.device.0)
    }
}

impl Whom for Task {
    fn whom(&self) -> (u64, u32, u64) {
        (self.id.0, self.process.id.0, self.device.0)
    }
}

/// The scheduler itself.
struct Nobody;

impl Whom for Nobody {
    fn whom(&self) -> (u64, u32, u64) {
        (0, 0, 0)
    }
}

pub(super) fn note(events: &mut Vec<Event>, lost: &mut u64, now: Nanos, whom: &impl Whom, what: EventKind) {
    if events.len() < EVENTS_KEPT {
        let (task, pid, device) = whom.whom();
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

    /// What has happened to queues since the last call, and that nothing was lost.
    fn of_queues(coordinator: &mut Coordinator) -> Vec<EventKind> {
        let mut events = Vec::new();
        assert_eq!(coordinator.take_events(&mut events), 0);
        let is_of_queue = |what: &EventKind| {
            matches!(what, EventKind::QueueBusy(_) | EventKind::QueueIdle(_) | EventKind::Launched { .. })
        };
        events.into_iter().map(|event| event.kind).filter(is_of_queue).collect()
    }

    #[test]
    fn launches_are_told_at_the_edges_of_their_queue_and_now_and_again_in_between() {
        let mut coordinator = coordinator();
        let program = Program::new(&mut coordinator, 7, 2);
        program.launch(0, 5);
        program.finish(0);
        coordinator.step(Nanos(MS));
        coordinator.set_tracing(true);
        let (first, second) = (program.handle(0), program.handle(1));
        coordinator.step(Nanos(20 * MS));
        assert_eq!(of_queues(&mut coordinator), [], "what was before is no news");

        program.launch(0, 1);
        coordinator.look_at(program.id, Nanos(21 * MS));
        let wanted = [EventKind::Launched { queue: first, count: 1 }, EventKind::QueueBusy(first)];
        assert_eq!(of_queues(&mut coordinator), wanted);

        program.launch(0, 3);
        coordinator.look_at(program.id, Nanos(22 * MS));
        assert_eq!(of_queues(&mut coordinator), [], "too early to say more");
        program.launch(0, 1);
        coordinator.look_at(program.id, Nanos(31 * MS));
        assert_eq!(of_queues(&mut coordinator), [EventKind::Launched { queue: first, count: 4 }]);

        program.launch(0, 2);
        program.finish(0);
        program.launch(1, 1);
        program.finish(1);
        coordinator.look_at(program.id, Nanos(32 * MS));
        let blip = EventKind::Launched { queue: second, count: 1 };
        let wanted = [EventKind::Launched { queue: first, count: 2 }, EventKind::QueueIdle(first), blip];
        assert_eq!(of_queues(&mut coordinator), wanted);
    }

    #[test]
    fn everybody_is_looked_at_now_and_again_only_while_somebody_traces() {
        let mut coordinator = coordinator();
        coordinator.set_tracing(true);
        assert_eq!(coordinator.step(Nanos(MS)), None, "nobody is there to be looked at");
        coordinator.set_tracing(false);
        let program = Program::new(&mut coordinator, 7, 1);
        program.launch(0, 1);
        assert_eq!(coordinator.step(Nanos(MS)), None);
        coordinator.set_tracing(true);
        assert_eq!(coordinator.step(Nanos(2 * MS)), Some(Nanos(12 * MS)));
        assert_eq!(coordinator.round(Nanos(9 * MS)), Some(Nanos(12 * MS)), "rings do not put it off");
        coordinator.set_tracing(false);
        assert_eq!(coordinator.round(Nanos(10 * MS)), None);
    }

    #[test]
    fn who_leaves_with_work_is_idle_and_has_its_last_launches_told() {
        let mut coordinator = coordinator();
        coordinator.set_tracing(true);
        let program = Program::new(&mut coordinator, 7, 2);
        program.launch(0, 1);
        program.launch(1, 1);
        coordinator.step(Nanos(MS));
        of_queues(&mut coordinator);
        let (first, second) = (program.handle(0), program.handle(1));
        program.launch(0, 1);
        program.page.release_slot(0);
        coordinator.step(Nanos(2 * MS));
        let wanted = [EventKind::Launched { queue: first, count: 1 }, EventKind::QueueIdle(first)];
        assert_eq!(of_queues(&mut coordinator), wanted);
        program.launch(1, 2);
        coordinator.remove_client(program.id);
        let mut events = Vec::new();
        coordinator.take_events(&mut events);
        let wanted = [
            EventKind::Launched { queue: second, count: 2 },
            EventKind::QueueIdle(second),
            EventKind::TaskRemoved,
        ];
        assert_eq!(events.into_iter().map(|event| event.kind).collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn a_queue_that_becomes_a_task_of_its_own_takes_its_work_along() {
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
        let wanted = [
            (2, EventKind::TaskAdded(String::new())),
            (1, EventKind::QueueIdle(queue)),
            (2, EventKind::Busy),
            (2, EventKind::QueueBusy(queue)),
            (1, EventKind::Idle),
        ];
        assert_eq!(events.into_iter().map(|event| (event.task, event.kind)).collect::<Vec<_>>(), wanted);
        coordinator.set_queue_hints(program.id, 1, Hints::default(), Nanos(3 * MS));
        assert_eq!(of_queues(&mut coordinator), [], "it is there already");
    }

    #[test]
    fn launches_wait_where_edges_would_be_lost_for_them() {
        let mut coordinator = coordinator();
        let program = Program::new(&mut coordinator, 7, 1);
        coordinator.set_tracing(true);
        coordinator.step(Nanos(MS));
        for _ in 0..EVENTS_KEPT / 2 {
            coordinator.note_round(Nanos(MS), Nanos(1));
        }
        program.launch(0, 1);
        coordinator.step(Nanos(2 * MS));
        let queue = program.handle(0);
        assert_eq!(of_queues(&mut coordinator), [EventKind::QueueBusy(queue)]);
        program.launch(0, 1);
        coordinator.step(Nanos(12 * MS));
        assert_eq!(of_queues(&mut coordinator), [EventKind::Launched { queue, count: 2 }]);
    }
}
