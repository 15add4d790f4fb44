//! The real function behind a hook.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the vendor's library, as it was told to us, else looked up when it is first needed.
///
/// `F` is its type, a plain `unsafe extern "C" fn`. Looking it up takes no lock of ours and allocates nothing.
pub struct RealFunction<F> {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
    kind: PhantomData<F>,
}

impl<F: Copy> RealFunction<F> {
    /// The function of this name, which nobody knows yet.
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

    /// Where its address is kept, null until it is known. Whoever finds it elsewhere may store it here, with Release.
    #[must_use]
    pub const fn place(&self) -> &AtomicPtr<c_void> {
        &self.found
    }

    /// The function; none if neither anybody told it nor `look_up` finds it.
    ///
    /// # Safety
    /// `F` is the type the vendor gave it, and whatever is stored in its place, or answered by `look_up` for its name,
    /// is a function of this type, or null.
    #[must_use]
    #[inline]
    pub unsafe fn get(&self, look_up: impl FnOnce(&'static CStr) -> *mut c_void) -> Option<F> {
        // Acquire, with the Release of who stored it: code that was mapped before it was found is seen by who finds
        // it here.
        let mut found = self.found.load(Ordering::Acquire);
        if found.is_null() {
            found = self.find(look_up);
            if found.is_null() {
                return None;
            }
        }
        // SAFETY: `F` is as large as a pointer (checked in `new`), and by the caller's word the type of the function
        // this points at.
        Some(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&found) })
    }

    #[cold]
    fn find(&self, look_up: impl FnOnce(&'static CStr) -> *mut c_void) -> *mut c_void {
        let found = look_up(self.name);
        // Nothing found must not wipe out what another thread is being told meanwhile.
        if !found.is_null() {
            self.found.store(found, Ordering::Release);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Function = unsafe extern "C" fn(i32) -> i32;

    fn anywhere(name: &CStr) -> *mut c_void {
        // SAFETY: the name is a C string; the answer is an address or null.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
    }

    #[test]
    fn what_exists_is_found_and_what_does_not_is_none() {
        static ABS: RealFunction<Function> = RealFunction::new(c"abs");
        static NONE: RealFunction<unsafe extern "C" fn()> = RealFunction::new(c"no_such_function_anywhere");
        for _ in 0..2 {
            // SAFETY: these are the types of both, as far as they exist.
            let (abs, none) = unsafe { (ABS.get(anywhere), NONE.get(anywhere)) };
            // SAFETY: `abs` may be called with any number but the least.
            assert_eq!(unsafe { abs.unwrap()(-7) }, 7);
            assert!(none.is_none());
        }
    }

    #[test]
    fn what_was_told_comes_before_what_can_be_found() {
        static ABS: RealFunction<Function> = RealFunction::new(c"abs");
        static TOLD: RealFunction<Function> = RealFunction::new(c"no_such_function_anywhere");
        unsafe extern "C" fn five(_: i32) -> i32 {
            5
        }
        for real in [&ABS, &TOLD] {
            real.place().store(five as *mut c_void, Ordering::Release);
            // SAFETY: what was stored is a function of this type, and harmless.
            assert_eq!(unsafe { real.get(anywhere).unwrap()(-7) }, 5);
        }
    }

    #[test]
    fn nothing_found_does_not_wipe_out_what_is_told_meanwhile() {
        static TOLD: RealFunction<Function> = RealFunction::new(c"no_such_function_anywhere");
        let tell = |_: &CStr| {
            TOLD.place().store(anywhere(c"abs"), Ordering::Release);
            std::ptr::null_mut()
        };
        // SAFETY: what is stored is a function of this type.
        let (before, after) = unsafe { (TOLD.get(tell), TOLD.get(anywhere)) };
        assert!(before.is_none() && after.is_some());
    }
}
