//! Properties of the vendor's objects, for vendors with one query function for each kind of object: it takes the object, the
//! number of a property and a buffer, and returns 0 on success.

use std::ffi::{c_uint, c_void};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

use xsched_interpose::Handle;

use crate::loader::Function;

/// A query function for objects of one kind.
pub(crate) type QueryFunction =
    Function<unsafe extern "C" fn(Handle, c_uint, usize, *mut c_void, *mut usize) -> i32>;

/// The query of one property, whose type is known.
pub(crate) struct InfoQuery<T> {
    function: &'static QueryFunction,
    property: c_uint,
    value: PhantomData<fn() -> T>,
}

impl<T: PlainData> InfoQuery<T> {
    pub(crate) const fn new(function: &'static QueryFunction, property: c_uint) -> Self {
        Self { function, property, value: PhantomData }
    }

    /// The property of an object; none if the object is null or the vendor returns an error. A value that is shorter than
    /// its type is padded with zeros.
    pub(crate) fn of(&self, object: Handle) -> Option<T> {
        let query = self.function.get().filter(|_| !object.is_none())?;
        let mut value = MaybeUninit::<T>::zeroed();
        let (size, buffer) = (size_of::<T>(), value.as_mut_ptr().cast());
        // SAFETY: the program or the vendor has passed the object; the buffer has the size that is passed.
        let code = unsafe { query(object, self.property, size, buffer, ptr::null_mut()) };
        // SAFETY: all bytes are initialized, and any bytes are a value of a `PlainData` type.
        (code == 0).then(|| unsafe { value.assume_init() })
    }
}

/// Text up to the first zero byte.
pub(crate) type Text = [u8; 200];

impl InfoQuery<Text> {
    /// The property as text; empty if the vendor returns an error.
    pub(crate) fn text(&self, object: Handle) -> String {
        let bytes = self.of(object).unwrap_or([0; 200]);
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
    }
}

/// A type of which any bytes are a valid value.
///
/// # Safety
/// Every bit pattern is valid for the type.
pub(crate) unsafe trait PlainData: Copy {}
// SAFETY: an integer.
unsafe impl PlainData for i32 {}
// SAFETY: an integer.
unsafe impl PlainData for u32 {}
// SAFETY: an integer.
unsafe impl PlainData for u64 {}
// SAFETY: an address that this library never dereferences.
unsafe impl PlainData for Handle {}
// SAFETY: bytes.
unsafe impl<const N: usize> PlainData for [u8; N] {}
// SAFETY: integers.
unsafe impl<const N: usize> PlainData for [u32; N] {}
