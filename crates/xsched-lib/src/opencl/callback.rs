//! The program's own functions that a vendor's thread calls when an event is done.
//!
//! The thread may be the one that runs the device's commands, as it is in `PoCL`. A launch from there must not be held:
//! the queue could not come to where it is let go again. So what is called from there counts as called by the vendor.

use std::ffi::c_void;

use xsched_interpose::Outermost;

use super::vendor::{self, Callback, Code, Event};

/// What the program wants called, and with what.
struct Wanted {
    callback: Callback,
    data: *mut c_void,
}

pub(crate) fn set(
    real: impl FnOnce() -> Code,
    event: Event,
    status: i32,
    callback: Option<Callback>,
    data: *mut c_void,
) -> Code {
    let (Some(callback), Some(set)) = (callback, vendor::SET_CALLBACK.get()) else { return real() };
    let wanted = Box::into_raw(Box::new(Wanted { callback, data }));
    // SAFETY: the caller's own arguments, but that its function is called by ours.
    let code = unsafe { set(event, status, Some(call), wanted.cast()) };
    if code != vendor::SUCCESS {
        // SAFETY: made above; the vendor refused it.
        drop(unsafe { Box::from_raw(wanted) });
    }
    code
}

unsafe extern "C" fn call(event: Event, status: i32, wanted: *mut c_void) {
    // SAFETY: made in `set`; the vendor calls this once for each time it was asked to.
    let Wanted { callback, data } = *unsafe { Box::from_raw(wanted.cast::<Wanted>()) };
    let _outermost = Outermost::enter();
    // SAFETY: as the program wanted it.
    unsafe { callback(event, status, data) };
}
