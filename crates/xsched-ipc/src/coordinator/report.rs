//! What the coordinator reports about tasks and queues.

use xsched_core::{Bound, Nanos, NotDeferred, Order, ProcessId, QueueId, Task, TaskId};

use super::account::Account;
use super::program::Queue;
use super::{ClientId, Coordinator, ParkingReport, queue_id};
use crate::page::{DeviceMemory, Slot};
use crate::protocol::{TaskKind, TaskState};

/// One task and what was counted about it.
#[derive(Debug)]
pub struct TaskReport<'a> {
    /// The task itself.
    pub task: &'a Task,
    /// Whether it runs, is held, is idle or is suspended.
    pub state: TaskState,
    /// What limited its last work, if that is known.
    pub kind: Option<TaskKind>,
    /// Queues under control.
    pub queues: u32,
    /// Launches that were counted.
    pub launches: u64,
    /// Estimated time it was busy while it was free, if samples were taken.
    pub sampled: Option<Nanos>,
    /// Why its launches are not deferred although it is host-bound.
    pub not_deferred: Vec<NotDeferred>,
    /// Estimated time that its device was idle while it had work and was allowed to run. What its process has wasted on all devices is
    /// shown for the first of its tasks.
    pub wasted: Nanos,
    /// Time it had work and was held.
    pub held: Nanos,
    /// Times it was stopped while it had work.
    pub preemptions: u64,
    /// 99th percentile of the time it was held with work, if it ever was.
    pub wait_p99: Option<Nanos>,
    /// The memory of its process on its device, as its program reports.
    pub memory: Option<DeviceMemory>,
    /// Whether that memory can be moved, and where it is. None if it cannot.
    pub parking: Option<ParkingReport>,
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

/// What the queues of one task report.
#[derive(Clone, Default)]
struct QueueSum {
    queues: u32,
    launches: u64,
    has_work: bool,
    is_sync_bound: bool,
    bound: Option<Bound>,
    not_deferred: Vec<NotDeferred>,
    wasted: Nanos,
    memory: Option<DeviceMemory>,
    parking: Option<ParkingReport>,
}

/// Whether a queue has work at the time of a report.
fn has_work(queue: &Queue, slot: Option<&Slot>, account: &Account) -> bool {
    match slot {
        // A free task does not report its work, and its samples are newer than what it reported before.
        Some(slot) if account.is_sampled() => slot.samples().was_busy,
        // A leader need not report its work.
        Some(slot) if account.order == Order::Leader => queue.ready || !slot.gate.epoch().is_idle(),
        _ => queue.ready,
    }
}

impl Coordinator {
    /// Whether a queue's process has published that the device of the queue lacks this preemption level.
    pub(crate) fn lacks_level(&self, queue: &QueueReport, level: i64) -> bool {
        let program = self.programs.iter().find(|program| program.id == queue.client);
        let slot = program.and_then(|program| program.page.slot(queue.slot));
        slot.is_some_and(|slot| slot.lacks_level(level))
    }

    /// Every task.
    pub fn report_tasks(&mut self) -> impl Iterator<Item = TaskReport<'_>> {
        self.align();
        let mut queues = vec![QueueSum::default(); self.accounts.len()];
        for program in &mut self.programs {
            let mut wasted = program.page.wasted();
            let parking = program.report_parking();
            for queue in &mut program.queues {
                let slot = program.page.slot(queue.slot);
                if let Some(slot) = slot {
                    queue.count(slot);
                }
                let place = queue.place.and_then(|at| Some((queues.get_mut(at)?, self.accounts.get(at)?)));
                if let Some((sum, account)) = place {
                    sum.queues += 1;
                    sum.memory = sum.memory.or_else(|| program.page.memory(queue.device));
                    sum.parking = parking;
                    sum.launches = sum.launches.saturating_add(queue.launches());
                    sum.has_work |= has_work(queue, slot, account);
                    sum.is_sync_bound |= slot.is_some_and(|slot| slot.gate.is_sync_bound());
                    sum.wasted += std::mem::take(&mut wasted);
                    if let Some(bound) = slot.and_then(|slot| slot.gate.bound()) {
                        // One host-bound queue makes a host-bound task: its launches are deferred.
                        sum.bound = sum.bound.filter(|bound| *bound == Bound::Host).or(Some(bound));
                        if bound == Bound::Host && sum.not_deferred.is_empty() {
                            sum.not_deferred = program.page.not_deferred().collect();
                        }
                    }
                }
            }
        }
        let tasks = self.table.tasks().iter().zip(&self.accounts);
        tasks.zip(queues).map(|((task, account), sum)| TaskReport {
            task,
            state: match account.state {
                TaskState::Idle if sum.has_work && account.order.stops() => TaskState::Held,
                TaskState::Idle if sum.has_work => TaskState::Running,
                TaskState::Running if !sum.has_work && account.is_sampled() => TaskState::Idle,
                state => state,
            },
            kind: match (sum.bound, sum.is_sync_bound) {
                (Some(Bound::Host), _) => Some(TaskKind::HostBound),
                (_, true) => Some(TaskKind::SyncBound),
                (Some(Bound::Device), false) => Some(TaskKind::GpuBound),
                (None, false) => None,
            },
            not_deferred: sum.not_deferred,
            wasted: sum.wasted,
            queues: sum.queues,
            launches: account.launches.saturating_add(sum.launches),
            sampled: account.sampled,
            held: account.held,
            preemptions: account.preemptions,
            wait_p99: account.waits.p99(),
            memory: sum.memory,
            parking: sum.parking,
        })
    }

    /// Every queue.
    pub fn report_queues(&self) -> impl Iterator<Item = QueueReport> {
        self.programs.iter().flat_map(move |program| {
            program.queues.iter().map(move |queue| {
                let id = queue_id(program.id, queue.slot);
                let slot = program.page.slot(queue.slot);
                let account = queue.place.and_then(|place| self.accounts.get(place));
                QueueReport {
                    queue: id,
                    client: program.id,
                    slot: queue.slot,
                    process: program.process.id,
                    task: self.table.task_of(id),
                    device: queue.device.0,
                    settings: slot.map_or((0, 0, 0), Slot::settings),
                    ready: account.map_or(queue.ready, |account| has_work(queue, slot, account)),
                    held: queue.order.stops(),
                }
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use xsched_core::{DeviceId, Hints, Nanos, Process};

    use super::*;
    use crate::page::{Page, SLOTS};

    #[test]
    fn queues_have_different_ids_after_four_billion_programs() {
        let mut coordinator = Coordinator::new(&xsched_policy::POLICIES[0]);
        for last in [0, u64::from(u32::MAX) - 1, u64::from(u32::MAX), u64::from(u32::MAX) + 1] {
            coordinator.last_client = last;
            let page = Page::create().unwrap();
            while page.allocate_slot(DeviceId(1)).is_some() {}
            coordinator.add_client(Process::default(), page, Hints::default());
        }
        coordinator.step(Nanos(1));
        let ids: HashSet<_> = coordinator.report_queues().map(|report| report.queue).collect();
        assert_eq!(ids.len(), 4 * SLOTS);
    }
}
