//! What the coordinator reports about tasks and queues.

use xsched_core::{Nanos, ProcessId, QueueId, Task, TaskId};

use super::{ClientId, Coordinator, queue_id};
use crate::protocol::TaskState;

/// One task and what was counted about it.
#[derive(Debug)]
pub struct TaskReport<'a> {
    /// The task itself.
    pub task: &'a Task,
    /// Whether it runs, is held, is idle or is suspended.
    pub state: TaskState,
    /// Queues under control.
    pub queues: u32,
    /// Launches that were counted.
    pub launches: u64,
    /// Time it had work and was held.
    pub held: Nanos,
    /// Times it was stopped while it had work.
    pub preemptions: u64,
    /// 99th percentile of the time it was held with work, if it ever was.
    pub wait_p99: Option<Nanos>,
}

/// One queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueReport {
    /// Its id in this scheduler.
    pub queue: QueueId,
    /// Its program.
    pub client: ClientId,
    /// Its slot in the program's page.
    pub slot: usize,
    /// Its process.
    pub process: ProcessId,
    /// Its task.
    pub task: Option<TaskId>,
    /// Its device.
    pub device: u64,
    /// Level, threshold and batch size, as its program reports them.
    pub settings: (u8, u32, u32),
    /// Has work.
    pub ready: bool,
    /// Held.
    pub held: bool,
}

impl Coordinator {
    /// Every task.
    pub fn report_tasks(&mut self) -> impl Iterator<Item = TaskReport<'_>> {
        self.align();
        let mut queues = vec![(0, 0); self.accounts.len()];
        for program in &mut self.programs {
            for queue in &mut program.queues {
                if let Some(slot) = program.page.slot(queue.slot) {
                    queue.count(slot);
                }
                if let Some((count, launches)) = queue.place.and_then(|place| queues.get_mut(place)) {
                    *count += 1;
                    *launches = u64::saturating_add(*launches, queue.launches());
                }
            }
        }
        let tasks = self.table.tasks().iter().zip(&self.accounts);
        tasks.zip(queues).map(|((task, account), (queues, launches))| TaskReport {
            task,
            state: account.state,
            queues,
            launches: account.launches.saturating_add(launches),
            held: account.held,
            preemptions: account.preemptions,
            wait_p99: account.waits.p99(),
        })
    }

    /// Every queue.
    pub fn report_queues(&self) -> impl Iterator<Item = QueueReport> {
        self.programs.iter().flat_map(move |program| {
            program.queues.iter().map(move |queue| {
                let id = queue_id(program.id, queue.slot);
                QueueReport {
                    queue: id,
                    client: program.id,
                    slot: queue.slot,
                    process: program.process.id,
                    task: self.table.task_of(id),
                    device: queue.device.0,
                    settings: program.page.slot(queue.slot).map_or((0, 0, 0), crate::page::Slot::settings),
                    ready: queue.ready,
                    held: queue.order.stops(),
                }
            })
        })
    }
}
