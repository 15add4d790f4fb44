//! What hooks of every platform do around the vendor's function. Handles are the vendor's, as numbers.

use xsched_interpose::{aside, forward_once};

use crate::callback;
use crate::station::{Leased, Station};
use crate::world::world;

/// A queue has been made: from now on it is scheduled, if `take` can make of it what the core needs. The program has
/// one hold on it.
pub(crate) fn created<H: Leased + 'static>(handle: usize, take: impl FnOnce() -> Option<H>) {
    aside(|| {
        let Some(world) = world() else { return };
        // A handle that is new stands for nothing we know: what had it before ended unseen.
        world.retire(handle);
        world.adopt(handle, take);
    });
}

/// The program takes another hold on a queue.
pub(crate) fn retained<R>(real: impl FnOnce() -> R, handle: usize) -> R {
    forward_once(real, |_| with(handle, Station::retain))
}

/// The program gives up a hold on a queue. With its last one the queue is forgotten first.
pub(crate) fn released<R>(real: impl FnOnce() -> R, handle: usize) -> R {
    forward_once(real, |_| {
        let Some(world) = world() else { return };
        if world.with(handle, |station| station.is_some_and(Station::release)) {
            world.retire(handle);
        }
    })
}

/// A launch waits at the gate until it may go.
pub(crate) fn launch<R>(real: impl FnOnce() -> R, handle: usize) -> R {
    if !callback::may_wait() {
        return real();
    }
    forward_once(real, |call| with(handle, |station| station.launch(call)))
}

/// The same, also for a queue that was made before we were there, or by the parent of this process.
pub(crate) fn launch_or_adopt<R, H: Leased + 'static>(
    real: impl FnOnce() -> R,
    handle: usize,
    take: impl FnOnce() -> Option<H>,
) -> R {
    let Some(world) = world() else { return real() };
    forward_once(real, |call| {
        let known = world.with(handle, |station| station.map(|station| station.launch(call)).is_some());
        if !known && world.adopt(handle, take) {
            world.with(handle, |station| station.map(|station| station.launch(call)));
        }
    })
}

/// The same as [`launch`] for a launch that returns only when it is done, and all that was launched before it.
pub(crate) fn launch_and_finish<R>(real: impl FnOnce() -> R, handle: usize) -> R {
    if !callback::may_wait() {
        return real();
    }
    forward_once(real, |call| with(handle, |station| station.launch_and_finish(call)))
}

/// `real` waits for the queue, which may have become idle when it returns.
pub(crate) fn synchronize<R>(real: impl FnOnce() -> R, handle: usize) -> R {
    forward_once(real, |call| with(handle, |station| station.synchronize(call)))
}

fn with(handle: usize, work: impl FnOnce(&Station)) {
    if let Some(world) = world() {
        world.with(handle, |station| station.map(work));
    }
}
