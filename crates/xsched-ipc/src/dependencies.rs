//! Which queues of this program wait for which others, and how the scheduler is told.
//!
//! The scheduler must never hold a queue that a running one waits for. It reads who waits for whom from the slots of
//! the page; here the points they wait for are kept, and forgotten once reached.

use std::sync::{Arc, Mutex, Weak};

use xsched_core::RecordedEvent;

use crate::page::Dependencies;
use crate::program::lock;
use crate::scheduled_queue::ScheduledQueue;

#[derive(Default)]
pub(crate) struct DependencyTracker {
    waits: Mutex<Vec<Wait>>,
}

struct Wait {
    waiter: Weak<ScheduledQueue>,
    /// Whose point it is. None: what was launched before anybody counted may wait for any queue of the program, until
    /// the waiter itself has come this far.
    holder: Option<Weak<ScheduledQueue>>,
    point: RecordedEvent,
}

impl Wait {
    fn is_over(&self) -> bool {
        match &self.holder {
            None => self.waiter.upgrade().is_none_or(|waiter| waiter.has_reached(self.point)),
            Some(holder) => holder.upgrade().is_none_or(|holder| holder.has_reached(self.point)),
        }
    }
}

impl DependencyTracker {
    /// `waiter` waits for a point on `holder`.
    pub(crate) fn add(
        &self,
        waiter: &Arc<ScheduledQueue>,
        holder: &Arc<ScheduledQueue>,
        point: RecordedEvent,
    ) {
        self.enter(waiter, Some(Arc::downgrade(holder)), point);
    }

    /// `waiter` may wait for anybody until it has come to `point` itself.
    pub(crate) fn add_unknown(&self, waiter: &Arc<ScheduledQueue>, point: RecordedEvent) {
        self.enter(waiter, None, point);
    }

    fn enter(
        &self,
        waiter: &Arc<ScheduledQueue>,
        holder: Option<Weak<ScheduledQueue>>,
        point: RecordedEvent,
    ) {
        let mut waits = lock(&self.waits);
        waits.push(Wait { waiter: Arc::downgrade(waiter), holder, point });
        publish(waiter, &waits);
    }

    /// Says it all again, of these queues: they have other slots now.
    pub(crate) fn publish_again(&self, waiters: &[Arc<ScheduledQueue>]) {
        let waits = lock(&self.waits);
        for waiter in waiters {
            publish(waiter, &waits);
        }
    }

    /// Forgets the waits that are over. Answers whether there were any.
    pub(crate) fn forget_what_is_over(&self) -> bool {
        // Handles to queues are dropped after the lock: the last one of a queue would take locks of its own.
        let mut relieved: Vec<Arc<ScheduledQueue>> = Vec::new();
        let mut waits = lock(&self.waits);
        waits.retain(|wait| {
            let over = wait.is_over();
            if over {
                relieved.extend(wait.waiter.upgrade());
            }
            !over
        });
        for waiter in &relieved {
            publish(waiter, &waits);
        }
        drop(waits);
        !relieved.is_empty()
    }
}

/// Writes into the waiter's slot whom it waits for.
fn publish(waiter: &Arc<ScheduledQueue>, waits: &[Wait]) {
    let (mut slots, mut n) = ([0; 4], 0);
    for wait in waits.iter().filter(|wait| wait.waiter.ptr_eq(&Arc::downgrade(waiter))) {
        let Some(holder) = &wait.holder else { return waiter.publish_dependencies(Dependencies::Any) };
        // Without a slot it is not scheduled, and so not held.
        let Some(holder) = holder.upgrade().and_then(|holder| holder.slot()) else { continue };
        if slots[..n].contains(&holder) {
            continue;
        }
        if n == slots.len() {
            return waiter.publish_dependencies(Dependencies::Any);
        }
        slots[n] = holder;
        n += 1;
    }
    waiter.publish_dependencies(Dependencies::Slots(slots, n));
}
