//! What the driver offers to system software: markers, and stopping a queue.

use std::time::Duration;

use xsched_core::{HwQueue as _, Level};

use crate::failure::{Code, Failure, answer};
use crate::handle::{self, Handle};
use crate::queue::{Queue, put};

/// The number of the device a queue belongs to.
///
/// # Safety
/// `queue` came from `xsim_queue_create`; `device` is null or points at room for a number.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_queue_device(queue: *mut Handle<Queue>, device: *mut u64) -> Code {
    // SAFETY: the caller vouches for both.
    answer(|| unsafe { put(device, handle::get(queue)?.0.sim.device().0) })
}

/// What stopping and resuming costs at levels 2 and 3.
///
/// # Safety
/// `queue` came from `xsim_queue_create`; `costs` is null or points at room for four numbers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_queue_levels(queue: *mut Handle<Queue>, costs: *mut u64) -> Code {
    answer(|| {
        // SAFETY: the caller vouches for the handle.
        let sim = &unsafe { handle::get(queue) }?.0.sim;
        // A child has its parent's memory, and with it the costs, but not its queues.
        sim.pending()?;
        for (index, level) in [Level::Deactivate, Level::Interrupt].into_iter().enumerate() {
            let cost = sim.capabilities().cost(level);
            let (preempt, restore) =
                cost.map_or((u64::MAX, u64::MAX), |cost| (cost.preempt.0, cost.restore.0));
            // SAFETY: the caller vouches for four numbers; a null pointer is refused by the first `put`.
            unsafe {
                put(costs.wrapping_add(2 * index), preempt)?;
                put(costs.wrapping_add(2 * index + 1), restore)?;
            }
        }
        Ok(())
    })
}

/// Places a marker.
///
/// # Safety
/// As for [`xsim_queue_device`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_queue_mark(queue: *mut Handle<Queue>, marker: *mut u64) -> Code {
    // SAFETY: the caller vouches for both.
    answer(|| unsafe { put(marker, handle::get(queue)?.0.mark()?) })
}

/// The last marker that was reported, and when.
///
/// # Safety
/// As for [`xsim_queue_device`], for both pointers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_queue_progress(
    queue: *mut Handle<Queue>,
    marker: *mut u64,
    at: *mut u64,
) -> Code {
    answer(|| {
        // SAFETY: the caller vouches for the handle.
        let progress = unsafe { handle::get(queue) }?.0.sim.progress();
        // SAFETY: the caller vouches for both pointers.
        unsafe {
            put(marker, progress.marker)?;
            put(at, progress.at.unwrap_or_default().0)
        }
    })
}

/// Dependencies until a marker was reported or the time is up.
///
/// # Safety
/// As for [`xsim_queue_device`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_queue_wait(
    queue: *mut Handle<Queue>,
    marker: u64,
    timeout_ns: u64,
) -> Code {
    answer(|| {
        // SAFETY: the caller vouches for the handle.
        let sim = &unsafe { handle::get(queue) }?.0.sim;
        let reported = sim.wait(marker, Duration::from_nanos(timeout_ns))?;
        if reported { Ok(()) } else { Err(Failure::not_ready()) }
    })
}

/// Stops a queue at level 2 or 3.
///
/// # Safety
/// As for [`xsim_queue_device`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_queue_preempt(queue: *mut Handle<Queue>, level: u32) -> Code {
    answer(|| {
        let level = Level::from_number(level.into()).filter(|level| *level > Level::Block);
        let level = level.ok_or_else(|| Failure::new(Code::InvalidValue, "the level is 2 or 3"))?;
        // SAFETY: the caller vouches for the handle.
        Ok(unsafe { handle::get(queue) }?.0.sim.preempt(level)?)
    })
}

/// Lets a queue run on.
///
/// # Safety
/// As for [`xsim_queue_device`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_queue_restore(queue: *mut Handle<Queue>) -> Code {
    // SAFETY: the caller vouches for the handle.
    answer(|| Ok(unsafe { handle::get(queue) }?.0.sim.restore()?))
}
