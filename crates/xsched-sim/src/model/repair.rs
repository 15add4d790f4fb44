//! Making sense of a model whose last writer died in the middle of it.

use xsched_core::{Level, Nanos};

use super::{CONTEXTS, Model, NONE, QUEUES, QueueSet, RING, Work, number, phase, slot};

/// How much unobserved time is made up for.
const LONGEST_GAP: Nanos = Nanos::from_secs(60);

impl Model {
    /// Makes the parts agree with each other again, whatever they hold. A command that was being worked on may be
    /// lost or run again; nothing else is.
    pub(crate) fn repair(&mut self, now: Nanos) {
        // A time ahead of the clock would stop the device until the clock gets there; one far behind it would take
        // long to catch up from.
        self.now = self.now.clamp(now - LONGEST_GAP, now);
        self.since = self.since.min(now);
        self.inspected = self.inspected.min(now);
        self.slice_end = self.slice_end.min(now + self.settings.slice);
        self.settings.switch_cost = self.settings.switch_cost.min(Nanos::from_secs(1));
        self.repair_contexts();
        for index in (0..QUEUES).map(number) {
            self.repair_queue(index);
        }
        self.repair_phase();
        for index in (0..QUEUES).map(number) {
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
        if queue.open == 0 || context as usize >= CONTEXTS || self.context(context).state != slot::LIVE {
            self.queue_mut(index).open = 0;
            return;
        }
        let queue = self.queue_mut(index);
        queue.open = 1;
        queue.stopped = known_level(queue.stopped);
        queue.change_to = known_level(queue.change_to);
        let plausible =
            queue.head <= queue.tail && queue.tail - queue.head <= RING && queue.tail < u64::MAX / 2;
        if !plausible {
            (queue.head, queue.tail, queue.begun) = (0, 0, 0);
        }
        let changes = queue.change_at != Nanos::MAX;
        self.context_mut(context).queues.insert(index);
        self.reported.insert(index);
        if changes {
            self.changing.insert(index);
        }
    }

    fn repair_phase(&mut self) {
        if self.current as usize >= CONTEXTS {
            self.current = NONE;
        }
        let runs = (self.running as usize) < QUEUES
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

/// The level a word stands for; rubbish stops nothing.
fn known_level(word: u32) -> u32 {
    let stops = word == Level::Deactivate as u32 || word == Level::Interrupt as u32;
    if stops { word } else { 0 }
}
