//! The `ioctl` hook: platforms observe what vendor libraries request from kernel drivers.

use std::ffi::{c_int, c_ulong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use xsched_interpose::run_isolated;

use crate::platforms::PLATFORMS;

/// Observes the calls of the process. Both functions run on the caller's thread. They must not fail, and they must not take a
/// lock that a thread can hold during an `ioctl`.
pub(crate) struct IoctlObserver {
    /// Called before the kernel: descriptor, request and argument.
    pub(crate) before: Option<unsafe fn(c_int, c_ulong, *mut c_void)>,
    /// Called after the kernel returned: descriptor, request, argument and return value.
    pub(crate) after: unsafe fn(c_int, c_ulong, *mut c_void, c_int),
}

type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;
static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The C library's `ioctl`.
pub(crate) fn real() -> Ioctl {
    let mut found = REAL.load(Ordering::Acquire);
    if found.is_null() {
        // Not by `dlsym`, whose lock a thread may hold that waits for the calling thread. The C library always has it.
        found = crate::loaded_libraries::next_function(c"ioctl");
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
    let call = || unsafe { real()(fd, request, argument) };
    if crate::duplicate_library::is_inactive_duplicate() {
        return call();
    }
    let observers = || PLATFORMS.iter().filter_map(|platform| platform.observe_ioctl);
    // SAFETY: as above.
    unsafe { observe(observers, fd, request, argument, call) }
}

/// Makes a call that platforms observe. An observer calls the kernel itself, and such a call can fail: `errno` is that of
/// `call`.
///
/// # Safety
/// `call` passes these arguments to the kernel.
unsafe fn observe<I: Iterator<Item = &'static IoctlObserver>>(
    observers: impl Fn() -> I,
    fd: c_int,
    request: c_ulong,
    argument: *mut c_void,
    call: impl FnOnce() -> c_int,
) -> c_int {
    run_isolated(|| {
        for before in observers().filter_map(|observer| observer.before) {
            // SAFETY: the arguments of a call that is about to be made.
            unsafe { before(fd, request, argument) };
        }
    });
    let returned = call();
    run_isolated(|| {
        for observer in observers() {
            // SAFETY: the arguments of a call that has just returned.
            unsafe { (observer.after)(fd, request, argument, returned) };
        }
    });
    returned
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno() -> &'static mut c_int {
        // SAFETY: the thread's own `errno`; no other reference is in use.
        unsafe { &mut *libc::__errno_location() }
    }

    unsafe fn fail_before(_: c_int, _: c_ulong, _: *mut c_void) {
        *errno() = libc::EPERM;
    }

    unsafe fn fail_after(_: c_int, _: c_ulong, _: *mut c_void, result: c_int) {
        assert_eq!(result, 5);
        *errno() = libc::ENOSYS;
    }

    #[test]
    fn errno_of_the_program_and_of_the_call_are_unchanged_by_observers() {
        static FAILING: IoctlObserver = IoctlObserver { before: Some(fail_before), after: fail_after };
        *errno() = 77;
        let call = || {
            assert_eq!(std::mem::replace(errno(), 78), 77);
            5
        };
        // SAFETY: the observers do not access the argument.
        let result = unsafe { observe(|| [&FAILING].into_iter(), -1, 0, std::ptr::null_mut(), call) };
        assert_eq!((result, *errno()), (5, 78));
    }
}
