//! Looking ahead and looking back: when something can happen at the earliest, and who used how much.

use xsched_core::Nanos;

use super::{Command, Model, Name, PLACES, RING, Refusal, Work, phase, slot};

/// How many queues deep waits are followed when looking ahead.
const DEPTH: u32 = 4;

/// What one context has used of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The number of the context on its device.
    pub context: u32,
    /// Its process.
    pub pid: u32,
    /// Device time its commands have used, the running one included.
    pub busy: Nanos,
    /// Whether it is still there. What ended processes used is kept until their place is needed.
    pub attached: bool,
}

impl Model {
    /// How many commands have left the queue, and how many were put in.
    pub(crate) fn positions(&self, name: Name) -> Result<(u64, u64), Refusal> {
        let queue = self.queue(self.find(name)?);
        Ok((queue.head, queue.tail))
    }

    /// The last marker the queue has reported.
    pub(crate) fn marker(&self, name: Name) -> Result<u64, Refusal> {
        Ok(self.queue(self.find(name)?).marker)
    }

    /// How many commands of the queue have run to their end.
    pub(crate) fn finished(&self, name: Name) -> Result<u64, Refusal> {
        Ok(self.queue(self.find(name)?).finished)
    }

    /// The position behind which `marker` is done; none while it has not been placed.
    pub(crate) fn position_of(&self, name: Name, marker: u64) -> Option<u64> {
        let queue = self.queue(self.find(name).ok()?);
        let is_it = |command: &Command| command.kind == Command::MARK && command.amount >= marker;
        let pending = queue.head..queue.tail.min(queue.head.saturating_add(RING));
        pending.into_iter().find(|at| is_it(self.command(name.index, *at))).map(|at| at.wrapping_add(1))
    }

    /// A time before which the queue cannot have come to `position`: the device is never faster than the commands are
    /// long. [`Nanos::MAX`] if it will not get there until somebody acts.
    pub(crate) fn earliest(&self, name: Name, position: u64) -> Nanos {
        self.find(name).map_or(self.now, |index| self.earliest_at(index, position, DEPTH))
    }

    fn earliest_at(&self, index: u32, position: u64, depth: u32) -> Nanos {
        let queue = self.queue(index);
        if position > queue.tail {
            return Nanos::MAX;
        }
        let resumes = if queue.change_to == 0 { queue.change_at } else { Nanos::MAX };
        let mut let_through = self.is_let_through(index);
        let mut at = self.now;
        for place in (queue.head..position).take(PLACES) {
            match self.command(index, place).work() {
                Work::Run(length) => {
                    if !let_through {
                        at = at.max(resumes);
                    }
                    let_through = queue.stopped == 0;
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

    /// Device time a queue has used, the running command included.
    pub(crate) fn queue_busy(&self, name: Name) -> Result<Nanos, Refusal> {
        let index = self.find(name)?;
        let running = if self.running == index && self.phase == phase::RUNNING {
            self.used_by_running()
        } else {
            Nanos::ZERO
        };
        Ok(self.queue(index).busy + running)
    }

    /// What all contexts have used so far.
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

    /// Whether a context has commands that are not finished.
    pub(crate) fn set_has_work(&self, context: u32) -> bool {
        self.context(context).queues.iter().any(|queue| self.head(queue).is_some())
    }

    /// The process a context belongs to: its pid, and when it was started.
    pub(crate) fn owner(&self, context: u32) -> (u32, u64) {
        let context = self.context(context);
        (context.pid, context.started)
    }

    /// The context whose owner should be looked after now, if any: each that has work once per `interval`, one at a
    /// time and not more often than `pause`, since whoever looks holds the lock.
    pub(crate) fn next_inspection(&mut self, interval: Nanos, pause: Nanos) -> Option<u32> {
        if self.now - self.inspected < pause {
            return None;
        }
        let with_work = || self.live_contexts().filter(|context| self.set_has_work(*context));
        let count = with_work().count() as u64;
        if count == 0 || self.now - self.inspected < Nanos(interval.0 / count) {
            return None;
        }
        let next =
            with_work().find(|context| *context > self.last_inspected).or_else(|| with_work().next())?;
        self.inspected = self.now;
        self.last_inspected = next;
        Some(next)
    }
}
