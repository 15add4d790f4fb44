//! Memory: all of it is the host's.

use std::ffi::c_void;

use crate::object::write;
use crate::{Code, OUT_OF_MEMORY, SUCCESS, to_code};

unsafe extern "C" {
    fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void;
    #[link_name = "free"]
    fn c_free(memory: *mut c_void);
}

const PAGE: usize = 4096;

unsafe fn allocate(size: usize, out: *mut *mut c_void) -> Code {
    let size = size.max(1).next_multiple_of(PAGE);
    // SAFETY: the size is a multiple of the alignment.
    let memory = unsafe { aligned_alloc(PAGE, size) };
    // SAFETY: the program passes room for a pointer.
    to_code(if memory.is_null() { Err(OUT_OF_MEMORY) } else { unsafe { write(out, memory) } })
}

pub(crate) unsafe extern "C" fn allocate_shared(
    _context: *const c_void,
    _device_description: *const c_void,
    _host_description: *const c_void,
    size: usize,
    _alignment: usize,
    _device: *const c_void,
    out: *mut *mut c_void,
) -> Code {
    // SAFETY: the caller's own argument.
    unsafe { allocate(size, out) }
}

pub(crate) unsafe extern "C" fn allocate_device(
    _context: *const c_void,
    _description: *const c_void,
    size: usize,
    _alignment: usize,
    _device: *const c_void,
    out: *mut *mut c_void,
) -> Code {
    // SAFETY: the caller's own argument.
    unsafe { allocate(size, out) }
}

pub(crate) unsafe extern "C" fn allocate_host(
    _context: *const c_void,
    _description: *const c_void,
    size: usize,
    _alignment: usize,
    out: *mut *mut c_void,
) -> Code {
    // SAFETY: the caller's own argument.
    unsafe { allocate(size, out) }
}

pub(crate) unsafe extern "C" fn free(_context: *const c_void, memory: *mut c_void) -> Code {
    // SAFETY: the program passes memory that `allocate` returned.
    unsafe { c_free(memory) };
    SUCCESS
}
