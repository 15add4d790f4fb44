//! Stopping a queue and letting it run on. Both take effect a while after they were asked for.
//!
//! ```text
//!   preempt(3)          in effect             restore        eligible again
//!      │──── cost.preempt ──▶│                   │── cost.restore ──▶│
//!   ───┴─────── runs on ─────┴── frozen ─────────┴───────────────────┴── runs on ──▶
//! ```

use xsched_core::{Level, LevelCost, Nanos};

use super::{Model, Name, Refusal, SpanKind, phase};

/// The level at which the command that has begun is stopped too.
const INTERRUPT: u32 = Level::Interrupt as u32;

impl Model {
    /// Asks for a queue to be stopped; answers when it will be. Nothing happens if it is stopped that deep already.
    pub(crate) fn preempt(&mut self, name: Name, level: Level) -> Result<Nanos, Refusal> {
        let index = self.find(name)?;
        let now = self.now;
        if level == Level::Block {
            return Ok(now);
        }
        let wanted = u32::from(level.number());
        let effect = now + self.cost(wanted).preempt;
        let queue = self.queue_mut(index);
        if queue.stopped >= wanted {
            // A restore that was under way is called off; a deeper stop is not.
            if queue.change_to < queue.stopped {
                self.call_off_change(index);
            }
            return Ok(now);
        }
        if queue.change_at != Nanos::MAX && queue.change_to >= wanted {
            return Ok(queue.change_at);
        }
        self.change(index, wanted, effect);
        Ok(effect)
    }

    /// Asks for a queue to run on; answers when it may.
    pub(crate) fn restore(&mut self, name: Name) -> Result<Nanos, Refusal> {
        let index = self.find(name)?;
        let now = self.now;
        let &super::Queue { stopped, change_to, change_at, .. } = self.queue(index);
        if stopped == 0 {
            self.call_off_change(index);
            return Ok(now);
        }
        if change_at != Nanos::MAX && change_to == 0 {
            return Ok(change_at);
        }
        let effect = now + self.cost(stopped).restore;
        self.change(index, 0, effect);
        Ok(effect)
    }

    fn change(&mut self, index: u32, to: u32, at: Nanos) {
        let queue = self.queue_mut(index);
        queue.change_to = to;
        queue.change_at = at;
        self.changing.insert(index);
        self.refresh();
    }

    fn call_off_change(&mut self, index: u32) {
        self.queue_mut(index).change_at = Nanos::MAX;
        self.changing.remove(index);
    }

    /// Carries out the changes that are due.
    pub(super) fn apply_changes(&mut self) {
        for index in self.changing.iter() {
            let now = self.now;
            let queue = self.queue_mut(index);
            if queue.change_at > now {
                continue;
            }
            queue.stopped = queue.change_to;
            let frozen = queue.stopped >= INTERRUPT;
            self.call_off_change(index);
            if frozen && self.phase == phase::RUNNING && self.running == index {
                self.stop_running(SpanKind::Interrupted);
            }
        }
    }

    /// Whether the level in effect lets the next command of a queue use the device.
    pub(super) fn is_let_through(&self, index: u32) -> bool {
        let queue = self.queue(index);
        match queue.stopped {
            0 => true,
            INTERRUPT.. => false,
            _ => queue.begun != 0,
        }
    }

    fn cost(&self, level: u32) -> LevelCost {
        let words = if level >= INTERRUPT { self.settings.interrupt } else { self.settings.deactivate };
        words.cost().unwrap_or_default()
    }
}
