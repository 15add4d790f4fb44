//! Events. A wait for an event that is not recorded yet lasts until it is.

use xsched_standin_streams::object::{self, Handle, Object, get};

use crate::stream::{Command, StreamHandle, find};
use crate::{Code, INVALID_PARAMETER, acl, context, write};

#[derive(Default)]
pub(crate) struct Event(pub(crate) xsched_standin_streams::Event);

impl Object for Event {
    const TAG: u64 = u64::from_le_bytes(*b"acl evnt");
    const INVALID: Code = INVALID_PARAMETER;
}

type EventHandle = *const Handle<Event>;

acl! {
    fn aclrtCreateEvent(out: *mut EventHandle) {
        context::current()?;
        // SAFETY: as the vendor's headers demand.
        unsafe { object::create(out, Event::default()) }
    }
    // SAFETY: as the vendor's headers demand.
    fn aclrtDestroyEvent(event: EventHandle) { unsafe { object::destroy(event) } }
    fn aclrtRecordEvent(event: EventHandle, stream: StreamHandle) {
        // SAFETY: as the vendor's headers demand.
        let (event, stream) = unsafe { (get(event)?, find(stream)?) };
        event.object.0.reset();
        stream.object.submit(Command::Record(event))
    }
    fn aclrtResetEvent(event: EventHandle, stream: StreamHandle) {
        // SAFETY: as the vendor's headers demand.
        unsafe { find(stream)?.object.submit(Command::Reset(get(event)?)) }
    }
    fn aclrtStreamWaitEvent(stream: StreamHandle, event: EventHandle) {
        // SAFETY: as the vendor's headers demand.
        unsafe { find(stream)?.object.submit(Command::Wait(get(event)?)) }
    }
    fn aclrtQueryEventStatus(event: EventHandle, status: *mut i32) {
        // SAFETY: as the vendor's headers demand.
        unsafe { write(status, i32::from(get(event)?.object.0.is_complete())) }
    }
    fn aclrtSynchronizeEvent(event: EventHandle) {
        // SAFETY: as the vendor's headers demand.
        unsafe { get(event) }?.object.0.wait();
        Ok(())
    }
}
