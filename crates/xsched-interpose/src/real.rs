//! The real function behind a hook.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the vendor's library, looked up when it is first needed.
///
/// `F` is its type, a plain `unsafe extern "C" fn`. Looking it up takes no lock of ours and allocates nothing.
pub struct Real<F> {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
    kind: PhantomData<F>,
}

impl<F: Copy> Real<F> {
    /// The function of this name in the libraries that come after ours.
    #[must_use]
    pub const fn new(name: &'static CStr) -> Self {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "a function pointer") };
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()), kind: PhantomData }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static CStr {
        self.name
    }

    /// The function; none if no library has it.
    ///
    /// # Safety
    /// `F` is the type the vendor gave it.
    #[must_use]
    #[inline]
    pub unsafe fn get(&self) -> Option<F> {
        // Acquire, with the Release below: code that was mapped before it was found is seen by who finds it here.
        let mut found = self.found.load(Ordering::Acquire);
        if found.is_null() {
            found = self.look_up();
            if found.is_null() {
                return None;
            }
        }
        // SAFETY: `F` is as large as a pointer (checked in `new`), and by the caller's word the type of the function
        // this points at.
        Some(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&found) })
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: the name is a C string; the answer is an address or null.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Release);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_exists_is_found_and_what_does_not_is_none() {
        static ABS: Real<unsafe extern "C" fn(i32) -> i32> = Real::new(c"abs");
        static NONE: Real<unsafe extern "C" fn()> = Real::new(c"no_such_function_anywhere");
        for _ in 0..2 {
            // SAFETY: these are the types of both, as far as they exist.
            let (abs, none) = unsafe { (ABS.get(), NONE.get()) };
            // SAFETY: `abs` may be called with any number but the least.
            assert_eq!(unsafe { abs.unwrap()(-7) }, 7);
            assert!(none.is_none());
        }
    }
}
