//! Dependencies between queues, for vendors whose commands take lists of events to wait for.
//!
//! An event exists once its command is launched, and at level 1 a launched command runs to completion: a queue is never stuck
//! behind a held queue. But the program itself can be the one that completes an event. A queue that waits for such an
//! event may wait for any thread of the program. No thread may block on that queue, and no thread of the program may be held
//! on its account.

use std::ffi::c_uint;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use xsched_interpose::{Handle, run_isolated};

use crate::event_queue::{Event, EventApi};
use crate::runtime::{Runtime, runtime};

/// The vendor's functions for events that commands wait for.
pub(crate) trait WaitListApi: EventApi {
    /// Records a new event that completes after these events, and submits it to the device.
    fn record_after(queue: Handle, events: &[Handle]) -> Result<Handle, String>;

    /// The queue of an event; null if the program completes the event.
    fn queue_of(event: Handle) -> Handle;
}

/// The queues with work that waits for the program.
static BLOCKED: Mutex<Vec<BlockedQueue>> = Mutex::new(Vec::new());

struct BlockedQueue {
    key: usize,
    is_over: Box<dyn Fn() -> bool + Send>,
}

/// Records the dependencies of a command that is about to be launched and waits for a list of events.
///
/// # Safety
/// The list has `count` elements, or is null.
pub(crate) unsafe fn record_dependencies<A: WaitListApi>(queue: Handle, count: c_uint, list: *const Handle) {
    // SAFETY: the caller vouches for the list.
    let events = unsafe { from_c_list(count, list) };
    if events.is_empty() {
        return;
    }
    run_isolated(|| {
        let Some(runtime) = runtime().filter(|runtime| runtime.is_tracked(queue.addr())) else { return };
        let mut waits_for_the_program = false;
        for event in events.iter().filter(|event| !A::is_complete(**event)) {
            let holder = A::queue_of(*event);
            if holder.is_none() {
                waits_for_the_program = true;
            } else if holder != queue {
                waits_for_the_program |= waits_for_program(holder.addr());
                runtime.depends_on(queue.addr(), holder.addr());
            }
        }
        if waits_for_the_program && let Ok(event) = Event::<A>::record(|| A::record_after(queue, events)) {
            record_program_wait(runtime, queue, event);
        }
    });
}

/// Records that the work on a queue before this event may wait for the program.
pub(crate) fn record_program_wait<A: EventApi>(runtime: &Runtime, queue: Handle, event: Event<A>) {
    let is_over = Box::new(move || event.is_complete());
    let mut blocked = blocked();
    // Here too, for programs that never wait for room.
    blocked.retain(|queue| !(queue.is_over)());
    blocked.push(BlockedQueue { key: queue.addr(), is_over });
    drop(blocked);
    runtime.depends_on_any(queue.addr());
}

/// Calls `launch`, which launches work that waits for other queues. They are not known one by one, so the work counts as waiting for every
/// queue of the program.
pub(crate) fn launch_waiting_for_any_queue<R>(launch: impl FnOnce() -> R, queue: Handle) -> R {
    let result = launch();
    run_isolated(|| {
        if let Some(runtime) = runtime().filter(|runtime| runtime.tracks_dependencies()) {
            runtime.depends_on_any(queue.addr());
        }
    });
    result
}

/// Calls `launch`, which launches work that waits for the program. For vendors without wait lists for markers: the marker that shows when
/// the wait is over follows the work.
pub(crate) fn launch_waiting_for_program<A: EventApi, R>(launch: impl FnOnce() -> R, queue: Handle) -> R {
    let marker = Arc::new(OnceLock::<Option<Event<A>>>::new());
    run_isolated(|| {
        let marker = Arc::clone(&marker);
        // Not over until the marker is placed. Without a marker it is not known, and the queue counts as usual.
        let is_over =
            move || marker.get().is_some_and(|marker| marker.as_ref().is_none_or(Event::is_complete));
        blocked().push(BlockedQueue { key: queue.addr(), is_over: Box::new(is_over) });
    });
    let result = launch();
    run_isolated(|| {
        let _ = marker.set(Event::record(|| A::record(queue)).ok());
        if let Some(runtime) = runtime() {
            runtime.depends_on_any(queue.addr());
        }
    });
    result
}

/// Calls `real`, which waits for a list of events. Their queues may be idle when it returns.
///
/// # Safety
/// As for [`record_dependencies`].
pub(crate) unsafe fn wait_for_events<A: WaitListApi>(
    real: impl FnOnce() -> i32,
    count: c_uint,
    list: *const Handle,
) -> i32 {
    let code = real();
    if code == 0 {
        run_isolated(|| {
            let Some(runtime) = runtime() else { return };
            let mut polled = Handle::NONE;
            // SAFETY: the caller vouches for the list. The events exist, because the program has just waited for them.
            for event in unsafe { from_c_list(count, list) } {
                let queue = A::queue_of(*event);
                if queue != polled {
                    runtime.poll_idle(queue.addr());
                    polled = queue;
                }
            }
        });
    }
    code
}

/// Calls `launch`, after which the work of a queue waits for an event that identifies no queue. If a queue waits for the program, the event may
/// be behind that.
pub(crate) fn launch_waiting_for_event<A: EventApi, R>(launch: impl FnOnce() -> R, queue: Handle) -> R {
    let mut may_wait_for_program = false;
    run_isolated(|| {
        let mut blocked = blocked();
        blocked.retain(|queue| !(queue.is_over)());
        may_wait_for_program = !blocked.is_empty();
    });
    if may_wait_for_program {
        launch_waiting_for_program::<A, R>(launch, queue)
    } else {
        launch_waiting_for_any_queue(launch, queue)
    }
}

/// Whether work on this queue waits for the program.
pub(crate) fn waits_for_program(key: usize) -> bool {
    let mut blocked = blocked();
    blocked.retain(|queue| !(queue.is_over)());
    blocked.iter().any(|queue| queue.key == key)
}

/// The queue is about to be released.
pub(crate) fn forget_queue(key: usize) {
    blocked().retain(|queue| queue.key != key);
}

fn blocked() -> MutexGuard<'static, Vec<BlockedQueue>> {
    BLOCKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A list as C functions take it: length and address. An empty list is null.
pub(crate) fn to_c_list<T>(elements: &[T]) -> (c_uint, *const T) {
    match c_uint::try_from(elements.len()) {
        Ok(count) if count > 0 => (count, elements.as_ptr()),
        _ => (0, std::ptr::null()),
    }
}

/// A list that a C program passes. Null is an empty list.
///
/// # Safety
/// The list has `count` elements and outlives the slice, or it is null.
pub(crate) unsafe fn from_c_list<'a, T>(count: c_uint, list: *const T) -> &'a [T] {
    if list.is_null() {
        return &[];
    }
    // SAFETY: the caller vouches for the list, which is not null.
    unsafe { std::slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0)) }
}
