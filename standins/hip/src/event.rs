//! Events: places in a stream.

use std::collections::HashMap;
use std::ffi::{c_uint, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use xsched_core::Marker;

use crate::capture::Node;
use crate::device::{HwQueue, current, put};
use crate::error::{Code, INVALID_HANDLE, NOT_READY, answer};
use crate::stream::{self, Stream};

pub(crate) type Handle = *mut c_void;

pub(crate) struct Event {
    device: usize,
    place: Mutex<Option<(Arc<HwQueue>, Marker)>>,
}

static EVENTS: OnceLock<RwLock<HashMap<usize, Arc<Event>>>> = OnceLock::new();

fn events() -> &'static RwLock<HashMap<usize, Arc<Event>>> {
    EVENTS.get_or_init(RwLock::default)
}

pub(crate) fn get(handle: Handle) -> Result<Arc<Event>, Code> {
    let events = events().read().unwrap_or_else(PoisonError::into_inner);
    events.get(&handle.addr()).cloned().ok_or(INVALID_HANDLE)
}

impl Event {
    fn place(&self) -> Option<(Arc<HwQueue>, Marker)> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What comes later in the stream waits until the place is reached.
    pub(crate) fn hold_back(&self, stream: &Stream) -> Result<(), Code> {
        match self.place() {
            Some((queue, marker)) if !Arc::ptr_eq(&queue, &stream.queue) => {
                stream.queue.wait_for(&queue, marker)
            }
            _ => Ok(()),
        }
    }
}

pub(crate) extern "C" fn create_with_flags(place: *mut Handle, _flags: c_uint) -> Code {
    answer(current().and_then(|device| {
        let event = Arc::new(Event { device: device.number, place: Mutex::default() });
        let handle = Arc::as_ptr(&event).cast_mut().cast::<c_void>();
        put(place, handle)?;
        events().write().unwrap_or_else(PoisonError::into_inner).insert(handle.addr(), event);
        Ok(())
    }))
}

pub(crate) extern "C" fn create(place: *mut Handle) -> Code {
    create_with_flags(place, 0)
}

pub(crate) extern "C" fn destroy(handle: Handle) -> Code {
    let gone = events().write().unwrap_or_else(PoisonError::into_inner).remove(&handle.addr());
    answer(gone.map(drop).ok_or(INVALID_HANDLE))
}

pub(crate) extern "C" fn record(handle: Handle, stream: stream::Handle) -> Code {
    answer(get(handle).and_then(|event| {
        let stream = stream::get(stream)?;
        if event.device != stream.device.number {
            return Err(INVALID_HANDLE);
        }
        if stream.record(Node::Event) {
            return Ok(());
        }
        let place = (Arc::clone(&stream.queue), stream.queue.mark()?);
        *event.place.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
        Ok(())
    }))
}

pub(crate) extern "C" fn record_own(handle: Handle, stream: stream::Handle) -> Code {
    record(handle, stream::own(stream))
}

pub(crate) extern "C" fn query(handle: Handle) -> Code {
    answer(get(handle).and_then(|event| match event.place() {
        Some((queue, marker)) if !queue.is_past(marker) => Err(NOT_READY),
        _ => Ok(()),
    }))
}

pub(crate) extern "C" fn synchronize(handle: Handle) -> Code {
    answer(get(handle).and_then(|event| event.place().map_or(Ok(()), |(queue, marker)| queue.wait(marker))))
}
