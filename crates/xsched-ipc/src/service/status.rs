//! The status report: taken as one snapshot, sent in packets.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use xsched_core::{Nanos, ProcessId};

use super::Service;
use super::listings::MetricsView;
use super::metrics_renderer::VisibleNames;
use super::parking::parking_status;
use super::peer::Peer;
use super::session::{JoinedProcess, Session};
use crate::protocol::{QueueStatus, Reply, Status, TaskStatus, UnscheduledProcess};
use crate::socket::MAX_PACKET_SIZE;

/// The number of tasks that fit a packet together with [`MAX_QUEUES_PER_PACKET`], however long their names are, if they have no
/// labels.
const MAX_TASKS_PER_PACKET: usize = 16;
/// The number of queues that fit a packet together with [`MAX_TASKS_PER_PACKET`].
const MAX_QUEUES_PER_PACKET: usize = 120;

/// The status without the names of tasks: those are added for each client that may see them.
#[derive(Default)]
pub(super) struct Snapshot {
    /// Tasks in ascending order of device and task, queues in ascending order of handle.
    status: Arc<Status>,
    /// The index of the session of each process.
    sessions: HashMap<u32, usize>,
}

/// The last task and the last queue that were sent. It is valid in later snapshots too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// Its device and its number.
    task: Option<(u64, u64)>,
    /// Its handle.
    queue: Option<u64>,
}

impl Snapshot {
    /// The tasks and queues of the packet after `position`, and the position of the next packet if there is one.
    fn part(
        &self,
        position: Position,
        max_tasks: usize,
    ) -> (&[TaskStatus], &[QueueStatus], Option<Position>) {
        let Status { tasks, queues, .. } = &*self.status;
        let tasks = &tasks[tasks.partition_point(|task| Some((task.device, task.task)) <= position.task)..];
        let queues = &queues[queues.partition_point(|queue| Some(queue.handle) <= position.queue)..];
        let has_more = tasks.len() > max_tasks || queues.len() > MAX_QUEUES_PER_PACKET;
        let tasks = &tasks[..tasks.len().min(max_tasks)];
        let queues = &queues[..queues.len().min(MAX_QUEUES_PER_PACKET)];
        let next = Position {
            task: tasks.last().map(|task| (task.device, task.task)).or(position.task),
            queue: queues.last().map(|queue| queue.handle).or(position.queue),
        };
        (tasks, queues, has_more.then_some(next))
    }

    /// The status, to read it on another thread.
    pub(super) fn shared_status(&self) -> Arc<Status> {
        Arc::clone(&self.status)
    }

    fn head(&self) -> Status {
        let Status { version, pid, policy, now_ns, rounds, .. } = &*self.status;
        Status {
            version: version.clone(),
            policy: policy.clone(),
            pid: *pid,
            now_ns: *now_ns,
            rounds: *rounds,
            ..Status::default()
        }
    }
}

impl Service {
    /// Replaces the snapshot by one of the present state.
    pub(super) fn take_snapshot(&mut self, now: Nanos) {
        self.coordinator.read_unreported(now);
        self.coordinator.read_samples(now);
        let Snapshot { status, mut sessions } = std::mem::take(&mut self.listings.snapshot);
        // No other thread reads it: the next snapshot waits for the metrics of this one.
        let mut status = Arc::try_unwrap(status).unwrap_or_default();
        sessions.clear();
        let processes = self
            .sessions
            .enumerate()
            .filter_map(|(index, session)| session.process().map(|process| (process.pid, index)));
        sessions.extend(processes);
        let uid_of = |pid: u32| {
            let session = self.sessions.get(*sessions.get(&pid)?)?;
            Some(session.peer.uid)
        };
        let us = |span: Nanos| span.0 / 1_000;
        status.tasks.clear();
        status.tasks.extend(self.coordinator.report_tasks().map(|report| {
            let task = report.task;
            TaskStatus {
                task: task.id.0,
                pid: task.process.id.0,
                uid: uid_of(task.process.id.0).unwrap_or(0),
                name: String::new(),
                cmdline: String::new(),
                device: task.device.0,
                own: task.own,
                priority: task.hints.priority.get(),
                share: task.hints.share.percent(),
                deadline_us: task.hints.deadline.map(|deadline| us(deadline.get())),
                laxity_us: task.hints.laxity.map(|laxity| us(laxity.span)),
                state: report.state,
                kind: report.kind,
                not_deferred: report.not_deferred.iter().map(|reason| reason.name().to_owned()).collect(),
                queues: report.queues,
                launches: report.launches,
                used_ns: task.used.0,
                sampled_ns: report.sampled.map(|busy| busy.0),
                held_ns: report.held.0,
                wasted_ns: report.wasted.0,
                preemptions: report.preemptions,
                wait_p99_us: report.wait_p99.map(us),
                job: None,
                grant: None,
                labels: BTreeMap::new(),
                memory_bytes: report.memory.map(|memory| memory.used),
                memory_peak_bytes: report.memory.map(|memory| memory.peak),
                memory_limit_bytes: report.memory.and_then(|memory| memory.limit),
                parking: report.parking.map(|parking| parking_status(task.process.id.0, &parking)),
            }
        }));
        status.queues.clear();
        status.queues.extend(self.coordinator.report_queues().map(|report| QueueStatus {
            handle: report.queue.0,
            task: report.task.map_or(0, |task| task.0),
            pid: report.process.0,
            device: report.device,
            level: report.settings.0,
            threshold: report.settings.1,
            batch_size: report.settings.2,
            ready: report.ready,
            suspended: report.held,
        }));
        status.unscheduled.clear();
        let unscheduled = self.coordinator.unscheduled().iter();
        status
            .unscheduled
            .extend(unscheduled.map(|(device, pid)| UnscheduledProcess { device: device.0, pid: *pid }));
        env!("CARGO_PKG_VERSION").clone_into(&mut status.version);
        self.coordinator.policy().name.clone_into(&mut status.policy);
        status.pid = std::process::id();
        status.now_ns = now.0;
        status.rounds = self.coordinator.figures().0;
        self.listings.snapshot = Snapshot { status: Arc::new(status), sessions };
    }

    /// The packet after `position` as the peer may see it, and the position of the next packet if there is one.
    pub(super) fn status_packet(
        &self,
        peer: Peer,
        sees_all: bool,
        position: Position,
    ) -> (Vec<u8>, Option<Position>) {
        let mut max_tasks = MAX_TASKS_PER_PACKET;
        loop {
            let (packet, next) = self.status_packet_of(peer, sees_all, position, max_tasks);
            // Tasks with long labels may not fit. A single task always does.
            if packet.len() <= MAX_PACKET_SIZE || max_tasks == 1 {
                return (packet, next);
            }
            max_tasks /= 2;
        }
    }

    /// The packet with at most so many tasks.
    fn status_packet_of(
        &self,
        peer: Peer,
        sees_all: bool,
        position: Position,
        max_tasks: usize,
    ) -> (Vec<u8>, Option<Position>) {
        let (tasks, queues, next) = self.listings.snapshot.part(position, max_tasks);
        let unscheduled = &self.listings.snapshot.status.unscheduled;
        let status = Status {
            tasks: tasks.iter().map(|task| self.visible(task, peer, sees_all)).collect(),
            queues: queues.to_vec(),
            unscheduled: if position == Position::default() { unscheduled.clone() } else { Vec::new() },
            more: next.is_some(),
            ..self.listings.snapshot.head()
        };
        // Cannot fail: a status has no map whose keys are not text.
        (serde_json::to_vec(&Reply::Status(status)).unwrap_or_default(), next)
    }

    /// What a view of the metrics includes of the processes in the snapshot.
    pub(super) fn visible_names(&self, view: MetricsView) -> HashMap<u32, VisibleNames> {
        let sessions = self.listings.snapshot.sessions.values().filter_map(|index| self.sessions.get(*index));
        let visible = sessions.filter(|session| view.includes(session.peer));
        let processes = visible.filter_map(Session::process);
        let names = |process: &JoinedProcess| {
            let entry = process.grant.and_then(|grant| self.grants.get(grant));
            VisibleNames {
                name: process.name().to_owned(),
                grant: entry.map(|entry| (entry.name.to_string(), entry.grant.labels.clone())),
            }
        };
        processes.map(|process| (process.pid, names(process))).collect()
    }

    /// A task with its names, if the peer may see those.
    fn visible(&self, task: &TaskStatus, peer: Peer, sees_all: bool) -> TaskStatus {
        let mut task = task.clone();
        let Some((session, process)) = self.process_of(&task) else { return task };
        if !sees_all && !peer.may_see(session.peer) {
            return task;
        }
        process.name().clone_into(&mut task.name);
        process.command_line.clone_into(&mut task.cmdline);
        task.job = self.coordinator.job_label(ProcessId(task.pid));
        if let Some(entry) = process.grant.and_then(|grant| self.grants.get(grant)) {
            task.grant = Some(entry.name.to_string());
            task.labels.clone_from(&entry.grant.labels);
        }
        task
    }

    /// The process of a task in the snapshot, unless its session has ended.
    fn process_of(&self, task: &TaskStatus) -> Option<(&Session, &JoinedProcess)> {
        let session = self.sessions.get(*self.listings.snapshot.sessions.get(&task.pid)?)?;
        let process = session.process()?;
        (process.pid == task.pid && session.peer.uid == task.uid).then_some((session, process))
    }
}
