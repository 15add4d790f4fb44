//! Memory: the host's own.

use std::ffi::{c_int, c_uint, c_void};

use crate::device::{current, put};
use crate::error::{Code, INVALID_VALUE, OUT_OF_MEMORY, answer};
use crate::stream::{self, Handle};

pub(crate) extern "C" fn allocate(place: *mut *mut c_void, size: usize) -> Code {
    answer(current().and_then(|_| {
        // SAFETY: any size may be asked for.
        let memory = unsafe { libc::calloc(1, size.max(1)) };
        if memory.is_null() { Err(OUT_OF_MEMORY) } else { put(place, memory) }
    }))
}

pub(crate) extern "C" fn allocate_with_flags(place: *mut *mut c_void, size: usize, _flags: c_uint) -> Code {
    allocate(place, size)
}

pub(crate) extern "C" fn allocate_on(place: *mut *mut c_void, size: usize, _stream: Handle) -> Code {
    allocate(place, size)
}

pub(crate) extern "C" fn free(memory: *mut c_void) -> Code {
    // SAFETY: the caller got it from one of the functions above.
    unsafe { libc::free(memory) };
    answer(Ok(()))
}

pub(crate) extern "C" fn free_on(memory: *mut c_void, stream: Handle) -> Code {
    stream::synchronize(stream);
    free(memory)
}

/// Waits for the stream, then copies.
pub(crate) extern "C" fn copy_on(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    _kind: c_int,
    stream: Handle,
) -> Code {
    answer(stream::get(stream).and_then(|stream| {
        if to.is_null() || from.is_null() {
            return Err(INVALID_VALUE);
        }
        let marker = stream.queue.mark()?;
        stream.queue.wait(marker)?;
        // SAFETY: the caller vouches for both.
        unsafe { libc::memmove(to, from, size) };
        Ok(())
    }))
}

pub(crate) extern "C" fn copy(to: *mut c_void, from: *const c_void, size: usize, kind: c_int) -> Code {
    copy_on(to, from, size, kind, std::ptr::null_mut())
}

pub(crate) extern "C" fn copy_known(to: *mut c_void, from: *const c_void, size: usize) -> Code {
    copy(to, from, size, 0)
}

pub(crate) extern "C" fn set_on(to: *mut c_void, value: c_int, size: usize, stream: Handle) -> Code {
    answer(stream::get(stream).and_then(|_| {
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller vouches for it.
        unsafe { libc::memset(to, value, size) };
        Ok(())
    }))
}

pub(crate) extern "C" fn set(to: *mut c_void, value: c_int, size: usize) -> Code {
    set_on(to, value, size, std::ptr::null_mut())
}

pub(crate) extern "C" fn information(free: *mut usize, total: *mut usize) -> Code {
    answer(current().and_then(|_| put(free, 60 << 30)).and(put(total, 64 << 30)))
}
