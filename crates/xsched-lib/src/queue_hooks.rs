//! What the hooks of every platform do around the vendor's function.
//!
//! Each function takes `real`, which calls the vendor's function with the program's arguments, calls it exactly once, and
//! returns its result.

use std::cell::Cell;
use std::sync::Arc;

use xsched_core::Nanos;
use xsched_interpose::{Handle, forward_once, run_isolated};
use xsched_ipc::{KernelName, ScheduledQueue};

use crate::deferral::waits;
use crate::driver_callbacks;
use crate::runtime::runtime;
use crate::tracked_queue::{TrackedQueue, VendorQueue};

/// The vendor has created a queue: tracks it, if `open` returns it. The program has one reference to it.
pub(crate) fn queue_created<Q: VendorQueue + 'static>(queue: Handle, open: impl FnOnce() -> Option<Q>) {
    run_isolated(|| {
        let Some(runtime) = runtime() else { return };
        // An older queue with the same handle was destroyed without a hook.
        runtime.untrack(queue.addr());
        runtime.track(queue.addr(), open);
    });
}

/// Calls `real`, which creates a queue and returns its handle, or null.
pub(crate) fn create_queue<Q: VendorQueue + 'static>(
    real: impl FnOnce() -> Handle,
    open: impl FnOnce(Handle) -> Option<Q>,
) -> Handle {
    let queue = real();
    if !queue.is_none() {
        queue_created(queue, || open(queue));
    }
    queue
}

/// Calls `real`, which adds a reference to a queue.
pub(crate) fn retain_queue<R>(real: impl FnOnce() -> R, queue: Handle) -> R {
    forward_once(real, |_| {
        if let Some(queue) = runtime().and_then(|runtime| runtime.queue(queue.addr())) {
            queue.retain();
        }
    })
}

/// Calls `real`, which drops a reference to a queue. Before the last reference is dropped, the queue is untracked.
pub(crate) fn release_queue<R>(real: impl FnOnce() -> R, queue: Handle) -> R {
    forward_once(real, |_| {
        if let Some(runtime) = runtime()
            && runtime.queue(queue.addr()).is_some_and(|queue| TrackedQueue::release(&queue))
        {
            runtime.untrack(queue.addr());
        }
    })
}

/// Calls `real`, which may destroy the queues with these keys. A queue that it does not destroy is tracked again with its next launch.
pub(crate) fn destroy_all<R>(real: impl FnOnce() -> R, keys: impl FnOnce() -> Vec<usize>) -> R {
    forward_once(real, |_| {
        if let Some(runtime) = runtime() {
            for key in keys() {
                runtime.untrack(key);
            }
        }
    })
}

/// Calls `real`, which launches work on a queue, once the scheduler allows it. `finishes` returns whether `real` waits for
/// that work and for everything launched before it; it is called for tracked queues only.
pub(crate) fn launch<R>(real: impl FnOnce() -> R, queue: Handle, finishes: impl FnOnce() -> bool) -> R {
    let Some(runtime) = runtime().filter(|_| driver_callbacks::may_block()) else { return real() };
    forward_once(real, |call| {
        let Some(queue) = runtime.queue(queue.addr()) else { return };
        let Some(path) = queue.launch_path() else { return };
        if finishes() { path.launch_and_finish(call) } else { path.launch(call) }
    })
}

/// Calls `real`, which launches a kernel and returns 0 on success, once the scheduler allows it. `name` asks the vendor for the name of
/// the kernel; it is called only while a tool traces the names, after a successful launch.
pub(crate) fn launch_kernel(
    real: impl FnOnce() -> i32,
    queue: Handle,
    name: impl FnOnce() -> Option<KernelName>,
) -> i32 {
    let Some(runtime) = runtime().filter(|_| driver_callbacks::may_block()) else { return real() };
    forward_kernel(real, name, |call, name| {
        if let Some(queue) = runtime.queue(queue.addr())
            && let Some(queue) = queue.scheduled()
        {
            queue.launch_kernel(call, name);
        }
    })
}

/// As [`forward_once`], for a launch of a kernel that returns 0 on success. `decide` also gets a function that returns the name of the
/// kernel, if the launch has succeeded.
#[inline]
pub(crate) fn forward_kernel(
    real: impl FnOnce() -> i32,
    name: impl FnOnce() -> Option<KernelName>,
    decide: impl FnOnce(&mut dyn FnMut(), &mut dyn FnMut() -> Option<KernelName>),
) -> i32 {
    let has_succeeded = Cell::new(false);
    let real = || {
        let code = real();
        has_succeeded.set(code == 0);
        code
    };
    let mut name = Some(name);
    let mut name = || name.take().filter(|_| has_succeeded.get()).and_then(|name| name());
    forward_once(real, |call| decide(call, &mut name))
}

/// As [`launch`], for a queue that may not be tracked yet, by its key.
pub(crate) fn launch_and_track<R, Q: VendorQueue + 'static>(
    real: impl FnOnce() -> R,
    key: usize,
    open: impl FnOnce() -> Option<Q>,
) -> R {
    let Some(runtime) = runtime() else { return real() };
    forward_once(real, |call| {
        let Some(queue) = runtime.queue_or_track(key, || runtime.track(key, open)) else { return };
        if let Some(path) = queue.launch_path() {
            path.launch(call);
        }
    })
}

/// As [`launch_kernel`], for a queue that may not be tracked yet, by its key.
pub(crate) fn launch_and_track_kernel<Q: VendorQueue + 'static>(
    real: impl FnOnce() -> i32,
    key: usize,
    open: impl FnOnce() -> Option<Q>,
    name: impl FnOnce() -> Option<KernelName>,
) -> i32 {
    let Some(runtime) = runtime() else { return real() };
    forward_kernel(real, name, |call, name| {
        let Some(queue) = runtime.queue_or_track(key, || runtime.track(key, open)) else { return };
        if let Some(queue) = queue.scheduled() {
            queue.launch_kernel(call, name);
        }
    })
}

/// The same for work on several queues: it passes the gates of all of them.
pub(crate) fn launch_on_all<R>(real: impl FnOnce() -> R, queues: &[Handle]) -> R {
    if let [queue] = queues {
        return launch(real, *queue, || false);
    }
    let Some(runtime) = runtime().filter(|_| driver_callbacks::may_block()) else { return real() };
    forward_once(real, |call| {
        // One order for all threads, so that two launches cannot wait for each other.
        let mut keys: Vec<_> = queues.iter().map(|queue| queue.addr()).collect();
        keys.sort_unstable();
        keys.dedup();
        pass_gates(
            &keys.into_iter().filter_map(|key| runtime.scheduled_queue(key)).collect::<Vec<_>>(),
            call,
        );
    })
}

/// Calls `launch` inside the gates of all queues.
pub(crate) fn pass_gates(queues: &[Arc<ScheduledQueue>], launch: &mut dyn FnMut()) {
    match queues.split_first() {
        None => launch(),
        Some((first, rest)) => first.launch_path().launch(|| pass_gates(rest, launch)),
    }
}

/// Calls `real`, which waits for the work of a queue. The queue may be idle afterwards.
pub(crate) fn synchronize<R>(real: impl FnOnce() -> R, queue: Handle) -> R {
    let Some(runtime) = runtime() else { return real() };
    forward_once(real, |call| {
        if let Some(queue) = runtime.queue(queue.addr())
            && let Some(path) = queue.launch_path()
        {
            path.synchronized(call);
        }
    })
}

/// Calls `real`, which returns 0 if the work of the queue with this key has completed, and may return before that. Success marks the queue idle,
/// as a synchronization does.
pub(crate) fn query(real: impl FnOnce() -> i32, key: Option<usize>) -> i32 {
    let Some(runtime) = runtime() else { return real() };
    let is_complete = Cell::new(false);
    let real = || {
        let code = real();
        is_complete.set(code == 0);
        code
    };
    forward_once(real, |call| {
        if let Some(queue) = key.and_then(|key| runtime.queue(key)) {
            queue.query(&mut || {
                call();
                is_complete.get()
            });
        }
    })
}

/// Calls `real`, which waits for some work of the program, or queries whether it has completed; `has_completed` tells from the result.
/// That may have been the last work of a queue, so the queues are polled.
pub(crate) fn after_wait<R>(real: impl FnOnce() -> R, has_completed: impl FnOnce(&R) -> bool) -> R {
    let begun = Nanos::now();
    let result = waits(real);
    run_isolated(|| {
        if has_completed(&result)
            && let Some(runtime) = runtime()
        {
            runtime.poll_soon(begun);
        }
    });
    result
}
