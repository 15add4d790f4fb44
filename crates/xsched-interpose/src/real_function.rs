//! The vendor's function behind a hook.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the vendor's library: the address that a look-up hook stored, or one that is looked up on first use.
///
/// `F` is its type, a plain `unsafe extern "C" fn`. The look-up takes no lock and allocates nothing.
pub struct RealFunction<F> {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    function: PhantomData<F>,
}

impl<F: Copy> RealFunction<F> {
    /// The function of this name, whose address is unknown.
    #[must_use]
    pub const fn new(name: &'static CStr) -> Self {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "a function pointer") };
        Self { name, address: AtomicPtr::new(std::ptr::null_mut()), function: PhantomData }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static CStr {
        self.name
    }

    /// Where its address is stored; null until it is known. A look-up hook stores an address here, with Release.
    #[must_use]
    pub const fn address(&self) -> &AtomicPtr<c_void> {
        &self.address
    }

    /// The function; none if its address was not stored and `look_up` does not find it.
    ///
    /// # Safety
    /// `F` is the type of the function in the vendor's header. The address that is stored, or that `look_up` returns, is a
    /// function of this type, or null.
    #[must_use]
    #[inline]
    pub unsafe fn get(&self, look_up: impl FnOnce(&'static CStr) -> *mut c_void) -> Option<F> {
        // Acquire: pairs with the Release of the store, so that code that was mapped before it is visible here.
        let mut address = self.address.load(Ordering::Acquire);
        if address.is_null() {
            address = self.find(look_up);
            if address.is_null() {
                return None;
            }
        }
        // SAFETY: `F` has the size of a pointer (checked in `new`), and the caller vouches for the type.
        Some(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
    }

    #[cold]
    fn find(&self, look_up: impl FnOnce(&'static CStr) -> *mut c_void) -> *mut c_void {
        let found = look_up(self.name);
        // A failed look-up must not overwrite an address that another thread has stored since.
        if !found.is_null() {
            self.address.store(found, Ordering::Release);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Function = unsafe extern "C" fn(i32) -> i32;

    fn anywhere(name: &CStr) -> *mut c_void {
        // SAFETY: the name is a C string.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
    }

    #[test]
    fn existing_function_is_found_and_missing_function_is_none() {
        static ABS: RealFunction<Function> = RealFunction::new(c"abs");
        static MISSING: RealFunction<unsafe extern "C" fn()> =
            RealFunction::new(c"no_such_function_anywhere");
        for _ in 0..2 {
            // SAFETY: `abs` has this type, and the other function does not exist.
            let (abs, missing) = unsafe { (ABS.get(anywhere), MISSING.get(anywhere)) };
            // SAFETY: `abs` accepts every number but the least.
            assert_eq!(unsafe { abs.unwrap()(-7) }, 7);
            assert!(missing.is_none());
        }
    }

    #[test]
    fn stored_address_takes_precedence_over_look_up() {
        static ABS: RealFunction<Function> = RealFunction::new(c"abs");
        static STORED: RealFunction<Function> = RealFunction::new(c"no_such_function_anywhere");
        unsafe extern "C" fn five(_: i32) -> i32 {
            5
        }
        for real in [&ABS, &STORED] {
            real.address().store(five as *mut c_void, Ordering::Release);
            // SAFETY: the stored address is a function of this type.
            assert_eq!(unsafe { real.get(anywhere).unwrap()(-7) }, 5);
        }
    }

    #[test]
    fn failed_look_up_keeps_an_address_that_was_stored_meanwhile() {
        static STORED: RealFunction<Function> = RealFunction::new(c"no_such_function_anywhere");
        let store = |_: &CStr| {
            STORED.address().store(anywhere(c"abs"), Ordering::Release);
            std::ptr::null_mut()
        };
        // SAFETY: the stored address is a function of this type.
        let (before, after) = unsafe { (STORED.get(store), STORED.get(anywhere)) };
        assert!(before.is_none() && after.is_some());
    }
}
