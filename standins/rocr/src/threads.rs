//! The stand-in's threads. A thread of the standard library registers a thread-local destructor when it starts, for which glibc
//! takes the loader's lock. A library whose constructor waits for the device holds that lock: HIP 6.4 does so for each library
//! with a managed variable. So these threads register none.

use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut};

type Run = Box<dyn FnOnce() + Send>;

extern "C" fn start(argument: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn` passes a box to one thread.
    let run = unsafe { Box::from_raw(argument.cast::<Run>()) };
    run();
    null_mut()
}

/// A running thread.
pub(crate) struct Thread(libc::pthread_t);

impl Thread {
    /// Starts a thread. Returns `None` if the system has no resources for it.
    pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Option<Self> {
        let argument = Box::into_raw(Box::<Run>::new(Box::new(run))).cast::<c_void>();
        let mut thread: libc::pthread_t = 0;
        // SAFETY: `start` takes the argument; the attributes are the defaults.
        if unsafe { libc::pthread_create(&raw mut thread, null(), start, argument) } != 0 {
            // SAFETY: no thread was started, so the box is still this function's.
            drop(unsafe { Box::from_raw(argument.cast::<Run>()) });
            return None;
        }
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: a C string, and a thread that was neither joined nor detached.
        unsafe { libc::pthread_setname_np(thread, name.as_ptr()) };
        Some(Self(thread))
    }

    /// Whether it is the calling thread.
    pub(crate) fn is_current(&self) -> bool {
        // SAFETY: neither joined nor detached before: both take `self`.
        unsafe { libc::pthread_equal(self.0, libc::pthread_self()) != 0 }
    }

    /// Waits until the thread has ended, unless it is the calling thread.
    pub(crate) fn join(self) {
        // SAFETY: neither joined nor detached before: both take `self`.
        unsafe {
            if self.is_current() {
                libc::pthread_detach(self.0);
            } else {
                libc::pthread_join(self.0, null_mut());
            }
        }
    }
}
