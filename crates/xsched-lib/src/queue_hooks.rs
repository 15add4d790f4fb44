//! What hooks of every platform do around the vendor's function.

use std::sync::Arc;

use xsched_interpose::{Handle, forward_once, run_isolated};
use xsched_ipc::ScheduledQueue;

use crate::driver_callbacks;
use crate::runtime::runtime;
use crate::tracked_queue::{TrackedQueue, VendorQueue};

/// A queue has been made: from now on it is scheduled, if `take` can make of it what the core needs. The program has
/// one hold on it.
pub(crate) fn queue_created<H: VendorQueue + 'static>(queue: Handle, take: impl FnOnce() -> Option<H>) {
    run_isolated(|| {
        let Some(runtime) = runtime() else { return };
        // A handle that is new stands for nothing we know: what had it before ended unseen.
        runtime.untrack(queue.addr());
        runtime.track(queue.addr(), take);
    });
}

/// The same for a function that answers with the queue it has made, or with none.
pub(crate) fn create_queue<H: VendorQueue + 'static>(
    real: impl FnOnce() -> Handle,
    take: impl FnOnce(Handle) -> Option<H>,
) -> Handle {
    let queue = real();
    if !queue.is_none() {
        queue_created(queue, || take(queue));
    }
    queue
}

/// The program takes another hold on a queue.
pub(crate) fn retain_queue<R>(real: impl FnOnce() -> R, queue: Handle) -> R {
    forward_once(real, |_| with(queue, TrackedQueue::retain))
}

/// The program gives up a hold on a queue. With its last one the queue is forgotten first.
pub(crate) fn release_queue<R>(real: impl FnOnce() -> R, queue: Handle) -> R {
    forward_once(real, |_| {
        let Some(runtime) = runtime() else { return };
        if runtime.with(queue.addr(), |tracked| tracked.is_some_and(TrackedQueue::release)) {
            runtime.untrack(queue.addr());
        }
    })
}

/// A launch waits at the gate until it may go. One that `finishes` returns only when it is done, and all that was
/// launched before it; nobody asks about a queue that is not ours.
pub(crate) fn launch<R>(real: impl FnOnce() -> R, queue: Handle, finishes: impl FnOnce() -> bool) -> R {
    if !driver_callbacks::may_wait() {
        return real();
    }
    forward_once(real, |call| {
        with(
            queue,
            |tracked| if finishes() { tracked.launch_and_finish(call) } else { tracked.launch(call) },
        );
    })
}

/// A launch on several queues at once passes all their gates.
pub(crate) fn launch_on_all<R>(real: impl FnOnce() -> R, queues: &[Handle]) -> R {
    if let [queue] = queues {
        return launch(real, *queue, || false);
    }
    let Some(runtime) = runtime().filter(|_| driver_callbacks::may_wait()) else { return real() };
    forward_once(real, |call| {
        let mut keys: Vec<_> = queues.iter().map(|queue| queue.addr()).collect();
        keys.sort_unstable();
        keys.dedup();
        pass_gates(&keys.into_iter().filter_map(|key| runtime.joined(key)).collect::<Vec<_>>(), call);
    })
}

/// Calls `go` once all queues let it.
pub(crate) fn pass_gates(queues: &[Arc<ScheduledQueue>], go: &mut dyn FnMut()) {
    match queues.split_first() {
        None => go(),
        Some((first, others)) => first.launch(|| pass_gates(others, go)),
    }
}

/// A launch also on a queue that was made before we were there, or by the parent of this process. It is known by its
/// address, or by what else tells it from others.
pub(crate) fn launch_and_track<R, H: VendorQueue + 'static>(
    real: impl FnOnce() -> R,
    key: usize,
    take: impl FnOnce() -> Option<H>,
) -> R {
    let Some(runtime) = runtime() else { return real() };
    forward_once(real, |call| {
        let known = runtime.with(key, |tracked| tracked.map(|tracked| tracked.launch(call)).is_some());
        if !known && runtime.track(key, take) {
            runtime.with(key, |tracked| tracked.map(|tracked| tracked.launch(call)));
        }
    })
}

/// `real` waits for the queue, which may have become idle when it returns.
pub(crate) fn synchronize<R>(real: impl FnOnce() -> R, queue: Handle) -> R {
    forward_once(real, |call| with(queue, |tracked| tracked.synchronize(call)))
}

fn with(queue: Handle, work: impl FnOnce(&TrackedQueue)) {
    if let Some(runtime) = runtime() {
        runtime.with(queue.addr(), |tracked| tracked.map(work));
    }
}
