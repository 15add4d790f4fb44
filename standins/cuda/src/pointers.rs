//! What the driver reports about an address, and handles for other processes.

use std::ffi::{c_int, c_uint, c_void};

use crate::code::{Code, Outcome, write_out};
use crate::driver::driver;
use crate::memory::Kind;

/// `CU_POINTER_ATTRIBUTE_CONTEXT`, `..._MEMORY_TYPE`, `..._DEVICE_POINTER`, `..._BUFFER_ID`, `..._RANGE_START_ADDR` and
/// `..._RANGE_SIZE`.
const CONTEXT: c_int = 1;
const MEMORY_TYPE: c_int = 2;
const DEVICE_POINTER: c_int = 3;
const BUFFER_ID: c_int = 7;
const RANGE_START: c_int = 10;
const RANGE_SIZE: c_int = 11;

pub(crate) unsafe fn attribute(out: *mut c_void, which: c_int, address: usize) -> Outcome {
    let driver = driver()?;
    let range = driver.memory.containing(address).ok_or(Code::ERROR_INVALID_VALUE)?;
    let is_on_host = matches!(range.kind, Kind::Host | Kind::Registered);
    let value = match which {
        // SAFETY: the caller guarantees room for this attribute's type.
        MEMORY_TYPE => return unsafe { write_out(out.cast::<c_uint>(), if is_on_host { 1 } else { 2 }) },
        // Memory that the program maps belongs to no context.
        CONTEXT => range.context as u64,
        DEVICE_POINTER => address as u64,
        // No two allocations that exist have the same one.
        BUFFER_ID | RANGE_START => range.start as u64,
        RANGE_SIZE => range.size as u64,
        _ => return Err(Code::ERROR_INVALID_VALUE),
    };
    // SAFETY: as above.
    unsafe { write_out(out.cast::<u64>(), value) }
}

pub(crate) unsafe fn attributes(
    count: c_uint,
    which: *const c_int,
    out: *const *mut c_void,
    address: usize,
) -> Outcome {
    if count == 0 || which.is_null() || out.is_null() {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    for n in 0..count as usize {
        // SAFETY: the caller guarantees `count` attributes, and room for each.
        unsafe { attribute(*out.add(n), *which.add(n), address)? };
    }
    Ok(())
}

pub(crate) unsafe fn address_range(base: *mut usize, size: *mut usize, address: usize) -> Outcome {
    let driver = driver()?;
    driver.current()?;
    let range = driver.memory.containing(address).ok_or(Code::ERROR_NOT_FOUND)?;
    // SAFETY: the caller guarantees that each is null or valid.
    unsafe {
        if !base.is_null() {
            *base = range.start;
        }
        if !size.is_null() {
            *size = range.size;
        }
    }
    Ok(())
}

/// The handle of memory for another process. Only plain device memory has one.
pub(crate) unsafe fn ipc_handle(out: *mut c_void, address: usize) -> Outcome {
    let driver = driver()?;
    let range = driver.memory.containing(address).ok_or(Code::ERROR_INVALID_VALUE)?;
    if !matches!(range.kind, Kind::Device(_)) {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    let mut handle = [0_u8; 64];
    handle[..8].copy_from_slice(&(range.start as u64).to_ne_bytes());
    // SAFETY: the caller guarantees room for a handle.
    unsafe { write_out(out.cast::<[u8; 64]>(), handle) }
}
