//! A vendor's handle, on its way through hooks.

use std::ffi::c_void;
use std::ptr;

/// What stands for a thing of the vendor's, a queue, an event, a device: passed on, and never looked into.
///
/// Hooks and the vendor's functions have it in their types in the place of a pointer. So there are two ways to come by
/// one, the program's and the vendor's; who makes one up breaks the vendor's rules, with us or without.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(*mut c_void);

// SAFETY: to us it is a number. It is for vendors whose functions any thread may call with any handle.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// What stands for nothing.
    pub const NONE: Self = Self(ptr::null_mut());

    /// What C has as a pointer.
    ///
    /// # Safety
    /// It is null, or stands for a thing of the vendor's.
    #[must_use]
    pub const unsafe fn from_pointer(pointer: *mut c_void) -> Self {
        Self(pointer)
    }

    /// Whether it stands for nothing.
    #[must_use]
    pub fn is_none(self) -> bool {
        self.0.is_null()
    }

    /// What tells it from others.
    #[must_use]
    pub fn addr(self) -> usize {
        self.0.addr()
    }
}
