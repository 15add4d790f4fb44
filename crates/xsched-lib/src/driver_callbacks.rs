//! The program's own functions that a vendor's thread calls.
//!
//! The thread may be the one that runs the device's commands, as it is in `PoCL`. A launch from there must not be held:
//! the queue could not come to where it is let go again.

use std::cell::Cell;
use std::ffi::c_void;

use xsched_interpose::outside_hooks;

thread_local! {
    /// Within a function that the vendor calls for the program.
    static CALLED: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread may be held.
pub(crate) fn may_block() -> bool {
    CALLED.try_with(|called| !called.get()).unwrap_or(false)
}

/// Called with a handle, a status, and what the program gave along.
pub(crate) type Callback = unsafe extern "C" fn(*mut c_void, i32, *mut c_void);

/// What the program wants called, and with what.
struct Wanted {
    callback: Callback,
    data: *mut c_void,
}

/// Has `ask` ask the vendor to call a function of ours, once, which calls the program's. `ask` answers with the vendor's
/// code, which is 0 if it will; where there is nobody to ask, or nothing to call, `real` passes on what the program wants.
pub(crate) fn wrap(
    real: impl FnOnce() -> i32,
    callback: Option<Callback>,
    data: *mut c_void,
    ask: impl FnOnce(Callback, *mut c_void) -> Option<i32>,
) -> i32 {
    let Some(callback) = callback else { return real() };
    let wanted = Box::into_raw(Box::new(Wanted { callback, data }));
    // It may be called at once, on this thread.
    let code = outside_hooks(|| ask(call, wanted.cast()));
    if code != Some(0) {
        // SAFETY: made above; the vendor refused it.
        drop(unsafe { Box::from_raw(wanted) });
    }
    code.unwrap_or_else(real)
}

unsafe extern "C" fn call(handle: *mut c_void, status: i32, wanted: *mut c_void) {
    // SAFETY: made in `wrap`; the vendor calls this once for each time it was asked to.
    let Wanted { callback, data } = *unsafe { Box::from_raw(wanted.cast::<Wanted>()) };
    let before = CALLED.try_with(|called| called.replace(true));
    // SAFETY: as the program wanted it. It is C's, and does not unwind.
    unsafe { callback(handle, status, data) };
    let _ = before.and_then(|before| CALLED.try_with(|called| called.set(before)));
}
