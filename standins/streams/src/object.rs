//! Handles: pointers to reference-counted objects that begin with a tag of their type.

use std::sync::Arc;

/// A type that has handles.
pub trait Object {
    /// The tag of such an object.
    const TAG: u64;
    /// The vendor's code for a handle or a pointer that is not valid.
    const INVALID: i32;
}

/// An object with its tag. The program's handle is one reference; queued commands have more.
#[repr(C)]
pub struct Handle<T> {
    tag: u64,
    /// The object itself.
    pub object: T,
}

impl<T: Object> Handle<T> {
    /// An object with its first reference.
    pub fn new(object: T) -> Arc<Self> {
        Arc::new(Self { tag: T::TAG, object })
    }
}

/// Writes a new handle to an output parameter.
///
/// # Safety
/// `out` is null or valid for a write.
///
/// # Errors
/// The vendor's code, if `out` is null.
pub unsafe fn create<T: Object>(out: *mut *const Handle<T>, object: T) -> Result<(), i32> {
    // SAFETY: the caller guarantees it.
    unsafe { write(out, Arc::into_raw(Handle::new(object))) }.ok_or(T::INVALID)
}

/// The object of a handle.
///
/// # Safety
/// The handle is null or came from [`create`], and is not destroyed meanwhile.
///
/// # Errors
/// The vendor's code, if the handle is null or of another type.
pub unsafe fn get<T: Object>(handle: *const Handle<T>) -> Result<Arc<Handle<T>>, i32> {
    // SAFETY: the caller guarantees it.
    match unsafe { handle.as_ref() } {
        Some(object) if object.tag == T::TAG => {
            // SAFETY: `create` made the handle from an `Arc`, which the program's reference keeps alive.
            unsafe { Arc::increment_strong_count(handle) };
            // SAFETY: as above; the count was just incremented for it.
            Ok(unsafe { Arc::from_raw(handle) })
        }
        _ => Err(T::INVALID),
    }
}

/// Drops the program's reference.
///
/// # Safety
/// As for [`get`], and the program does not use the handle again.
///
/// # Errors
/// As for [`get`].
pub unsafe fn destroy<T: Object>(handle: *const Handle<T>) -> Result<(), i32> {
    // SAFETY: the caller guarantees it.
    unsafe { get(handle) }?;
    // SAFETY: `create` made the handle from an `Arc`, and this is the program's last use.
    drop(unsafe { Arc::from_raw(handle) });
    Ok(())
}

/// Writes to an output parameter. None if it is null.
///
/// # Safety
/// `out` is null or valid for a write.
pub unsafe fn write<T>(out: *mut T, value: T) -> Option<()> {
    // SAFETY: the caller guarantees it, and the pointer is not null.
    (!out.is_null()).then(|| unsafe { out.write(value) })
}
