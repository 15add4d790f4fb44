//! What queues wait for, where that is said by lists of events.
//!
//! An event exists once its command is launched, and what is launched runs to its end at level 1: so no queue is stuck
//! behind another that is held. But an event may be the program's own to complete. Whoever waits behind such an event
//! may wait for any thread of the program: it must neither be waited for itself, nor may the threads be held for it.

use std::ffi::c_uint;
use std::sync::{Mutex, MutexGuard, PoisonError};

use xsched_interpose::{Handle, run_isolated};

use crate::event_queue::{Event, EventApi};
use crate::runtime::runtime;

/// Queues on which something waits for the program, each with whether that is over.
static STUCK: Mutex<Vec<Stuck>> = Mutex::new(Vec::new());

struct Stuck {
    queue: usize,
    is_over: Box<dyn Fn() -> bool + Send>,
}

/// A command is about to be launched that waits for a list of events.
///
/// # Safety
/// The list is as long as is said, or null.
pub(crate) unsafe fn record_dependencies<V: EventApi>(queue: Handle, count: c_uint, list: *const Handle) {
    // SAFETY: the caller vouches for the list.
    let events = unsafe { from_c_list(count, list) };
    if events.is_empty() {
        return;
    }
    run_isolated(|| {
        let Some(runtime) = runtime().filter(|runtime| runtime.is_tracked(queue.addr())) else { return };
        let mut program = false;
        for event in events.iter().filter(|event| !V::is_done(**event)) {
            let holder = V::queue_of(*event);
            if holder.is_none() {
                program = true;
            } else if holder != queue {
                program |= for_program(holder.addr());
                runtime.depends_on(queue.addr(), holder.addr());
            }
        }
        if program && let Ok(event) = Event::<V>::place(queue, events) {
            stuck().push(Stuck { queue: queue.addr(), is_over: Box::new(move || event.is_done()) });
            runtime.depends_on_any(queue.addr());
        }
    });
}

/// `real` waits for a list of events, whose queues may have become idle when it returns.
///
/// # Safety
/// As for [`note`].
pub(crate) unsafe fn wait_for_events<V: EventApi>(
    real: impl FnOnce() -> i32,
    count: c_uint,
    list: *const Handle,
) -> i32 {
    let code = real();
    if code == 0 {
        run_isolated(|| {
            let Some(runtime) = runtime() else { return };
            let mut looked_at = Handle::NONE;
            // SAFETY: the caller vouches for the list. It has the events, for it has just waited for them.
            for event in unsafe { from_c_list(count, list) } {
                let queue = V::queue_of(*event);
                if queue != looked_at {
                    runtime.poll_idle(queue.addr());
                    looked_at = queue;
                }
            }
        });
    }
    code
}

/// Whether something on this queue waits for the program.
pub(crate) fn for_program(queue: usize) -> bool {
    let mut stuck = stuck();
    stuck.retain(|stuck| !(stuck.is_over)());
    stuck.iter().any(|stuck| stuck.queue == queue)
}

/// The queue is about to be released.
pub(crate) fn forget(queue: usize) {
    stuck().retain(|stuck| stuck.queue != queue);
}

fn stuck() -> MutexGuard<'static, Vec<Stuck>> {
    STUCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A list as C wants it: an empty one is null.
pub(crate) fn to_c_list<T>(all: &[T]) -> (c_uint, *const T) {
    match c_uint::try_from(all.len()) {
        Ok(count) if count > 0 => (count, all.as_ptr()),
        _ => (0, std::ptr::null()),
    }
}

/// A list as C has it. Null is an empty one.
///
/// # Safety
/// The list is as long as is said, or null.
pub(crate) unsafe fn from_c_list<'a, T>(count: c_uint, list: *const T) -> &'a [T] {
    if list.is_null() {
        return &[];
    }
    // SAFETY: by the caller's word, and not null.
    unsafe { std::slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0)) }
}
