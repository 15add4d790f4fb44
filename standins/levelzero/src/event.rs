//! Events and fences: flags that commands and the host set, reset and wait for.

use std::ffi::c_void;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::object::{self, Handle, Object};
use crate::{Code, NOT_READY, to_code};

#[derive(Default)]
pub(crate) struct Event {
    is_signaled: Mutex<bool>,
    changed: Condvar,
}

impl Object for Event {
    const TAG: u64 = u64::from_le_bytes(*b"ze event");
}

impl Event {
    fn state(&self) -> MutexGuard<'_, bool> {
        self.is_signaled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, is_signaled: bool) {
        *self.state() = is_signaled;
        self.changed.notify_all();
    }

    /// Waits until it is signaled, for at most so many nanoseconds; returns whether it is.
    pub(crate) fn wait(&self, timeout: u64) -> bool {
        let state = self.state();
        if timeout == u64::MAX {
            let waited = self.changed.wait_while(state, |is_signaled| !*is_signaled);
            return *waited.unwrap_or_else(PoisonError::into_inner);
        }
        let timeout = Duration::from_nanos(timeout);
        let waited = self.changed.wait_timeout_while(state, timeout, |is_signaled| !*is_signaled);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

struct Pool;

impl Object for Pool {
    const TAG: u64 = u64::from_le_bytes(*b"ze epool");
}

pub(crate) unsafe extern "C" fn create_pool(
    _context: *const c_void,
    _description: *const c_void,
    _count: u32,
    _devices: *const c_void,
    out: *mut *const c_void,
) -> Code {
    // SAFETY: the program passes room for a handle.
    to_code(unsafe { object::create(out.cast::<*const Handle<Pool>>(), Pool) })
}

pub(crate) unsafe extern "C" fn destroy_pool(pool: *const c_void) -> Code {
    // SAFETY: the program passes a handle from `create_pool`.
    to_code(unsafe { object::destroy(pool.cast::<Handle<Pool>>()) })
}

pub(crate) unsafe extern "C" fn create(
    pool: *const c_void,
    _description: *const c_void,
    out: *mut *const Handle<Event>,
) -> Code {
    // SAFETY: the program passes a handle from `create_pool`, and room for a handle.
    to_code(unsafe {
        object::get(pool.cast::<Handle<Pool>>()).and_then(|_| object::create(out, Event::default()))
    })
}

pub(crate) unsafe extern "C" fn destroy(event: *const Handle<Event>) -> Code {
    // SAFETY: the program passes a handle from `create`.
    to_code(unsafe { object::destroy(event) })
}

pub(crate) unsafe extern "C" fn signal(event: *const Handle<Event>) -> Code {
    // SAFETY: as above.
    to_code(unsafe { object::get(event) }.map(|event| event.object.set(true)))
}

pub(crate) unsafe extern "C" fn reset(event: *const Handle<Event>) -> Code {
    // SAFETY: as above.
    to_code(unsafe { object::get(event) }.map(|event| event.object.set(false)))
}

pub(crate) unsafe extern "C" fn synchronize(event: *const Handle<Event>, timeout: u64) -> Code {
    // SAFETY: as above.
    let event = unsafe { object::get(event) };
    to_code(event.and_then(|event| event.object.wait(timeout).then_some(()).ok_or(NOT_READY)))
}

pub(crate) unsafe extern "C" fn query(event: *const Handle<Event>) -> Code {
    // SAFETY: as above.
    unsafe { synchronize(event, 0) }
}
