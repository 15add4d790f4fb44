//! Events.

use std::collections::HashMap;
use std::ffi::{c_uint, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use xsched_core::Marker;

use crate::capture::Node;
use crate::device::{HwQueue, current, write_out};
use crate::error::{Code, INVALID_HANDLE, NOT_READY, to_code};
use crate::stream::{self, Stream};

pub(crate) type Handle = *mut c_void;

pub(crate) struct Event {
    device: usize,
    last_record: Mutex<Option<(Arc<HwQueue>, Marker)>>,
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
    fn last_record(&self) -> Option<(Arc<HwQueue>, Marker)> {
        self.last_record.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes later commands of the stream wait for the event.
    pub(crate) fn make_wait(&self, stream: &Stream) -> Result<(), Code> {
        match self.last_record() {
            Some((queue, marker)) if !Arc::ptr_eq(&queue, &stream.queue) => {
                stream.queue.wait_for(&queue, marker)
            }
            _ => Ok(()),
        }
    }
}

pub(crate) extern "C" fn create_with_flags(out: *mut Handle, _flags: c_uint) -> Code {
    to_code(current().and_then(|device| {
        let event = Arc::new(Event { device: device.number, last_record: Mutex::default() });
        let handle = Arc::as_ptr(&event).cast_mut().cast::<c_void>();
        write_out(out, handle)?;
        events().write().unwrap_or_else(PoisonError::into_inner).insert(handle.addr(), event);
        Ok(())
    }))
}

pub(crate) extern "C" fn create(out: *mut Handle) -> Code {
    create_with_flags(out, 0)
}

pub(crate) extern "C" fn destroy(handle: Handle) -> Code {
    let removed = events().write().unwrap_or_else(PoisonError::into_inner).remove(&handle.addr());
    to_code(removed.map(drop).ok_or(INVALID_HANDLE))
}

pub(crate) extern "C" fn record(handle: Handle, stream: stream::Handle) -> Code {
    to_code(get(handle).and_then(|event| {
        let stream = stream::get(stream)?;
        if event.device != stream.device.number {
            return Err(INVALID_HANDLE);
        }
        if stream.record(Node::Event) {
            return Ok(());
        }
        let last_record = (Arc::clone(&stream.queue), stream.queue.mark()?);
        *event.last_record.lock().unwrap_or_else(PoisonError::into_inner) = Some(last_record);
        Ok(())
    }))
}

pub(crate) extern "C" fn record_spt(handle: Handle, stream: stream::Handle) -> Code {
    record(handle, stream::per_thread(stream))
}

pub(crate) extern "C" fn query(handle: Handle) -> Code {
    to_code(get(handle).and_then(|event| match event.last_record() {
        Some((queue, marker)) if !queue.is_past(marker) => Err(NOT_READY),
        _ => Ok(()),
    }))
}

pub(crate) extern "C" fn synchronize(handle: Handle) -> Code {
    to_code(
        get(handle)
            .and_then(|event| event.last_record().map_or(Ok(()), |(queue, marker)| queue.wait(marker))),
    )
}
