//! Events.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use xsched_core::{HwQueue as _, Marker};

use crate::failure::{Code, Failure, to_code};
use crate::handle::{self, Handle, Object};
use crate::queue::{Inner, Queue};

/// An event: the queue and marker where it was last recorded.
#[derive(Default)]
pub(crate) struct Event(Mutex<Option<(Arc<Inner>, Marker)>>);

impl Object for Event {
    const MAGIC: u64 = u64::from_le_bytes(*b"xsimevnt");
}

impl Event {
    fn last_record(&self) -> Option<(Arc<Inner>, Marker)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Creates an event.
///
/// # Safety
/// `event` is null or is valid for a write.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_event_create(event: *mut *mut Handle<Event>) -> Code {
    // SAFETY: the caller guarantees that `event` is valid.
    to_code(|| unsafe { handle::create(event, Event::default()) })
}

/// Destroys an event.
///
/// # Safety
/// `event` came from [`xsim_event_create`] and is not used any more.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_event_destroy(event: *mut Handle<Event>) -> Code {
    // SAFETY: the caller guarantees that the handle is valid.
    to_code(|| unsafe { handle::destroy(event) }.map(drop))
}

/// Records the event on a queue.
///
/// # Safety
/// Both handles are valid.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_event_record(
    event: *mut Handle<Event>,
    queue: *mut Handle<Queue>,
) -> Code {
    to_code(|| {
        // SAFETY: the caller guarantees that both handles are valid.
        let (event, queue) = unsafe { (handle::get(event)?, handle::get(queue)?) };
        let last_record = (Arc::clone(&queue.0), queue.0.mark()?);
        *event.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(last_record);
        Ok(())
    })
}

/// Whether the last recording has completed.
///
/// # Safety
/// The handle is valid.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_event_query(event: *mut Handle<Event>) -> Code {
    to_code(|| {
        // SAFETY: the caller guarantees that the handle is valid.
        match unsafe { handle::get(event) }?.last_record() {
            Some((queue, marker)) if queue.sim.progress().marker < marker => Err(Failure::not_ready()),
            _ => Ok(()),
        }
    })
}

/// Waits until the last recording has completed.
///
/// # Safety
/// The handle is valid.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_event_synchronize(event: *mut Handle<Event>) -> Code {
    to_code(|| {
        // SAFETY: the caller guarantees that the handle is valid.
        if let Some((queue, marker)) = unsafe { handle::get(event) }?.last_record() {
            while !queue.sim.wait(marker, Duration::from_secs(3600))? {}
        }
        Ok(())
    })
}

/// Makes what is launched on the queue after this wait until the last recording has completed.
///
/// # Safety
/// Both handles are valid.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_queue_wait_event(
    queue: *mut Handle<Queue>,
    event: *mut Handle<Event>,
) -> Code {
    to_code(|| {
        // SAFETY: the caller guarantees that both handles are valid.
        let (queue, event) = unsafe { (handle::get(queue)?, handle::get(event)?) };
        match event.last_record() {
            Some((other, marker)) if !Arc::ptr_eq(&other, &queue.0) => {
                Ok(queue.0.sim.wait_for(&other.sim, marker)?)
            }
            _ => Ok(()),
        }
    })
}
