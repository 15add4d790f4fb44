//! Handles: pointers to objects that begin with a type tag.

use crate::failure::{Code, Failure};

/// A type that has handles.
pub(crate) trait Object {
    /// The tag of such an object.
    const MAGIC: u64;
}

/// An object with its tag.
#[repr(C)]
pub(crate) struct Handle<T> {
    magic: u64,
    object: T,
}

/// Creates a handle and writes it to an output parameter.
///
/// # Safety
/// `out` is null or is valid for a write.
pub(crate) unsafe fn create<T: Object>(out: *mut *mut Handle<T>, object: T) -> Result<(), Failure> {
    if out.is_null() {
        return Err(Failure::new(Code::InvalidValue, "the pointer for the handle is null"));
    }
    let handle = Box::into_raw(Box::new(Handle { magic: T::MAGIC, object }));
    // SAFETY: not null, and the caller guarantees that it is valid.
    unsafe { out.write(handle) };
    Ok(())
}

/// The object of a handle.
///
/// # Safety
/// `handle` is null or came from [`create`], and is not destroyed while the result is used.
pub(crate) unsafe fn get<'a, T: Object>(handle: *mut Handle<T>) -> Result<&'a T, Failure> {
    // SAFETY: null or valid, as the caller guarantees.
    match unsafe { handle.as_ref() } {
        Some(Handle { magic, object }) if *magic == T::MAGIC => Ok(object),
        _ => Err(Failure::new(Code::InvalidValue, "the handle is not of the type that this function takes")),
    }
}

/// Destroys a handle and returns its object.
///
/// # Safety
/// As for [`get`], and the handle is not used any more.
pub(crate) unsafe fn destroy<T: Object>(handle: *mut Handle<T>) -> Result<Box<Handle<T>>, Failure> {
    // SAFETY: the caller's guarantee.
    unsafe { get(handle) }?;
    // SAFETY: `create` made it from a box, and the caller guarantees that this is the last use.
    let mut destroyed = unsafe { Box::from_raw(handle) };
    destroyed.magic = 0;
    Ok(destroyed)
}
