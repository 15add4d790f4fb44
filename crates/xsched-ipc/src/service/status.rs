//! The status report.

use std::collections::HashMap;

use xsched_core::Nanos;

use super::Service;
use super::peer::Peer;
use crate::protocol::{QueueStatus, Reply, Status, TaskStatus};

/// The number of tasks that fit a packet together with [`MAX_QUEUES_PER_PACKET`], however long their names are.
const MAX_TASKS_PER_PACKET: usize = 16;
/// The number of queues that fit a packet together with [`MAX_TASKS_PER_PACKET`].
const MAX_QUEUES_PER_PACKET: usize = 120;

impl Service {
    /// Sends the status in as many packets as it needs.
    pub(super) fn send_status(&mut self, index: usize, peer: Peer, now: Nanos) {
        let complete = self.status(peer, now);
        let packets = complete
            .tasks
            .len()
            .div_ceil(MAX_TASKS_PER_PACKET)
            .max(complete.queues.len().div_ceil(MAX_QUEUES_PER_PACKET))
            .max(1);
        let (mut tasks, mut queues) = (complete.tasks.iter(), complete.queues.iter());
        for packet in 1..=packets {
            let part = Status {
                version: complete.version.clone(),
                policy: complete.policy.clone(),
                tasks: tasks.by_ref().take(MAX_TASKS_PER_PACKET).cloned().collect(),
                queues: queues.by_ref().take(MAX_QUEUES_PER_PACKET).cloned().collect(),
                more: packet < packets,
                ..complete
            };
            self.reply(index, &Reply::Status(part));
        }
    }

    /// The status as `peer` may see it: without the names and command lines of other users' processes.
    pub(super) fn status(&mut self, peer: Peer, now: Nanos) -> Status {
        let sees_all = self.is_administrator(peer);
        let mut processes = HashMap::new();
        for session in self.sessions.iter() {
            if let Some(process) = session.process() {
                processes.insert(process.pid, (session.peer.uid, process));
            }
        }
        let report = |report: crate::coordinator::TaskReport<'_>| {
            let task = report.task;
            let (uid, process) = processes.get(&task.process.id.0).copied().unzip();
            let visible = process.filter(|_| sees_all || uid == Some(peer.uid));
            let us = |span: Nanos| span.0 / 1_000;
            TaskStatus {
                task: task.id.0,
                pid: task.process.id.0,
                uid: uid.unwrap_or(0),
                name: visible.map_or_else(String::new, |process| process.name().to_owned()),
                cmdline: visible.map_or_else(String::new, |process| process.command_line.clone()),
                device: task.device.0,
                own: task.own,
                priority: task.hints.priority.get(),
                share: task.hints.share.percent(),
                deadline_us: task.hints.deadline.map(|deadline| us(deadline.get())),
                laxity_us: task.hints.laxity.map(|laxity| us(laxity.span)),
                state: report.state,
                queues: report.queues,
                launches: report.launches,
                used_ns: task.used.0,
                held_ns: report.held.0,
                preemptions: report.preemptions,
                wait_p99_us: report.wait_p99.map(us),
            }
        };
        let tasks = self.coordinator.report_tasks().map(report).collect();
        let queues = self.coordinator.report_queues().map(|report| QueueStatus {
            handle: report.queue.0,
            task: report.task.map_or(0, |task| task.0),
            pid: report.process.0,
            device: report.device,
            level: report.settings.0,
            threshold: report.settings.1,
            batch_size: report.settings.2,
            ready: report.ready,
            suspended: report.held,
        });
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            policy: self.coordinator.policy().name.to_owned(),
            now_ns: now.0,
            rounds: self.coordinator.figures().0,
            tasks,
            queues: queues.collect(),
            more: false,
        }
    }
}
