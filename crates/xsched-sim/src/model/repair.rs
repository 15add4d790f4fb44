//! Making a model consistent again after its last writer died in the middle of an update.

use xsched_core::{Level, Nanos};

use super::{MAX_CONTEXTS, MAX_QUEUES, Model, NONE, QUEUE_CAPACITY, QueueSet, Work, number, phase, slot};

/// How much time is simulated at most to catch up with the clock.
const MAX_CATCH_UP: Nanos = Nanos::from_secs(60);

impl Model {
    /// Makes the parts consistent, whatever they contain. A command that was being updated may be lost or run again; all
    /// other commands are unaffected.
    pub(crate) fn repair(&mut self, now: Nanos) {
        // A model time ahead of the clock would stall the device until the clock catches up; one far behind would take
        // long to simulate.
        self.now = self.now.clamp(now - MAX_CATCH_UP, now);
        self.since = self.since.min(now);
        self.owner_checked_at = self.owner_checked_at.min(now);
        self.slice_end = self.slice_end.min(now + self.settings.slice);
        self.settings.switch_cost = self.settings.switch_cost.min(Nanos::from_secs(1));
        self.repair_contexts();
        for index in (0..MAX_QUEUES).map(number) {
            self.repair_queue(index);
        }
        self.repair_phase();
        for index in (0..MAX_QUEUES).map(number) {
            self.settle(index);
        }
        self.refresh();
    }

    fn repair_contexts(&mut self) {
        self.live = 0;
        for (index, context) in self.contexts.iter_mut().enumerate() {
            context.queues = QueueSet::EMPTY;
            match context.state {
                slot::LIVE => self.live |= 1 << index,
                slot::FREE | slot::GONE => {}
                _ => context.state = slot::FREE,
            }
        }
        self.waiting = QueueSet::EMPTY;
        self.changing = QueueSet::EMPTY;
        self.reported = QueueSet::EMPTY;
    }

    fn repair_queue(&mut self, index: u32) {
        let queue = self.queue(index);
        let context = queue.context;
        if queue.open == 0 || context as usize >= MAX_CONTEXTS || self.context(context).state != slot::LIVE {
            self.queue_mut(index).open = 0;
            return;
        }
        let queue = self.queue_mut(index);
        queue.open = 1;
        queue.stopped = valid_level(queue.stopped);
        queue.change_to = valid_level(queue.change_to);
        let plausible = queue.head <= queue.tail
            && queue.tail - queue.head <= QUEUE_CAPACITY
            && queue.tail < u64::MAX / 2;
        if !plausible {
            (queue.head, queue.tail, queue.has_started) = (0, 0, 0);
        }
        let changes = queue.change_at != Nanos::MAX;
        self.context_mut(context).queues.insert(index);
        self.reported.insert(index);
        if changes {
            self.changing.insert(index);
        }
    }

    fn repair_phase(&mut self) {
        if self.current as usize >= MAX_CONTEXTS {
            self.current = NONE;
        }
        let runs = (self.running as usize) < MAX_QUEUES
            && self.head(self.running).is_some_and(|head| matches!(head.work(), Work::Run(_)));
        let consistent = match self.phase {
            phase::RUNNING => runs,
            phase::SWITCHING => self.current != NONE,
            _ => false,
        };
        if !consistent {
            self.phase = phase::IDLE;
            self.running = NONE;
        }
    }
}

/// The preemption level that a word encodes; an invalid word stops nothing.
fn valid_level(word: u32) -> u32 {
    let stops = word == Level::Deactivate as u32 || word == Level::Interrupt as u32;
    if stops { word } else { 0 }
}
