//! Functions of the program that a thread of the vendor's driver calls.
//!
//! In some implementations, such as `PoCL`, that thread runs the commands of the device. A launch from it must not be held: the
//! queue could not reach the point at which it is resumed.

use std::cell::Cell;
use std::ffi::c_void;

use xsched_interpose::outside_hooks;

thread_local! {
    /// The thread is inside a function that the driver called.
    static IS_IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread may be held at a gate.
pub(crate) fn may_block() -> bool {
    IS_IN_CALLBACK.try_with(|is_in_callback| !is_in_callback.get()).unwrap_or(false)
}

/// The program's function, which receives a handle, a status, and the program's pointer.
pub(crate) type Callback = unsafe extern "C" fn(*mut c_void, i32, *mut c_void);

/// The program's function and its pointer.
struct ProgramCallback {
    callback: Callback,
    data: *mut c_void,
}

/// Registers a callback that calls the program's one. `register` registers it with the vendor and returns the vendor's code,
/// 0 if it was accepted, or none if the vendor's function is unknown. In that case, or if the program passed no callback,
/// `real` registers what the program passed.
pub(crate) fn wrap(
    real: impl FnOnce() -> i32,
    callback: Option<Callback>,
    data: *mut c_void,
    register: impl FnOnce(Callback, *mut c_void) -> Option<i32>,
) -> i32 {
    let Some(callback) = callback else { return real() };
    let wrapped = Box::into_raw(Box::new(ProgramCallback { callback, data }));
    // The vendor may call it at once, on this thread.
    let code = outside_hooks(|| register(call_program, wrapped.cast()));
    if code != Some(0) {
        // SAFETY: allocated above; the vendor did not accept it.
        drop(unsafe { Box::from_raw(wrapped) });
    }
    code.unwrap_or_else(real)
}

unsafe extern "C" fn call_program(handle: *mut c_void, status: i32, wrapped: *mut c_void) {
    // SAFETY: allocated in `wrap`; the vendor calls this once for each registration.
    let ProgramCallback { callback, data } = *unsafe { Box::from_raw(wrapped.cast::<ProgramCallback>()) };
    let before = IS_IN_CALLBACK.try_with(|is_in_callback| is_in_callback.replace(true));
    // SAFETY: the arguments that the program registered the function for. It is a C function and does not unwind.
    unsafe { callback(handle, status, data) };
    let _ = before.and_then(|before| IS_IN_CALLBACK.try_with(|is_in_callback| is_in_callback.set(before)));
}
