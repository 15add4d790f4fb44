//! Queries: the earliest time at which a queue can reach a position, and the device time used so far.

use xsched_core::Nanos;

use super::{Command, Model, QUEUE_CAPACITY, QueueError, RING_ENTRIES, SlotId, Work, phase, slot};

/// How many queues a chain of waits is followed through when the earliest time is computed.
const MAX_WAIT_CHAIN: u32 = 4;

/// The device time that one context has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The number of the context on its device.
    pub context: u32,
    /// The process that attached the context.
    pub pid: u32,
    /// Device time that its commands have used, including the running one.
    pub busy: Nanos,
    /// Whether it is still attached. Usage of an exited process is kept until its slot is reused.
    pub attached: bool,
}

impl Model {
    /// How many commands have left the queue, and how many were submitted.
    pub(crate) fn positions(&self, name: SlotId) -> Result<(u64, u64), QueueError> {
        let queue = self.queue(self.find(name)?);
        Ok((queue.head, queue.tail))
    }

    /// The last marker that the queue has reported.
    pub(crate) fn marker(&self, name: SlotId) -> Result<u64, QueueError> {
        Ok(self.queue(self.find(name)?).marker)
    }

    /// How many commands of the queue have completed.
    pub(crate) fn finished(&self, name: SlotId) -> Result<u64, QueueError> {
        Ok(self.queue(self.find(name)?).finished)
    }

    /// The position that the queue must reach for `marker` to be complete; none while the marker has not been placed.
    pub(crate) fn position_of(&self, name: SlotId, marker: u64) -> Option<u64> {
        let queue = self.queue(self.find(name).ok()?);
        let matches = |command: &Command| command.kind == Command::MARK && command.amount >= marker;
        let pending = queue.head..queue.tail.min(queue.head.saturating_add(QUEUE_CAPACITY));
        pending.into_iter().find(|at| matches(self.command(name.index, *at))).map(|at| at.wrapping_add(1))
    }

    /// A time before which the queue cannot reach `position`: the device never runs commands in less than their length.
    /// [`Nanos::MAX`] if the queue is stopped and cannot reach it until a process restores it.
    pub(crate) fn earliest(&self, name: SlotId, position: u64) -> Nanos {
        self.find(name).map_or(self.now, |index| self.earliest_at(index, position, MAX_WAIT_CHAIN))
    }

    fn earliest_at(&self, index: u32, position: u64, depth: u32) -> Nanos {
        let queue = self.queue(index);
        if position > queue.tail {
            return Nanos::MAX;
        }
        let resumes = if queue.change_to == 0 { queue.change_at } else { Nanos::MAX };
        let mut can_run = self.is_allowed_by_level(index);
        let mut at = self.now;
        for place in (queue.head..position).take(RING_ENTRIES) {
            match self.command(index, place).work() {
                Work::Run(length) => {
                    if !can_run {
                        at = at.max(resumes);
                    }
                    can_run = queue.stopped == 0;
                    let running =
                        self.phase == phase::RUNNING && self.running == index && place == queue.head;
                    at += if running { length - self.used_by_running() } else { length };
                }
                Work::Wait { queue, marker } if depth > 0 && !self.has_reported(queue, marker) => {
                    let reached = self.position_of(queue, marker);
                    at = at.max(
                        reached.map_or(Nanos::MAX, |place| self.earliest_at(queue.index, place, depth - 1)),
                    );
                }
                Work::Wait { .. } | Work::Mark(_) => {}
            }
        }
        at
    }

    /// Device time that a queue has used, including the running command.
    pub(crate) fn queue_busy(&self, name: SlotId) -> Result<Nanos, QueueError> {
        let index = self.find(name)?;
        let running = if self.running == index && self.phase == phase::RUNNING {
            self.used_by_running()
        } else {
            Nanos::ZERO
        };
        Ok(self.queue(index).busy + running)
    }

    /// The usage of all contexts so far.
    pub(crate) fn usage(&self) -> Vec<Usage> {
        let runs = (self.phase == phase::RUNNING).then(|| self.queue(self.running).context);
        let used = self.contexts.iter().enumerate().filter(|(_, context)| context.state != slot::FREE);
        used.map(|(index, context)| {
            let index = super::number(index);
            let running = if runs == Some(index) { self.used_by_running() } else { Nanos::ZERO };
            Usage {
                context: index,
                pid: context.pid,
                busy: context.busy + running,
                attached: context.state == slot::LIVE,
            }
        })
        .collect()
    }

    /// Whether a context has commands that have not completed.
    pub(crate) fn context_has_work(&self, context: u32) -> bool {
        self.context(context).queues.iter().any(|queue| self.head(queue).is_some())
    }

    /// The process that attached a context: its pid and start time.
    pub(crate) fn owner(&self, context: u32) -> (u32, u64) {
        let context = self.context(context);
        (context.pid, context.started)
    }

    /// The context whose owner should be checked now, if any. Each context with work is checked once per `interval`. One
    /// owner is checked at a time and not more often than every `min_gap`, because the caller holds the lock.
    pub(crate) fn next_owner_check(&mut self, interval: Nanos, min_gap: Nanos) -> Option<u32> {
        if self.now - self.owner_checked_at < min_gap {
            return None;
        }
        let with_work = || self.live_contexts().filter(|context| self.context_has_work(*context));
        let count = with_work().count() as u64;
        if count == 0 || self.now - self.owner_checked_at < Nanos(interval.0 / count) {
            return None;
        }
        let next =
            with_work().find(|context| *context > self.last_owner_checked).or_else(|| with_work().next())?;
        self.owner_checked_at = self.now;
        self.last_owner_checked = next;
        Some(next)
    }
}
