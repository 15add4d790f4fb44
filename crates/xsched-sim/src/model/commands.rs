//! Contexts, queues, and what is put into them.

use xsched_core::Nanos;

use super::{
    CONTEXTS, Command, Context, Model, Name, QUEUES, Queue, RING, Refusal, Work, number, phase, slot,
};
use super::{QueueSet, SpanKind};

impl Model {
    /// Lets a process in; none when all slots are taken.
    pub(crate) fn attach(&mut self, pid: u32, started: u64) -> Option<Name> {
        let with = |state| (0..CONTEXTS).find(|&i| self.contexts[i].state == state);
        let index = with(slot::FREE).or_else(|| with(slot::GONE))?;
        let life = self.contexts[index].life.wrapping_add(1);
        self.contexts[index] = Context {
            state: slot::LIVE,
            life,
            pid,
            unused: 0,
            started,
            busy: Nanos::ZERO,
            queues: QueueSet::EMPTY,
        };
        self.live |= 1 << index;
        Some(Name { index: number(index), life })
    }

    /// Whether a context still is what it was when it got its name.
    pub(crate) fn is_attached(&self, name: Name) -> bool {
        let context = self.context(name.index);
        context.state == slot::LIVE && context.life == name.life
    }

    /// Takes a context off the device. What it had not finished vanishes, as a driver does when a process ends.
    pub(crate) fn remove_context(&mut self, index: u32) {
        if self.phase == phase::RUNNING && self.queue(self.running).context == index {
            self.stop_running(SpanKind::Abandoned);
        }
        for queue in self.context(index).queues.iter() {
            self.free_queue(queue);
        }
        self.context_mut(index).state = slot::GONE;
        self.live &= !(1 << (index as usize % CONTEXTS));
        self.settle_waiting();
        self.refresh();
    }

    /// Makes a queue; none when all are taken or the context is gone.
    pub(crate) fn open_queue(&mut self, context: Name) -> Option<Name> {
        if !self.is_attached(context) {
            return None;
        }
        let index = number((0..QUEUES).find(|&i| self.queues[i].open == 0)?);
        let life = self.queue(index).life.wrapping_add(1);
        *self.queue_mut(index) = Queue {
            open: 1,
            life,
            context: context.index,
            closing: 0,
            begun: 0,
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
        // Whoever reads reports must not find those of the slot's previous life.
        self.reported.insert(index);
        Some(Name { index, life })
    }

    /// Lets go of a queue: it runs on, restored if it was stopped, and is freed once it is empty.
    pub(crate) fn close_queue(&mut self, name: Name) -> Result<(), Refusal> {
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

    /// Puts work at the end of a queue. A mark always finds room: launches and waits leave one place for it, and a
    /// mark right behind another takes its place, since both complete at the same time.
    pub(crate) fn push(&mut self, name: Name, work: Work) -> Result<(), Refusal> {
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
        if used.saturating_add(reserve) >= RING {
            return Err(Refusal::Full);
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

    /// The number of an open queue, if the name still means it.
    pub(super) fn find(&self, name: Name) -> Result<u32, Refusal> {
        let queue = self.queue(name.index);
        let same = queue.open != 0 && queue.life == name.life && queue.closing == 0;
        same.then_some(name.index).ok_or(Refusal::Gone)
    }

    /// Does what needs no device time at the head of a queue, and whatever that sets free elsewhere.
    pub(super) fn settle(&mut self, queue: u32) {
        if self.settle_head(queue) {
            self.settle_waiting();
        }
    }

    pub(super) fn settle_waiting(&mut self) {
        // Each round but the last takes at least one command out of a ring, so this ends.
        let mut reported = true;
        while reported {
            reported = false;
            for queue in self.waiting.iter() {
                reported |= self.settle_head(queue);
            }
        }
    }

    /// Says whether something happened that another queue may wait for.
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
        queue.begun = 0;
        queue.head = queue.head.wrapping_add(1);
    }

    /// A queue that is gone has nothing left that could be waited for.
    pub(super) fn has_reported(&self, name: Name, marker: u64) -> bool {
        let queue = self.queue(name.index);
        queue.open == 0 || queue.life != name.life || queue.marker >= marker
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

    /// Hands over the queues that have reported since the last call, with the marker and its time.
    pub(crate) fn take_reports(&mut self, mut publish: impl FnMut(u32, u64, Nanos)) {
        for index in self.reported.iter() {
            let queue = self.queue(index);
            publish(index, queue.marker, queue.marker_at);
        }
        self.reported = QueueSet::EMPTY;
    }
}
