//! The driver's interface for system software: markers, and preemption of a queue.

use std::time::Duration;

use xsched_core::{HwQueue as _, Level};

use crate::failure::{Code, Failure, to_code};
use crate::handle::{self, Handle};
use crate::queue::{Queue, write_out};

/// The id of the device that a queue belongs to.
///
/// # Safety
/// `queue` came from `xsim_queue_create`; `device` is null or is valid for a write of a number.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_queue_device(queue: *mut Handle<Queue>, device: *mut u64) -> Code {
    // SAFETY: the caller guarantees that both are valid.
    to_code(|| unsafe { write_out(device, handle::get(queue)?.0.sim.device().0) })
}

/// What stopping and restoring costs at levels 2 and 3.
///
/// # Safety
/// `queue` came from `xsim_queue_create`; `costs` is null or is valid for a write of four numbers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_queue_levels(queue: *mut Handle<Queue>, costs: *mut u64) -> Code {
    to_code(|| {
        // SAFETY: the caller guarantees that the handle is valid.
        let sim = &unsafe { handle::get(queue) }?.0.sim;
        // After fork, a child has a copy of the costs, but its parent's queues are invalid in it.
        sim.pending()?;
        for (index, level) in [Level::Deactivate, Level::Interrupt].into_iter().enumerate() {
            let cost = sim.capabilities().cost(level);
            let (preempt, restore) =
                cost.map_or((u64::MAX, u64::MAX), |cost| (cost.preempt.0, cost.restore.0));
            // SAFETY: the caller guarantees room for four numbers; the first `write_out` rejects a null pointer.
            unsafe {
                write_out(costs.wrapping_add(2 * index), preempt)?;
                write_out(costs.wrapping_add(2 * index + 1), restore)?;
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
    // SAFETY: the caller guarantees that both are valid.
    to_code(|| unsafe { write_out(marker, handle::get(queue)?.0.mark()?) })
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
    to_code(|| {
        // SAFETY: the caller guarantees that the handle is valid.
        let progress = unsafe { handle::get(queue) }?.0.sim.progress();
        // SAFETY: the caller guarantees that both pointers are valid.
        unsafe {
            write_out(marker, progress.marker)?;
            write_out(at, progress.at.unwrap_or_default().0)
        }
    })
}

/// Waits until a marker has been reported or the timeout has passed.
///
/// # Safety
/// As for [`xsim_queue_device`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_queue_wait(
    queue: *mut Handle<Queue>,
    marker: u64,
    timeout_ns: u64,
) -> Code {
    to_code(|| {
        // SAFETY: the caller guarantees that the handle is valid.
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
    to_code(|| {
        let level = Level::from_number(level.into()).filter(|level| *level > Level::Block);
        let level =
            level.ok_or_else(|| Failure::new(Code::InvalidValue, "the preemption level must be 2 or 3"))?;
        // SAFETY: the caller guarantees that the handle is valid.
        Ok(unsafe { handle::get(queue) }?.0.sim.preempt(level)?)
    })
}

/// Restores a queue.
///
/// # Safety
/// As for [`xsim_queue_device`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_queue_restore(queue: *mut Handle<Queue>) -> Code {
    // SAFETY: the caller guarantees that the handle is valid.
    to_code(|| Ok(unsafe { handle::get(queue) }?.0.sim.restore()?))
}
