//! Stopping and restoring a queue. Both take effect with a delay, which is the cost of the level.
//!
//! ```text
//!   preempt(3)          in effect             restore        eligible again
//!      │──── cost.preempt ──▶│                   │── cost.restore ──▶│
//!   ───┴────── running ──────┴── stopped ────────┴───────────────────┴── running ──▶
//! ```

use xsched_core::{Level, LevelCost, Nanos};

use super::{Model, QueueError, SlotId, SpanKind, phase};

/// The level at which a command that has started is stopped too.
const INTERRUPT: u32 = Level::Interrupt as u32;

impl Model {
    /// Requests that a queue be stopped; returns when that takes effect. Does nothing if the queue is stopped at that
    /// level or a higher one.
    pub(crate) fn preempt(&mut self, name: SlotId, level: Level) -> Result<Nanos, QueueError> {
        let index = self.find(name)?;
        let now = self.now;
        if level == Level::Block {
            return Ok(now);
        }
        let wanted = u32::from(level.number());
        let effect = now + self.cost(wanted).preempt;
        let queue = self.queue_mut(index);
        if queue.stopped >= wanted {
            // A pending restore is cancelled; a pending stop at a higher level is not.
            if queue.change_to < queue.stopped {
                self.cancel_change(index);
            }
            return Ok(now);
        }
        if queue.change_at != Nanos::MAX && queue.change_to >= wanted {
            return Ok(queue.change_at);
        }
        self.schedule_change(index, wanted, effect);
        Ok(effect)
    }

    /// Requests that a queue be restored; returns when it is eligible again.
    pub(crate) fn restore(&mut self, name: SlotId) -> Result<Nanos, QueueError> {
        let index = self.find(name)?;
        let now = self.now;
        let &super::Queue { stopped, change_to, change_at, .. } = self.queue(index);
        if stopped == 0 {
            self.cancel_change(index);
            return Ok(now);
        }
        if change_at != Nanos::MAX && change_to == 0 {
            return Ok(change_at);
        }
        let effect = now + self.cost(stopped).restore;
        self.schedule_change(index, 0, effect);
        Ok(effect)
    }

    fn schedule_change(&mut self, index: u32, to: u32, at: Nanos) {
        let queue = self.queue_mut(index);
        queue.change_to = to;
        queue.change_at = at;
        self.changing.insert(index);
        self.refresh();
    }

    fn cancel_change(&mut self, index: u32) {
        self.queue_mut(index).change_at = Nanos::MAX;
        self.changing.remove(index);
    }

    /// Applies the changes that are due.
    pub(super) fn apply_changes(&mut self) {
        for index in self.changing.iter() {
            let now = self.now;
            let queue = self.queue_mut(index);
            if queue.change_at > now {
                continue;
            }
            queue.stopped = queue.change_to;
            let is_interrupted = queue.stopped >= INTERRUPT;
            self.cancel_change(index);
            if is_interrupted && self.phase == phase::RUNNING && self.running == index {
                self.stop_running(SpanKind::Interrupted);
            }
        }
    }

    /// Whether the preemption level in effect lets the next command of a queue use the device.
    pub(super) fn is_allowed_by_level(&self, index: u32) -> bool {
        let queue = self.queue(index);
        match queue.stopped {
            0 => true,
            INTERRUPT.. => false,
            _ => queue.has_started != 0,
        }
    }

    fn cost(&self, level: u32) -> LevelCost {
        let words = if level >= INTERRUPT { self.settings.interrupt } else { self.settings.deactivate };
        words.cost().unwrap_or_default()
    }
}
