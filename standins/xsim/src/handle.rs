//! Handles: pointers that say what they point at.

use crate::failure::{Code, Failure};

/// What a handle can stand for.
pub(crate) trait Object {
    /// The first word of such an object.
    const MAGIC: u64;
}

/// What a handle points at.
#[repr(C)]
pub(crate) struct Handle<T> {
    magic: u64,
    object: T,
}

/// Makes a handle and writes it where the caller wants it.
///
/// # Safety
/// `out` is null or points at room for a handle.
pub(crate) unsafe fn give<T: Object>(out: *mut *mut Handle<T>, object: T) -> Result<(), Failure> {
    if out.is_null() {
        return Err(Failure::new(Code::InvalidValue, "no place to put the handle"));
    }
    let handle = Box::into_raw(Box::new(Handle { magic: T::MAGIC, object }));
    // SAFETY: not null, and the caller vouches for the room.
    unsafe { out.write(handle) };
    Ok(())
}

/// What a handle stands for.
///
/// # Safety
/// `handle` is null or came from [`give`], and is not taken back while the answer is used.
pub(crate) unsafe fn get<'a, T: Object>(handle: *mut Handle<T>) -> Result<&'a T, Failure> {
    // SAFETY: null or valid, as the caller vouches.
    match unsafe { handle.as_ref() } {
        Some(Handle { magic, object }) if *magic == T::MAGIC => Ok(object),
        _ => Err(Failure::new(Code::InvalidValue, "not a handle of the kind this function takes")),
    }
}

/// Takes a handle back.
///
/// # Safety
/// As for [`get`], and nobody uses the handle any more.
pub(crate) unsafe fn take<T: Object>(handle: *mut Handle<T>) -> Result<Box<Handle<T>>, Failure> {
    // SAFETY: as the caller vouches.
    unsafe { get(handle) }?;
    // SAFETY: it is one of ours, made from a box in `give`, and the caller vouches that this is the last use.
    let mut taken = unsafe { Box::from_raw(handle) };
    taken.magic = 0;
    Ok(taken)
}
