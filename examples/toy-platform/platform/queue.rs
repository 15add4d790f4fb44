//! A queue of libtoy as a hardware queue. Its markers are events of the vendor.

use xsched_core::{DeviceId, DeviceKind};
use xsched_interpose::Handle;

use super::vendor::{self, Event, Queue};
use crate::event_queue::{EventApi, EventQueue};
use crate::hooks::call;

/// Opens a queue that the program created.
pub(crate) fn open(queue: Queue) -> Option<EventQueue<Toy>> {
    let name = "toy device".to_owned();
    let device = DeviceId::named(DeviceKind::Unknown, &name);
    Some(EventQueue::new(queue, device, name, "libtoy cannot stop a kernel"))
}

/// The vendor's functions for events.
pub(crate) struct Toy;

impl EventApi for Toy {
    fn record(queue: Queue) -> Result<Event, String> {
        let mut event = Handle::NONE;
        // SAFETY: the caller keeps the queue from being destroyed; `event` has room for a handle.
        unsafe { call!(vendor::EVENT_RECORD, queue, &raw mut event) }.map(|()| event)
    }

    fn is_complete(event: Event) -> bool {
        // SAFETY: an event that `record` returned and that is not released.
        unsafe { call!(vendor::EVENT_QUERY, event) }.is_ok()
    }

    fn release(event: Event) {
        // SAFETY: an event that `record` returned, which the caller releases once.
        let _ = unsafe { call!(vendor::EVENT_DESTROY, event) };
    }

    fn synchronize(queue: Queue) -> Result<(), String> {
        // SAFETY: the caller keeps the queue from being destroyed.
        unsafe { call!(vendor::SYNCHRONIZE, queue) }
    }
}
