//! Allocation of device memory, which is host memory. Each device has `HIP_STANDIN_MEMORY` bytes, or 64 GiB.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::device::{at, current, write_out};
use crate::error::{Code, INVALID_VALUE, OUT_OF_MEMORY, to_code};
use crate::memory::{Extent, Pitched};
use crate::stream::{self, Handle};

/// Larger allocations are not touched.
const LARGEST_ZEROED: usize = 1 << 20;

/// What AMD's runtime guarantees.
const ALIGNMENT: usize = 256;

const DEFAULT_TOTAL: u64 = 64 << 30;

/// The size of a device's memory.
pub(crate) fn total() -> u64 {
    static TOTAL: OnceLock<u64> = OnceLock::new();
    *TOTAL.get_or_init(|| {
        let setting = std::env::var("HIP_STANDIN_MEMORY").ok();
        setting.and_then(|bytes| bytes.parse().ok()).unwrap_or(DEFAULT_TOTAL)
    })
}

/// The device and the size of each allocation, by address.
static ALLOCATED: Mutex<Option<HashMap<usize, (usize, u64)>>> = Mutex::new(None);

fn allocated() -> MutexGuard<'static, Option<HashMap<usize, (usize, u64)>>> {
    ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn used(device: usize) -> u64 {
    let allocated = allocated();
    allocated.iter().flat_map(HashMap::values).filter(|(of, _)| *of == device).map(|(_, size)| size).sum()
}

/// Allocates memory on the current device.
fn allocate_bytes(size: usize) -> Result<*mut c_void, Code> {
    let device = current()?.number;
    if used(device).saturating_add(size as u64) > total() {
        return Err(OUT_OF_MEMORY);
    }
    let mut memory = std::ptr::null_mut();
    // SAFETY: `memory` has room for an address; the alignment is a power of two.
    if unsafe { libc::posix_memalign(&raw mut memory, ALIGNMENT, size.max(1)) } != 0 {
        return Err(OUT_OF_MEMORY);
    }
    if size <= LARGEST_ZEROED {
        // SAFETY: just allocated.
        unsafe { libc::memset(memory, 0, size) };
    }
    allocated().get_or_insert_default().insert(memory.addr(), (device, size as u64));
    Ok(memory)
}

pub(crate) extern "C" fn allocate(out: *mut *mut c_void, size: usize) -> Code {
    if size == 0 {
        return to_code(write_out(out, std::ptr::null_mut()));
    }
    to_code(allocate_bytes(size).and_then(|memory| write_out(out, memory)))
}

pub(crate) extern "C" fn allocate_on(out: *mut *mut c_void, size: usize, _stream: Handle) -> Code {
    allocate(out, size)
}

pub(crate) extern "C" fn allocate_from_pool(
    out: *mut *mut c_void,
    size: usize,
    _pool: *mut c_void,
    stream: Handle,
) -> Code {
    allocate_on(out, size, stream)
}

fn pitch(width: usize) -> Result<usize, Code> {
    width.checked_next_multiple_of(ALIGNMENT).ok_or(INVALID_VALUE)
}

fn allocate_rows(width: usize, rows: usize) -> Result<(*mut c_void, usize), Code> {
    let pitch = pitch(width)?;
    Ok((allocate_bytes(pitch.checked_mul(rows).ok_or(OUT_OF_MEMORY)?)?, pitch))
}

pub(crate) extern "C" fn allocate_pitched(
    out: *mut *mut c_void,
    pitch: *mut usize,
    width: usize,
    height: usize,
) -> Code {
    to_code(allocate_rows(width, height).and_then(|(memory, length)| {
        write_out(pitch, length)?;
        write_out(out, memory)
    }))
}

/// `hipMemAllocPitch`.
pub(crate) extern "C" fn allocate_pitched_elements(
    out: *mut *mut c_void,
    pitch: *mut usize,
    width: usize,
    height: usize,
    _element: c_uint,
) -> Code {
    allocate_pitched(out, pitch, width, height)
}

pub(crate) extern "C" fn allocate_3d(out: *mut Pitched, extent: Extent) -> Code {
    let rows = extent.height.saturating_mul(extent.depth);
    to_code(allocate_rows(extent.width, rows).and_then(|(address, pitch)| {
        write_out(out, Pitched { address, pitch, width: extent.width, height: extent.height })
    }))
}

/// An array is its memory.
fn allocate_elements(out: *mut *mut c_void, bytes: usize, lengths: &[usize]) -> Code {
    allocate(out, lengths.iter().fold(bytes, |bytes, length| bytes.saturating_mul((*length).max(1))))
}

/// The bytes of an element whose channels have these bits.
fn element(format: *const [c_int; 4]) -> usize {
    // SAFETY: the caller passes a format.
    let bits = unsafe { format.as_ref() }.map_or(0, |bits| bits.iter().sum::<c_int>());
    usize::try_from(bits / 8).unwrap_or(0)
}

pub(crate) extern "C" fn allocate_array(
    out: *mut *mut c_void,
    format: *const [c_int; 4],
    width: usize,
    height: usize,
    _flags: c_uint,
) -> Code {
    allocate_elements(out, element(format), &[width, height])
}

pub(crate) extern "C" fn allocate_array_3d(
    out: *mut *mut c_void,
    format: *const [c_int; 4],
    extent: Extent,
    _flags: c_uint,
) -> Code {
    allocate_elements(out, element(format), &[extent.width, extent.height, extent.depth])
}

/// `HIP_ARRAY_DESCRIPTOR` and `HIP_ARRAY3D_DESCRIPTOR`, of arrays with channels of four bytes.
#[repr(C)]
pub(crate) struct Described<const DIMENSIONS: usize> {
    lengths: [usize; DIMENSIONS],
    format: c_uint,
    channels: c_uint,
}

pub(crate) extern "C" fn create_array<const DIMENSIONS: usize>(
    out: *mut *mut c_void,
    described: *const Described<DIMENSIONS>,
) -> Code {
    // SAFETY: the caller passes a descriptor.
    let Some(array) = (unsafe { described.as_ref() }) else { return to_code(Err(INVALID_VALUE)) };
    allocate_elements(out, 4 * usize::try_from(array.channels).unwrap_or(0), &array.lengths)
}

pub(crate) extern "C" fn free(memory: *mut c_void) -> Code {
    if let Some(allocated) = allocated().as_mut() {
        allocated.remove(&memory.addr());
    }
    // SAFETY: the caller got it from one of the functions above.
    unsafe { libc::free(memory) };
    to_code(Ok(()))
}

pub(crate) extern "C" fn free_on(memory: *mut c_void, stream: Handle) -> Code {
    stream::synchronize(stream);
    free(memory)
}

/// Releases all memory of a device. The host memory stays, so that a program that uses it does not crash.
pub(crate) fn forget(device: usize) {
    if let Some(allocated) = allocated().as_mut() {
        allocated.retain(|_, (of, _)| *of != device);
    }
}

fn to_size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

pub(crate) extern "C" fn information(free: *mut usize, size: *mut usize) -> Code {
    to_code(current().and_then(|device| {
        write_out(free, to_size(total() - used(device.number).min(total())))?;
        write_out(size, to_size(total()))
    }))
}

/// `hipDeviceTotalMem`.
pub(crate) extern "C" fn size_of_device(out: *mut usize, device: c_int) -> Code {
    to_code(at(device).and_then(|_| write_out(out, to_size(total()))))
}
