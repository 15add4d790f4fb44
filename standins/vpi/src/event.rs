//! Events. One that was never recorded is signaled.

use std::sync::Arc;

use xsched_standin_streams::object::{self, Handle, Object, get};

use crate::context::current;
use crate::stream::StreamHandle;
use crate::{Code, INVALID_ARGUMENT, INVALID_CONTEXT, vpi, vpi_void, write};

pub(crate) struct Event {
    /// The address of the context that it belongs to.
    context: usize,
    pub(crate) signal: xsched_standin_streams::Event,
}

impl Object for Event {
    const TAG: u64 = u64::from_le_bytes(*b"vpi evnt");
    const INVALID: Code = INVALID_ARGUMENT;
}

pub(crate) type EventHandle = *const Handle<Event>;

vpi! {
    fn vpiEventCreate(_flags: u64, out: *mut EventHandle) {
        let context = Arc::as_ptr(&current()).addr();
        // SAFETY: as the vendor's headers demand.
        unsafe { object::create(out, Event { context, signal: xsched_standin_streams::Event::completed() }) }
    }
    fn vpiEventRecord(event: EventHandle, stream: StreamHandle) {
        // SAFETY: as the vendor's headers demand.
        let (event, stream) = unsafe { (get(event)?, get(stream)?) };
        if event.object.context != stream.object.context {
            return Err(INVALID_CONTEXT);
        }
        event.object.signal.reset();
        stream.object.submit(move |_| event.object.signal.complete());
        stream.object.flush()
    }
    fn vpiEventSync(event: EventHandle) {
        // SAFETY: as the vendor's headers demand.
        unsafe { get(event) }?.object.signal.wait();
        Ok(())
    }
    fn vpiEventQuery(event: EventHandle, state: *mut i32) {
        // SAFETY: as the vendor's headers demand.
        unsafe { write(state, i32::from(get(event)?.object.signal.is_complete())) }
    }
}

vpi_void! {
    fn vpiEventDestroy(event: EventHandle) {
        // SAFETY: as the vendor's headers demand.
        let _ = unsafe { object::destroy(event) };
    }
}
