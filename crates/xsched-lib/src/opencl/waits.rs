//! What queues wait for: event lists, which is how OpenCL's queues depend on each other.
//!
//! An event exists once its command is enqueued, and what is enqueued runs to its end at level 1: so no queue is stuck
//! behind another that is held. But an event may be the program's own to complete. Whoever waits behind such an event
//! may wait for any thread of the program: it must neither be waited for itself, nor may the threads be held for it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::hardware::{Mark, Shared};
use super::vendor::{self, Event, Queue};
use crate::world::World;

/// Queues on which something waits for the program, each with a marker that is done when that is over.
static STUCK: Mutex<Vec<(Shared, Mark)>> = Mutex::new(Vec::new());

/// A command is about to be enqueued that waits for these events.
pub(crate) fn note(world: &World, queue: Queue, events: &[Event]) {
    let mut for_program = false;
    for event in events.iter().filter(|event| is_pending(**event)) {
        let holder = queue_of(*event);
        if holder.is_null() {
            for_program = true;
        } else if holder != queue {
            for_program |= self::for_program(holder);
            world.waits_for(queue.addr(), holder.addr());
        }
    }
    if for_program && let Ok(mark) = Mark::place(queue, events) {
        stuck().push((Shared(queue), mark));
        world.waits_for_anybody(queue.addr());
    }
}

/// The queue that an event's command is in; null if it is for the program to complete.
pub(crate) fn queue_of(event: Event) -> Queue {
    // SAFETY: an event that the program is using.
    vendor::handle(unsafe { vendor::ask(&vendor::OF_EVENT, event, vendor::EVENT_QUEUE) })
}

fn is_pending(event: Event) -> bool {
    // SAFETY: an event that the program is using.
    let status = unsafe { vendor::ask(&vendor::OF_EVENT, event, vendor::EVENT_STATUS) };
    status.map(i32::from_ne_bytes).is_some_and(|status| status > 0)
}

/// Whether something on this queue waits for the program.
pub(crate) fn for_program(queue: Queue) -> bool {
    let mut stuck = stuck();
    stuck.retain(|(_, mark)| !mark.is_done());
    stuck.iter().any(|(which, _)| which.0 == queue)
}

/// The queue is about to be released.
pub(crate) fn forget(queue: Queue) {
    stuck().retain(|(which, _)| which.0 != queue);
}

fn stuck() -> MutexGuard<'static, Vec<(Shared, Mark)>> {
    STUCK.lock().unwrap_or_else(PoisonError::into_inner)
}
