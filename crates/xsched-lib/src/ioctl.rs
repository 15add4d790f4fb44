//! The `ioctl` hook: platforms observe what vendor libraries request from kernel drivers.

use std::ffi::{c_int, c_ulong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::platforms::PLATFORMS;

/// Observes a call after the kernel returned: descriptor, request, argument and return value.
///
/// It runs on the caller's thread. It must not fail, and it must not take a lock that a thread can hold during an `ioctl`.
pub(crate) type IoctlObserver = unsafe fn(c_int, c_ulong, *mut c_void, c_int);

type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;
static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The C library's `ioctl`.
pub(crate) fn real() -> Ioctl {
    let mut found = REAL.load(Ordering::Acquire);
    if found.is_null() {
        // SAFETY: both arguments are valid for `dlsym`; `ioctl` is in the C library, which comes after this library.
        found = unsafe { crate::loader::real_dlsym()(libc::RTLD_NEXT, c"ioctl".as_ptr()) };
        REAL.store(found, Ordering::Release);
    }
    // SAFETY: the C library's `ioctl` takes a third argument of pointer size.
    unsafe { std::mem::transmute::<*mut c_void, Ioctl>(found) }
}

/// Replaces the C library's `ioctl` for a test.
#[cfg(test)]
pub(crate) fn replace_real(ioctl: *mut c_void) {
    REAL.store(ioctl, Ordering::Release);
}

/// Forwards every call to the kernel and shows it to the platforms that observe.
///
/// # Safety
/// The caller obeys the contract of the C library's `ioctl`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: the caller's own arguments.
    let returned = unsafe { real()(fd, request, argument) };
    if !crate::duplicate_library::is_inactive_duplicate() {
        for observe in PLATFORMS.iter().filter_map(|platform| platform.observe_ioctl) {
            // SAFETY: the arguments of a call that has just returned.
            unsafe { observe(fd, request, argument, returned) };
        }
    }
    returned
}
