//! Handles: pointers to reference-counted objects that begin with a tag of their type.

use std::sync::Arc;

use crate::{Code, INVALID_ARGUMENT, INVALID_NULL_HANDLE};

/// A type that has handles.
pub(crate) trait Object {
    /// The tag of such an object.
    const TAG: u64;
}

/// An object with its tag. The program's handle is one reference; queued commands have more.
#[repr(C)]
pub(crate) struct Handle<T> {
    tag: u64,
    pub(crate) object: T,
}

/// Writes a new handle to an output parameter.
///
/// # Safety
/// `out` is null or valid for a write.
pub(crate) unsafe fn create<T: Object>(out: *mut *const Handle<T>, object: T) -> Result<(), Code> {
    // SAFETY: the caller guarantees it.
    unsafe { write(out, Arc::into_raw(Arc::new(Handle { tag: T::TAG, object }))) }
}

/// The object of a handle.
///
/// # Safety
/// The handle is null or came from [`create`], and is not destroyed meanwhile.
pub(crate) unsafe fn get<T: Object>(handle: *const Handle<T>) -> Result<Arc<Handle<T>>, Code> {
    // SAFETY: the caller guarantees it.
    match unsafe { handle.as_ref() } {
        Some(object) if object.tag == T::TAG => {
            // SAFETY: `create` made the handle from an `Arc`, which the program's reference keeps alive.
            unsafe { Arc::increment_strong_count(handle) };
            // SAFETY: as above; the count was just incremented for it.
            Ok(unsafe { Arc::from_raw(handle) })
        }
        _ => Err(INVALID_NULL_HANDLE),
    }
}

/// Drops the program's reference.
///
/// # Safety
/// As for [`get`], and the program does not use the handle again.
pub(crate) unsafe fn destroy<T: Object>(handle: *const Handle<T>) -> Result<(), Code> {
    // SAFETY: the caller guarantees it.
    unsafe { get(handle) }?;
    // SAFETY: `create` made the handle from an `Arc`, and this is the program's last use.
    drop(unsafe { Arc::from_raw(handle) });
    Ok(())
}

/// The objects of a list that a program passes.
///
/// # Safety
/// The list has `count` handles, or is null.
pub(crate) unsafe fn get_all<T: Object>(
    count: u32,
    list: *const *const Handle<T>,
) -> Result<Vec<Arc<Handle<T>>>, Code> {
    if list.is_null() {
        return if count == 0 { Ok(Vec::new()) } else { Err(INVALID_ARGUMENT) };
    }
    // SAFETY: the caller guarantees the length and the handles.
    (0..count as usize).map(|n| unsafe { get(*list.add(n)) }).collect()
}

/// Writes to an output parameter.
///
/// # Safety
/// `out` is null or valid for a write.
pub(crate) unsafe fn write<T>(out: *mut T, value: T) -> Result<(), Code> {
    if out.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null; the caller guarantees the rest.
    unsafe { out.write(value) };
    Ok(())
}
