//! What can be asked about a vendor's things, where there is a function for each kind of thing that is given the number of
//! a question and a place for the answer, and answers 0 if it knows.

use std::ffi::{c_uint, c_void};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

use xsched_interpose::Handle;

use crate::loader::Function;

/// A function that tells about things of one kind.
pub(crate) type Ask = Function<unsafe extern "C" fn(Handle, c_uint, usize, *mut c_void, *mut usize) -> i32>;

/// One question, with an answer of a known type.
pub(crate) struct InfoQuery<T> {
    ask: &'static Ask,
    number: c_uint,
    answer: PhantomData<fn() -> T>,
}

impl<T: Plain> InfoQuery<T> {
    pub(crate) const fn new(ask: &'static Ask, number: c_uint) -> Self {
        Self { ask, number, answer: PhantomData }
    }

    /// The answer; none if there is no such thing, or if nobody knows. One that is shorter than its type ends in zeros.
    pub(crate) fn of(&self, thing: Handle) -> Option<T> {
        let ask = self.ask.get().filter(|_| !thing.is_none())?;
        let mut answer = MaybeUninit::<T>::zeroed();
        let (size, place) = (size_of::<T>(), answer.as_mut_ptr().cast());
        // SAFETY: a thing that the program or the vendor has named. The place has the size that is passed.
        let code = unsafe { ask(thing, self.number, size, place, ptr::null_mut()) };
        // SAFETY: any bytes are a value of a plain type, and all of them were written.
        (code == 0).then(|| unsafe { answer.assume_init() })
    }
}

/// Words, which end with the first zero byte.
pub(crate) type Text = [u8; 200];

impl InfoQuery<Text> {
    /// The answer, or nothing.
    pub(crate) fn text(&self, thing: Handle) -> String {
        let bytes = self.of(thing).unwrap_or([0; 200]);
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
    }
}

/// A type of which any bytes are a value.
///
/// # Safety
/// They are.
pub(crate) unsafe trait Plain: Copy {}
// SAFETY: a number.
unsafe impl Plain for i32 {}
// SAFETY: a number.
unsafe impl Plain for u32 {}
// SAFETY: a number.
unsafe impl Plain for u64 {}
// SAFETY: an address that is never looked at by us.
unsafe impl Plain for Handle {}
// SAFETY: bytes.
unsafe impl<const N: usize> Plain for [u8; N] {}
// SAFETY: numbers.
unsafe impl<const N: usize> Plain for [u32; N] {}
