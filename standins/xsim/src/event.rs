//! Events: places on a queue that can be waited for.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use xsched_core::{HwQueue as _, Marker};

use crate::failure::{Code, Failure, answer};
use crate::handle::{self, Handle, Object};
use crate::queue::{Inner, Queue};

/// An event: where it was last recorded.
#[derive(Default)]
pub(crate) struct Event(Mutex<Option<(Arc<Inner>, Marker)>>);

impl Object for Event {
    const MAGIC: u64 = u64::from_le_bytes(*b"xsimevnt");
}

impl Event {
    fn place(&self) -> Option<(Arc<Inner>, Marker)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Makes an event.
///
/// # Safety
/// `event` is null or points at room for a handle.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_event_create(event: *mut *mut Handle<Event>) -> Code {
    // SAFETY: the caller vouches for `event`.
    answer(|| unsafe { handle::give(event, Event::default()) })
}

/// Destroys an event.
///
/// # Safety
/// `event` came from [`xsim_event_create`] and nobody uses it any more.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_event_destroy(event: *mut Handle<Event>) -> Code {
    // SAFETY: the caller vouches for the handle.
    answer(|| unsafe { handle::take(event) }.map(drop))
}

/// Notes the place the queue has come to.
///
/// # Safety
/// Both handles are valid.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_event_record(
    event: *mut Handle<Event>,
    queue: *mut Handle<Queue>,
) -> Code {
    answer(|| {
        // SAFETY: the caller vouches for both handles.
        let (event, queue) = unsafe { (handle::get(event)?, handle::get(queue)?) };
        let place = (Arc::clone(&queue.0), queue.0.mark()?);
        *event.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
        Ok(())
    })
}

/// Whether the place last recorded has been reached.
///
/// # Safety
/// The handle is valid.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_event_query(event: *mut Handle<Event>) -> Code {
    answer(|| {
        // SAFETY: the caller vouches for the handle.
        match unsafe { handle::get(event) }?.place() {
            Some((queue, marker)) if queue.sim.progress().marker < marker => Err(Failure::not_ready()),
            _ => Ok(()),
        }
    })
}

/// Dependencies until the place last recorded has been reached.
///
/// # Safety
/// The handle is valid.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_event_synchronize(event: *mut Handle<Event>) -> Code {
    answer(|| {
        // SAFETY: the caller vouches for the handle.
        if let Some((queue, marker)) = unsafe { handle::get(event) }?.place() {
            while !queue.sim.wait(marker, Duration::from_secs(3600))? {}
        }
        Ok(())
    })
}

/// Holds back what is launched on the queue after this until the place last recorded has been reached.
///
/// # Safety
/// Both handles are valid.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_queue_wait_event(
    queue: *mut Handle<Queue>,
    event: *mut Handle<Event>,
) -> Code {
    answer(|| {
        // SAFETY: the caller vouches for both handles.
        let (queue, event) = unsafe { (handle::get(queue)?, handle::get(event)?) };
        match event.place() {
            Some((other, marker)) if !Arc::ptr_eq(&other, &queue.0) => {
                Ok(queue.0.sim.wait_for(&other.sim, marker)?)
            }
            _ => Ok(()),
        }
    })
}
