//! Queues: launching and synchronizing.

use std::sync::Arc;
use std::time::Duration;

use xsched_core::{HwQueue as _, Marker};
use xsched_sim::SimQueue;

use crate::Device;
use crate::failure::{Code, Failure, to_code};
use crate::handle::{self, Handle, Object};

/// A queue. Events that were recorded on it keep a reference.
pub(crate) struct Queue(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) sim: SimQueue,
}

impl Object for Queue {
    const MAGIC: u64 = u64::from_le_bytes(*b"xsimqueu");
}

impl Inner {
    /// Places the next marker. Events are markers too.
    pub(crate) fn mark(&self) -> Result<Marker, Failure> {
        Ok(self.sim.mark()?)
    }
}

/// Creates a queue.
///
/// # Safety
/// `device` came from `xsim_open`; `queue` is null or is valid for a write.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_queue_create(
    device: *mut Handle<Device>,
    queue: *mut *mut Handle<Queue>,
) -> Code {
    to_code(|| {
        // SAFETY: the caller guarantees that the handle is valid.
        let sim = unsafe { handle::get(device) }?.0.queue()?;
        let inner = Inner { sim };
        // SAFETY: the caller guarantees that `queue` is valid.
        unsafe { handle::create(queue, Queue(Arc::new(inner))) }
    })
}

/// Destroys a queue. Its pending commands run to completion.
///
/// # Safety
/// `queue` came from [`xsim_queue_create`] and is not used any more.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_queue_destroy(queue: *mut Handle<Queue>) -> Code {
    // SAFETY: the caller guarantees that the handle is valid.
    to_code(|| unsafe { handle::destroy(queue) }.map(drop))
}

/// Launches a command that runs for `length_ns`.
///
/// # Safety
/// `queue` came from [`xsim_queue_create`] and was not destroyed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_launch(queue: *mut Handle<Queue>, length_ns: u64) -> Code {
    // SAFETY: the caller guarantees that the handle is valid.
    to_code(|| Ok(unsafe { handle::get(queue) }?.0.sim.launch(Duration::from_nanos(length_ns))?))
}

/// Waits until all launched commands have completed.
///
/// # Safety
/// As for [`xsim_launch`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_synchronize(queue: *mut Handle<Queue>) -> Code {
    to_code(|| {
        // SAFETY: the caller guarantees that the handle is valid.
        let queue = unsafe { handle::get(queue) }?;
        // Gives a more specific error than synchronizing would.
        queue.0.sim.pending()?;
        Ok(queue.0.sim.synchronize()?)
    })
}

/// Whether all launched commands have completed.
///
/// # Safety
/// As for [`xsim_launch`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_query(queue: *mut Handle<Queue>) -> Code {
    to_code(|| {
        // SAFETY: the caller guarantees that the handle is valid.
        let pending = unsafe { handle::get(queue) }?.0.sim.pending()?;
        if pending == 0 { Ok(()) } else { Err(Failure::not_ready()) }
    })
}

/// How many launched commands have completed.
///
/// # Safety
/// As for [`xsim_launch`]; `commands` is null or is valid for a write of a number.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_finished(queue: *mut Handle<Queue>, commands: *mut u64) -> Code {
    to_code(|| {
        // SAFETY: the caller guarantees that the handle is valid.
        let finished = unsafe { handle::get(queue) }?.0.sim.finished()?;
        // SAFETY: the caller guarantees that `commands` is valid.
        unsafe { write_out(commands, finished) }
    })
}

/// Writes a result to an output parameter.
///
/// # Safety
/// `out` is null or valid for a write.
pub(crate) unsafe fn write_out(out: *mut u64, value: u64) -> Result<(), Failure> {
    if out.is_null() {
        return Err(Failure::new(Code::InvalidValue, "the pointer for the result is null"));
    }
    // SAFETY: not null, and the caller guarantees that it is valid.
    unsafe { out.write(value) };
    Ok(())
}
