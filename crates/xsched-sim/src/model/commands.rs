//! Contexts, queues, and the submission of work to them.

use xsched_core::Nanos;

use super::{
    Command, Context, MAX_CONTEXTS, MAX_QUEUES, Model, QUEUE_CAPACITY, Queue, QueueError, SlotId, Work,
    number, phase, slot,
};
use super::{QueueSet, SpanKind};

impl Model {
    /// Attaches a process; none if all slots are taken.
    pub(crate) fn attach(&mut self, pid: u32, started: u64) -> Option<SlotId> {
        let slot_in = |state| (0..MAX_CONTEXTS).find(|&i| self.contexts[i].state == state);
        let index = slot_in(slot::FREE).or_else(|| slot_in(slot::GONE))?;
        let generation = self.contexts[index].generation.wrapping_add(1);
        self.contexts[index] = Context {
            state: slot::LIVE,
            generation,
            pid,
            unused: 0,
            started,
            busy: Nanos::ZERO,
            queues: QueueSet::EMPTY,
        };
        self.live |= 1 << index;
        Some(SlotId { index: number(index), generation })
    }

    /// Whether the context with this id is still attached.
    pub(crate) fn is_attached(&self, name: SlotId) -> bool {
        let context = self.context(name.index);
        context.state == slot::LIVE && context.generation == name.generation
    }

    /// Removes a context. Its unfinished commands are dropped, as a driver does when a process exits.
    pub(crate) fn remove_context(&mut self, index: u32) {
        if self.phase == phase::RUNNING && self.queue(self.running).context == index {
            self.stop_running(SpanKind::Abandoned);
        }
        for queue in self.context(index).queues.iter() {
            self.free_queue(queue);
        }
        self.context_mut(index).state = slot::GONE;
        self.live &= !(1 << (index as usize % MAX_CONTEXTS));
        self.settle_waiting();
        self.refresh();
    }

    /// Opens a queue; none if all slots are taken or the context has been removed.
    pub(crate) fn open_queue(&mut self, context: SlotId) -> Option<SlotId> {
        if !self.is_attached(context) {
            return None;
        }
        let index = number((0..MAX_QUEUES).find(|&i| self.queues[i].open == 0)?);
        let generation = self.queue(index).generation.wrapping_add(1);
        *self.queue_mut(index) = Queue {
            open: 1,
            generation,
            context: context.index,
            closing: 0,
            has_started: 0,
            stopped: 0,
            change_to: 0,
            unused: 0,
            change_at: Nanos::MAX,
            head: 0,
            tail: 0,
            finished: 0,
            marker: 0,
            marker_at: Nanos::ZERO,
            busy: Nanos::ZERO,
        };
        self.context_mut(context.index).queues.insert(index);
        // Overwrites the reports of the slot's previous queue.
        self.reported.insert(index);
        Some(SlotId { index, generation })
    }

    /// Closes a queue: it is restored if it was stopped, and its slot is freed once it is empty.
    pub(crate) fn close_queue(&mut self, name: SlotId) -> Result<(), QueueError> {
        let index = self.find(name)?;
        let queue = self.queue_mut(index);
        queue.closing = 1;
        queue.stopped = 0;
        queue.change_at = Nanos::MAX;
        self.changing.remove(index);
        self.settle(index);
        self.refresh();
        Ok(())
    }

    /// Appends work to a queue. There is always room for a marker: launches and waits leave one entry for it, and a
    /// marker right behind another replaces it, because both complete at the same time.
    pub(crate) fn push(&mut self, name: SlotId, work: Work) -> Result<(), QueueError> {
        let index = self.find(name)?;
        let &Queue { head, tail, .. } = self.queue(index);
        let used = tail.saturating_sub(head);
        if let (Work::Mark(marker), true) = (work, used > 0) {
            let last = self.command_mut(index, tail - 1);
            if last.kind == Command::MARK {
                last.amount = marker;
                return Ok(());
            }
        }
        let reserve = u64::from(!matches!(work, Work::Mark(_)));
        if used.saturating_add(reserve) >= QUEUE_CAPACITY {
            return Err(QueueError::Full);
        }
        *self.command_mut(index, tail) = Command::new(work, self.next_sequence);
        self.next_sequence = self.next_sequence.wrapping_add(1);
        self.queue_mut(index).tail = tail.wrapping_add(1);
        if used == 0 {
            self.settle(index);
        }
        self.refresh();
        Ok(())
    }

    /// The index of an open queue, if the id still refers to it.
    pub(super) fn find(&self, name: SlotId) -> Result<u32, QueueError> {
        let queue = self.queue(name.index);
        let same = queue.open != 0 && queue.generation == name.generation && queue.closing == 0;
        same.then_some(name.index).ok_or(QueueError::Removed)
    }

    /// Completes what needs no device time at the head of a queue, and what other queues were waiting for because of it.
    pub(super) fn settle(&mut self, queue: u32) {
        if self.settle_head(queue) {
            self.settle_waiting();
        }
    }

    pub(super) fn settle_waiting(&mut self) {
        // Each round but the last removes at least one command, so this terminates.
        let mut reported = true;
        while reported {
            reported = false;
            for queue in self.waiting.iter() {
                reported |= self.settle_head(queue);
            }
        }
    }

    /// Returns whether something happened that another queue may wait for.
    fn settle_head(&mut self, index: u32) -> bool {
        let mut reported = false;
        self.waiting.remove(index);
        while let Some(head) = self.head(index) {
            match head.work() {
                Work::Run(_) => return reported,
                Work::Wait { queue, marker } if !self.has_reported(queue, marker) => {
                    self.waiting.insert(index);
                    return reported;
                }
                Work::Wait { .. } => {}
                Work::Mark(marker) => {
                    let now = self.now;
                    let queue = self.queue_mut(index);
                    queue.marker = marker;
                    queue.marker_at = now;
                    self.reported.insert(index);
                    reported = true;
                }
            }
            self.pop(index);
        }
        let queue = self.queue(index);
        if queue.open != 0 && queue.closing != 0 {
            self.free_queue(index);
            reported = true;
        }
        reported
    }

    pub(super) fn pop(&mut self, index: u32) {
        let queue = self.queue_mut(index);
        queue.has_started = 0;
        queue.head = queue.head.wrapping_add(1);
    }

    /// Whether `marker` is complete. A queue that has been removed satisfies every wait.
    pub(super) fn has_reported(&self, name: SlotId, marker: u64) -> bool {
        let queue = self.queue(name.index);
        queue.open == 0 || queue.generation != name.generation || queue.marker >= marker
    }

    fn free_queue(&mut self, index: u32) {
        let queue = self.queue_mut(index);
        queue.open = 0;
        let context = queue.context;
        self.context_mut(context).queues.remove(index);
        self.waiting.remove(index);
        self.changing.remove(index);
        self.reported.remove(index);
    }

    /// Passes the queues that have reported since the last call to `publish`, with the marker and its time.
    pub(crate) fn take_reports(&mut self, mut publish: impl FnMut(u32, u64, Nanos)) {
        for index in self.reported.iter() {
            let queue = self.queue(index);
            publish(index, queue.marker, queue.marker_at);
        }
        self.reported = QueueSet::EMPTY;
    }
}
