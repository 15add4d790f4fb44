//! Memory: device memory is host memory.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, PoisonError};

use crate::device::{current, write_out};
use crate::error::{Code, INVALID_VALUE, OUT_OF_MEMORY, to_code};
use crate::stall;
use crate::stream::{self, Handle};

pub(crate) extern "C" fn allocate(out: *mut *mut c_void, size: usize) -> Code {
    to_code(current().and_then(|_| {
        // SAFETY: calloc accepts any size.
        let memory = unsafe { libc::calloc(1, size.max(1)) };
        if memory.is_null() { Err(OUT_OF_MEMORY) } else { write_out(out, memory) }
    }))
}

/// Signal memory, on which streams wait: each allocation is a page of its own.
static SIGNALS: Mutex<Vec<usize>> = Mutex::new(Vec::new());
const PAGE: usize = 4096;

pub(crate) extern "C" fn allocate_with_flags(out: *mut *mut c_void, size: usize, flags: c_uint) -> Code {
    /// `hipMallocSignalMemory`: exactly eight bytes.
    const SIGNAL: c_uint = 2;
    if flags != SIGNAL {
        return allocate(out, size);
    }
    to_code(current().and_then(|_| {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping at an address the kernel chooses.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, access, kind, -1, 0) };
        if size != 8 || page == libc::MAP_FAILED {
            return Err(INVALID_VALUE);
        }
        SIGNALS.lock().unwrap_or_else(PoisonError::into_inner).push(page.expose_provenance());
        write_out(out, page)
    }))
}

/// Releases all signal memory. A later access faults, so that tests detect it.
pub(crate) fn free_signals() {
    for address in SIGNALS.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        stall::end_waits_at(address);
        // SAFETY: mapped above, and no stream waits for it any more.
        unsafe { libc::mprotect(std::ptr::with_exposed_provenance_mut(address), PAGE, libc::PROT_NONE) };
    }
}

pub(crate) extern "C" fn allocate_on(out: *mut *mut c_void, size: usize, _stream: Handle) -> Code {
    allocate(out, size)
}

pub(crate) extern "C" fn free(memory: *mut c_void) -> Code {
    // SAFETY: the caller got it from one of the functions above.
    unsafe { libc::free(memory) };
    to_code(Ok(()))
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
    to_code(stream::get(stream).and_then(|stream| {
        if to.is_null() || from.is_null() {
            return Err(INVALID_VALUE);
        }
        let marker = stream.queue.mark()?;
        stream.queue.wait(marker)?;
        // SAFETY: the caller guarantees both ranges.
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
    to_code(stream::get(stream).and_then(|_| {
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller guarantees the range.
        unsafe { libc::memset(to, value, size) };
        Ok(())
    }))
}

pub(crate) extern "C" fn set(to: *mut c_void, value: c_int, size: usize) -> Code {
    set_on(to, value, size, std::ptr::null_mut())
}

pub(crate) extern "C" fn information(free: *mut usize, total: *mut usize) -> Code {
    to_code(current().and_then(|_| write_out(free, 60 << 30)).and(write_out(total, 64 << 30)))
}
