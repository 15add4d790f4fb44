//! A vendor's handle as hooks pass it on.

use std::ffi::c_void;
use std::ptr;

/// The handle of an object of the vendor: a queue, an event, a device. It is passed on and never dereferenced.
///
/// Hooks and the vendor's functions have it in their types in place of a pointer, so that a handle comes either from the
/// program or from the vendor. A program that invents one violates the vendor's contract with or without this library.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(*mut c_void);

// SAFETY: the library never dereferences it. Platforms use it only for vendors whose functions accept every handle on every
// thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// The null handle.
    pub const NONE: Self = Self(ptr::null_mut());

    /// A handle from C.
    ///
    /// # Safety
    /// It is null or a handle of the vendor.
    #[must_use]
    pub const unsafe fn from_pointer(pointer: *mut c_void) -> Self {
        Self(pointer)
    }

    /// Whether it is null.
    #[must_use]
    pub fn is_none(self) -> bool {
        self.0.is_null()
    }

    /// Its address, which distinguishes it from all other handles.
    #[must_use]
    pub fn addr(self) -> usize {
        self.0.addr()
    }
}
