//! A stream as a hardware queue. Its markers are events of the library's own.
//!
//! Events and streams of different contexts cannot be used together. The library's threads have the global context, so the stream's is made
//! current for each event.

use xsched_core::{DeviceId, DeviceKind};
use xsched_interpose::Handle;

use super::vendor::{self, Context, Event, Stream};
use crate::event_queue::{EventApi, EventQueue};
use crate::hooks::call;
use crate::object_table::ObjectTable;

/// The contexts of the tracked streams.
pub(crate) static STREAMS: ObjectTable<Context> = ObjectTable::new();

/// Opens a stream of the current context.
pub(crate) fn open(stream: Stream) -> Option<EventQueue<Vpi>> {
    let mut context = Handle::NONE;
    // SAFETY: `context` has room for a handle.
    unsafe { call!(vendor::CURRENT_CONTEXT, &raw mut context) }.ok()?;
    STREAMS.record(stream.addr(), context);
    let name = "NVIDIA VPI".to_owned();
    let device = DeviceId::named(DeviceKind::Asic, &name);
    Some(EventQueue::new(stream, device, name, "VPI cannot stop a stream"))
}

/// The vendor's functions for events.
pub(crate) struct Vpi;

impl EventApi for Vpi {
    fn record(stream: Stream) -> Result<Event, String> {
        let context = STREAMS.get(stream.addr()).ok_or("the stream was destroyed")?;
        let mut event = Handle::NONE;
        // SAFETY: the caller keeps the stream from being destroyed, and so its context.
        unsafe { call!(vendor::PUSH_CONTEXT, context) }?;
        // SAFETY: `event` has room for a handle.
        let created = unsafe { call!(vendor::CREATE_EVENT, 0, &raw mut event) };
        // SAFETY: pushed above; null means that the popped context is not returned.
        let _ = unsafe { call!(vendor::POP_CONTEXT, std::ptr::null_mut()) };
        created?;
        // SAFETY: the caller keeps the stream from being destroyed; the event was just created.
        let recorded = unsafe { call!(vendor::RECORD_EVENT, event, stream) };
        recorded.map(|()| event).inspect_err(|_| Self::release(event))
    }

    fn is_complete(event: Event) -> bool {
        let mut state = 0;
        // SAFETY: an event that `record` returned and that is not released; `state` has room for a number.
        unsafe { call!(vendor::QUERY_EVENT, event, &raw mut state) }.is_ok() && state == vendor::SIGNALED
    }

    fn release(event: Event) {
        if let Some(destroy) = vendor::DESTROY_EVENT.get() {
            // SAFETY: an event that `record` returned, which the caller releases once.
            unsafe { destroy(event) };
        }
    }

    fn synchronize(stream: Stream) -> Result<(), String> {
        // SAFETY: the caller keeps the stream from being destroyed.
        unsafe { call!(vendor::SYNCHRONIZE, stream) }
    }
}
