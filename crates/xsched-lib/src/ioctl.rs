//! The system's `ioctl`, hooked: drivers are asked for everything through it, and some of it is worth knowing.

use std::ffi::{c_int, c_ulong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Sees a call after the system has answered it: descriptor, request, argument and answer.
///
/// The caller's thread is in it: no lock that is held elsewhere during an `ioctl`, and nothing that can fail.
pub(crate) type Watcher = unsafe fn(c_int, c_ulong, *mut c_void, c_int);

/// Those who watch, one for each platform that wants to.
static WATCHERS: [Watcher; 2] = [crate::platforms::cuda::watch_ioctl, crate::platforms::hip::watch_ioctl];

type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;
static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The system's own.
pub(crate) fn real() -> Ioctl {
    let mut found = REAL.load(Ordering::Acquire);
    if found.is_null() {
        // SAFETY: both are C strings; `ioctl` is libc's, which comes after us.
        found = unsafe { crate::loader::real_dlsym()(libc::RTLD_NEXT, c"ioctl".as_ptr()) };
        REAL.store(found, Ordering::Release);
    }
    // SAFETY: libc's `ioctl` takes a third argument of pointer size.
    unsafe { std::mem::transmute::<*mut c_void, Ioctl>(found) }
}

/// Has the calls answered by somebody else than the system.
#[cfg(test)]
pub(crate) fn answer_with(ioctl: *mut c_void) {
    REAL.store(ioctl, Ordering::Release);
}

/// Lets every call go by, and shows it to those who watch.
///
/// # Safety
/// As the system's function of this name demands.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: the caller's own arguments.
    let answer = unsafe { real()(fd, request, argument) };
    for watch in WATCHERS.iter().filter(|_| !crate::duplicate_library::is_inactive_duplicate()) {
        // SAFETY: the arguments of a call that the system has just answered.
        unsafe { watch(fd, request, argument, answer) };
    }
    answer
}
