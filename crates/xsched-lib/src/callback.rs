//! The program's own functions that a vendor's thread calls.
//!
//! The thread may be the one that runs the device's commands, as it is in `PoCL`. A launch from there must not be held:
//! the queue could not come to where it is let go again. So what is called from there counts as called by the vendor.

use std::ffi::c_void;

use xsched_interpose::Outermost;

/// Called with a handle, a status, and what the program gave along.
pub(crate) type Callback = unsafe extern "C" fn(*mut c_void, i32, *mut c_void);

/// What the program wants called, and with what.
struct Wanted {
    callback: Callback,
    data: *mut c_void,
}

/// Has `ask` ask the vendor to call a function of ours, once, which calls the program's. `ask` answers whether the
/// vendor will.
pub(crate) fn wrap(callback: Callback, data: *mut c_void, ask: impl FnOnce(Callback, *mut c_void) -> bool) {
    let wanted = Box::into_raw(Box::new(Wanted { callback, data }));
    if !ask(call, wanted.cast()) {
        // SAFETY: made above; the vendor refused it.
        drop(unsafe { Box::from_raw(wanted) });
    }
}

unsafe extern "C" fn call(handle: *mut c_void, status: i32, wanted: *mut c_void) {
    // SAFETY: made in `wrap`; the vendor calls this once for each time it was asked to.
    let Wanted { callback, data } = *unsafe { Box::from_raw(wanted.cast::<Wanted>()) };
    let _outermost = Outermost::enter();
    // SAFETY: as the program wanted it.
    unsafe { callback(handle, status, data) };
}
