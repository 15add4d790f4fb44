//! Tasks: what is scheduled. A task groups queues and is ready while one of them has work.
//!
//! All queues of a process on a device are one task, because streams of a process wait for each other: stopping one stream
//! would stop the streams that wait for it. A queue becomes a task of its own only when it is given hints of its own. The
//! scheduler then tracks the dependencies between queues, and lets the queues run for which a running task waits.

use std::collections::HashMap;

use crate::hint::Hints;
use crate::ids::{DeviceId, ProcessId, QueueId, TaskId};
use crate::time::Nanos;

/// What the policies know about a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// The process.
    pub id: ProcessId,
    /// The CPU nice value, -20 to 19.
    pub nice: i8,
    /// Whether the process owns the window that has the focus.
    pub focused: bool,
}

/// One scheduled task.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// The id, which is never reused.
    pub id: TaskId,
    /// The process to which it belongs.
    pub process: Process,
    /// The device on which it runs.
    pub device: DeviceId,
    /// The hints.
    pub hints: Hints,
    /// Whether the task is a single queue with hints of its own.
    pub own: bool,
    /// Whether a queue of the task has work.
    pub ready: bool,
    /// When the task became ready.
    pub ready_since: Nanos,
    /// The device time that the task has used.
    pub used: Nanos,
    queues: u32,
    ready_queues: u32,
}

#[derive(Clone, Debug)]
struct Member {
    task: TaskId,
    process: Process,
    device: DeviceId,
    ready: bool,
}

/// All tasks of a scheduler, ordered by device and id.
#[derive(Debug, Default)]
pub struct TaskTable {
    tasks: Vec<Task>,
    members: HashMap<QueueId, Member>,
    last_id: u64,
}

impl TaskTable {
    /// The tasks, by device and then by id.
    #[must_use]
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// The task of a queue.
    #[must_use]
    pub fn task_of(&self, queue: QueueId) -> Option<TaskId> {
        self.members.get(&queue).map(|member| member.task)
    }

    /// The index of a queue's task in [`TaskTable::tasks`].
    #[must_use]
    pub fn position_of(&self, queue: QueueId) -> Option<usize> {
        let member = self.members.get(&queue)?;
        self.position(member.device, member.task)
    }

    fn position(&self, device: DeviceId, task: TaskId) -> Option<usize> {
        self.tasks.binary_search_by_key(&(device, task), |t| (t.device, t.id)).ok()
    }

    /// Adds a queue to its process's task on the device. The first queue creates the task with `hints`.
    pub fn add_queue(&mut self, queue: QueueId, process: Process, device: DeviceId, hints: Hints) -> TaskId {
        let first = self.tasks.partition_point(|t| t.device < device);
        let shared = self.tasks[first..]
            .iter()
            .take_while(|t| t.device == device)
            .find(|t| !t.own && t.process.id == process.id)
            .map(|t| t.id);
        let task = shared.unwrap_or_else(|| self.make_task(process, device, hints, false));
        let member = Member { task, process, device, ready: false };
        if self.members.insert(queue, member).is_none() {
            self.with_task(device, task, |t| t.queues += 1);
        }
        task
    }

    /// Gives a queue hints of its own and makes it a task of its own.
    pub fn give_own_hints(&mut self, queue: QueueId, hints: Hints, now: Nanos) -> Option<TaskId> {
        let member = self.members.get(&queue)?.clone();
        if self.position(member.device, member.task).is_some_and(|index| self.tasks[index].own) {
            self.with_task(member.device, member.task, |t| t.hints = hints);
            return Some(member.task);
        }
        let task = self.make_task(member.process, member.device, hints, true);
        self.remove_from_task(&member);
        self.with_task(member.device, task, |t| t.queues = 1);
        self.members.insert(queue, Member { task, ready: false, ..member.clone() });
        self.set_ready(queue, member.ready, now);
        Some(task)
    }

    /// Sets the hints of a process's tasks, except for queues with hints of their own.
    pub fn set_hints(&mut self, process: ProcessId, hints: Hints) {
        for task in self.tasks.iter_mut().filter(|t| t.process.id == process && !t.own) {
            task.hints = hints;
        }
    }

    /// Updates what is known about a process.
    pub fn set_process(&mut self, process: Process) {
        for task in self.tasks.iter_mut().filter(|t| t.process.id == process.id) {
            task.process = process;
        }
        for member in self.members.values_mut().filter(|member| member.process.id == process.id) {
            member.process = process;
        }
    }

    /// Removes a queue, and its task with the last queue.
    pub fn remove_queue(&mut self, queue: QueueId) {
        if let Some(member) = self.members.remove(&queue) {
            self.remove_from_task(&member);
        }
    }

    /// Sets whether a queue has work. Returns whether its task became ready or idle.
    pub fn set_ready(&mut self, queue: QueueId, ready: bool, now: Nanos) -> bool {
        let Some(member) = self.members.get_mut(&queue).filter(|member| member.ready != ready) else {
            return false;
        };
        member.ready = ready;
        let (device, task) = (member.device, member.task);
        let mut changed = false;
        self.with_task(device, task, |t| {
            if ready {
                t.ready_queues += 1;
            } else {
                t.ready_queues -= 1;
            }
            changed = t.ready != (t.ready_queues > 0);
            t.ready = t.ready_queues > 0;
            if changed && t.ready {
                t.ready_since = now;
            }
        });
        changed
    }

    /// Adds to the device time that a task has used.
    pub fn charge(&mut self, device: DeviceId, task: TaskId, span: Nanos) {
        self.with_task(device, task, |t| t.used += span);
    }

    fn make_task(&mut self, process: Process, device: DeviceId, hints: Hints, own: bool) -> TaskId {
        self.last_id += 1;
        let id = TaskId(self.last_id);
        let task = Task {
            id,
            process,
            device,
            hints,
            own,
            ready: false,
            ready_since: Nanos::ZERO,
            used: Nanos::ZERO,
            queues: 0,
            ready_queues: 0,
        };
        let index = self.tasks.partition_point(|t| (t.device, t.id) < (device, id));
        self.tasks.insert(index, task);
        id
    }

    fn remove_from_task(&mut self, member: &Member) {
        let mut empty = false;
        self.with_task(member.device, member.task, |t| {
            t.queues -= 1;
            t.ready_queues -= u32::from(member.ready);
            t.ready = t.ready_queues > 0;
            empty = t.queues == 0;
        });
        if empty {
            self.tasks.retain(|t| t.id != member.task);
        }
    }

    fn with_task(&mut self, device: DeviceId, task: TaskId, change: impl FnOnce(&mut Task)) {
        if let Some(index) = self.position(device, task) {
            change(&mut self.tasks[index]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hint::Priority;

    const DEVICE: DeviceId = DeviceId(1);

    fn hints(priority: i64) -> Hints {
        Hints { priority: Priority::new(priority).unwrap(), ..Hints::default() }
    }

    fn process(number: u32) -> Process {
        Process { id: ProcessId(number), ..Process::default() }
    }

    fn table_with(queues: &[(u64, u32)]) -> TaskTable {
        let mut table = TaskTable::default();
        for (queue, number) in queues {
            table.add_queue(QueueId(*queue), process(*number), DEVICE, hints(0));
        }
        table
    }

    #[test]
    fn queues_of_a_process_on_a_device_are_one_task() {
        let mut table = table_with(&[(1, 7), (2, 7), (3, 8)]);
        let elsewhere = table.add_queue(QueueId(4), process(7), DeviceId(2), hints(0));
        assert_eq!(table.tasks().len(), 3);
        assert_eq!(table.task_of(QueueId(1)), table.task_of(QueueId(2)));
        assert_ne!(table.task_of(QueueId(1)), Some(elsewhere));
    }

    #[test]
    fn task_is_ready_while_one_of_its_queues_is() {
        let mut table = table_with(&[(1, 7), (2, 7)]);
        assert!(table.set_ready(QueueId(1), true, Nanos(5)));
        assert!(!table.set_ready(QueueId(2), true, Nanos(6)), "it was ready before");
        assert!(!table.set_ready(QueueId(1), false, Nanos(7)), "the second queue is still ready");
        assert_eq!(table.tasks()[0].ready_since, Nanos(5));
        assert!(table.set_ready(QueueId(2), false, Nanos(8)));
        assert!(!table.tasks()[0].ready);
    }

    #[test]
    fn queue_with_its_own_hints_keeps_its_ready_state() {
        let mut table = table_with(&[(1, 7), (2, 7)]);
        table.set_ready(QueueId(2), true, Nanos(5));
        let own = table.give_own_hints(QueueId(2), hints(9), Nanos(6)).unwrap();
        let ready: Vec<_> = table.tasks().iter().map(|t| (t.id == own, t.ready)).collect();
        assert_eq!(ready, [(false, false), (true, true)]);
        assert_eq!(table.give_own_hints(QueueId(2), hints(3), Nanos(7)), Some(own), "the task is reused");
    }

    #[test]
    fn task_ends_with_its_last_queue() {
        let mut table = table_with(&[(1, 7), (2, 7)]);
        table.set_ready(QueueId(1), true, Nanos(5));
        table.remove_queue(QueueId(1));
        assert!(!table.tasks()[0].ready);
        table.remove_queue(QueueId(2));
        assert!(table.tasks().is_empty());
        assert_eq!(table.members.len(), 0);
    }

    #[test]
    fn tasks_stay_ordered_by_device_and_id() {
        let mut table = TaskTable::default();
        for n in [3, 1, 2, 1, 3] {
            let queue = QueueId(table.members.len() as u64);
            table.add_queue(queue, process(u32::try_from(queue.0).unwrap()), DeviceId(n), hints(0));
        }
        let order: Vec<_> = table.tasks().iter().map(|t| (t.device, t.id)).collect();
        assert!(order.is_sorted(), "{order:?}");
    }
}
