//! Everything there is to see, for whoever may see it.

use std::collections::HashMap;

use xsched_core::Nanos;

use super::Service;
use super::peer::Peer;
use crate::protocol::{QueueStatus, Reply, Status, TaskStatus};

/// So many tasks fit a packet however long their names are, together with so many queues.
const TASKS: usize = 16;
const QUEUES: usize = 120;

impl Service {
    /// Sends the status, in as many packets as it takes.
    pub(super) fn send_status(&mut self, place: usize, peer: Peer, now: Nanos) {
        let whole = self.status(peer, now);
        let packets = whole.tasks.len().div_ceil(TASKS).max(whole.queues.len().div_ceil(QUEUES)).max(1);
        let (mut tasks, mut queues) = (whole.tasks.iter(), whole.queues.iter());
        for packet in 1..=packets {
            let part = Status {
                version: whole.version.clone(),
                policy: whole.policy.clone(),
                tasks: tasks.by_ref().take(TASKS).cloned().collect(),
                queues: queues.by_ref().take(QUEUES).cloned().collect(),
                more: packet < packets,
                ..whole
            };
            self.reply(place, &Reply::Status(part));
        }
    }

    /// The status as `peer` may see it: what other users' programs are called is their own affair.
    pub(super) fn status(&mut self, peer: Peer, now: Nanos) -> Status {
        let sees_all = self.is_master(peer);
        let mut programs = HashMap::new();
        for session in self.sessions.iter() {
            if let Some(program) = session.program() {
                programs.insert(program.process, (session.peer.uid, program));
            }
        }
        let report = |report: crate::coordinator::TaskReport<'_>| {
            let task = report.task;
            let (uid, program) = programs.get(&task.process.id.0).copied().unzip();
            let visible = program.filter(|_| sees_all || uid == Some(peer.uid));
            let us = |span: Nanos| span.0 / 1_000;
            TaskStatus {
                task: task.id.0,
                pid: task.process.id.0,
                uid: uid.unwrap_or(0),
                name: visible.map_or_else(String::new, |program| program.name().to_owned()),
                cmdline: visible.map_or_else(String::new, |program| program.command_line.clone()),
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
