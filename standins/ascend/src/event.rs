//! Events. A wait for an event that is not recorded yet lasts until it is.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::object::{self, Handle, Object, get, write};
use crate::stream::{Command, StreamHandle, find};
use crate::{acl, context};

#[derive(Default)]
pub(crate) struct Event {
    is_complete: Mutex<bool>,
    changed: Condvar,
}

impl Object for Event {
    const TAG: u64 = u64::from_le_bytes(*b"acl evnt");
}

impl Event {
    fn is_complete(&self) -> MutexGuard<'_, bool> {
        self.is_complete.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn complete(&self) {
        *self.is_complete() = true;
        self.changed.notify_all();
    }

    pub(crate) fn reset(&self) {
        *self.is_complete() = false;
    }

    pub(crate) fn wait(&self) {
        drop(self.changed.wait_while(self.is_complete(), |is_complete| !*is_complete));
    }
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
        event.object.reset();
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
        unsafe { write(status, i32::from(*get(event)?.object.is_complete())) }
    }
    fn aclrtSynchronizeEvent(event: EventHandle) {
        // SAFETY: as the vendor's headers demand.
        unsafe { get(event) }?.object.wait();
        Ok(())
    }
}
