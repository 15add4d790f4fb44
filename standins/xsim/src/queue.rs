//! Queues: launching, waiting.

use std::sync::Arc;
use std::time::Duration;

use xsched_core::{HwQueue as _, Marker};
use xsched_sim::SimQueue;

use crate::Device;
use crate::failure::{Code, Failure, answer};
use crate::handle::{self, Handle, Object};

/// A queue. Events that were recorded on it keep it.
pub(crate) struct Queue(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) sim: SimQueue,
}

impl Object for Queue {
    const MAGIC: u64 = u64::from_le_bytes(*b"xsimqueu");
}

impl Inner {
    /// Places the next marker. Events are markers, too.
    pub(crate) fn mark(&self) -> Result<Marker, Failure> {
        Ok(self.sim.mark()?)
    }
}

/// Makes a queue.
///
/// # Safety
/// `device` came from `xsim_open`; `queue` is null or points at room for a handle.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_queue_create(
    device: *mut Handle<Device>,
    queue: *mut *mut Handle<Queue>,
) -> Code {
    answer(|| {
        // SAFETY: the caller vouches for the handle.
        let sim = unsafe { handle::get(device) }?.0.queue()?;
        let inner = Inner { sim };
        // SAFETY: the caller vouches for `queue`.
        unsafe { handle::give(queue, Queue(Arc::new(inner))) }
    })
}

/// Destroys a queue. What was launched runs to its end.
///
/// # Safety
/// `queue` came from [`xsim_queue_create`] and nobody uses it any more.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_queue_destroy(queue: *mut Handle<Queue>) -> Code {
    // SAFETY: the caller vouches for the handle.
    answer(|| unsafe { handle::take(queue) }.map(drop))
}

/// Launches a command that uses the device for so long.
///
/// # Safety
/// `queue` came from [`xsim_queue_create`] and was not destroyed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_launch(queue: *mut Handle<Queue>, length_ns: u64) -> Code {
    // SAFETY: the caller vouches for the handle.
    answer(|| Ok(unsafe { handle::get(queue) }?.0.sim.launch(Duration::from_nanos(length_ns))?))
}

/// Dependencies until everything launched has finished.
///
/// # Safety
/// As for [`xsim_launch`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_synchronize(queue: *mut Handle<Queue>) -> Code {
    answer(|| {
        // SAFETY: the caller vouches for the handle.
        let queue = unsafe { handle::get(queue) }?;
        // Says what is wrong in more detail than waiting would.
        queue.0.sim.pending()?;
        Ok(queue.0.sim.synchronize()?)
    })
}

/// Whether everything launched has finished.
///
/// # Safety
/// As for [`xsim_launch`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_query(queue: *mut Handle<Queue>) -> Code {
    answer(|| {
        // SAFETY: the caller vouches for the handle.
        let pending = unsafe { handle::get(queue) }?.0.sim.pending()?;
        if pending == 0 { Ok(()) } else { Err(Failure::not_ready()) }
    })
}

/// How many launched commands have run to their end.
///
/// # Safety
/// As for [`xsim_launch`]; `commands` is null or points at room for a number.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_finished(queue: *mut Handle<Queue>, commands: *mut u64) -> Code {
    answer(|| {
        // SAFETY: the caller vouches for the handle.
        let finished = unsafe { handle::get(queue) }?.0.sim.finished()?;
        // SAFETY: the caller vouches for `commands`.
        unsafe { put(commands, finished) }
    })
}

/// Writes an answer where the caller wants it.
///
/// # Safety
/// `out` is null or points at room for a number.
pub(crate) unsafe fn put(out: *mut u64, value: u64) -> Result<(), Failure> {
    if out.is_null() {
        return Err(Failure::new(Code::InvalidValue, "no place to put the answer"));
    }
    // SAFETY: not null, and the caller vouches for the room.
    unsafe { out.write(value) };
    Ok(())
}
