//! Signal memory, copies and fills. Device memory is host memory.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::capture::Node;
use crate::device::{current, write_out};
use crate::device_memory;
use crate::error::{Code, INVALID_VALUE, to_code};
use crate::kernel;
use crate::stall;
use crate::stream::{self, Handle};

/// Signal memory, on which streams wait: each allocation is a page of its own.
static SIGNALS: Mutex<Vec<usize>> = Mutex::new(Vec::new());
const PAGE: usize = 4096;

pub(crate) extern "C" fn allocate_with_flags(out: *mut *mut c_void, size: usize, flags: c_uint) -> Code {
    /// `hipMallocSignalMemory`: exactly eight bytes.
    const SIGNAL: c_uint = 2;
    if flags != SIGNAL {
        return device_memory::allocate(out, size);
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

/// How long a copy or a fill occupies the queue, if a kernel carries it out.
const LENGTH: Duration = Duration::from_micros(10);
/// The largest copy between host and device that a kernel carries out.
const LARGEST_KERNEL_COPY: usize = 16 << 10;
/// `hipMemcpyHostToDevice` and `hipMemcpyDeviceToHost`.
const TO_DEVICE: c_int = 1;
const TO_HOST: c_int = 2;

/// Runs a kernel that changes memory. As for the program's kernels, the effect is immediate, and the work takes its time.
fn run_kernel(name: &str, handle: Handle, change: impl FnOnce()) -> Result<(), Code> {
    let stream = stream::get(handle)?;
    kernel::log(name);
    change();
    if stream.record(Node::Kernel(LENGTH)) { Ok(()) } else { stream.queue.launch(LENGTH) }
}

fn wait(handle: Handle) -> Result<(), Code> {
    let stream = stream::get(handle)?;
    let marker = stream.queue.mark()?;
    stream.queue.wait(marker)
}

fn copy_range(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    kind: c_int,
    stream: Handle,
) -> Result<(), Code> {
    if to.is_null() || from.is_null() {
        return Err(INVALID_VALUE);
    }
    let change = || {
        // SAFETY: the caller guarantees both ranges.
        unsafe { libc::memmove(to, from, size) };
    };
    if size <= LARGEST_KERNEL_COPY || !matches!(kind, TO_DEVICE | TO_HOST) {
        return run_kernel("copy", stream, change);
    }
    // A copy engine, which does not use the queue. It copies when everything before it has completed.
    wait(stream)?;
    kernel::log("engine copy");
    change();
    Ok(())
}

pub(crate) extern "C" fn copy_on(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    kind: c_int,
    stream: Handle,
) -> Code {
    to_code(copy_range(to, from, size, kind, stream))
}

pub(crate) extern "C" fn copy_and_wait(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    kind: c_int,
    stream: Handle,
) -> Code {
    to_code(copy_range(to, from, size, kind, stream).and_then(|()| wait(stream)))
}

pub(crate) extern "C" fn copy(to: *mut c_void, from: *const c_void, size: usize, kind: c_int) -> Code {
    copy_and_wait(to, from, size, kind, std::ptr::null_mut())
}

pub(crate) extern "C" fn copy_to_host(to: *mut c_void, from: *const c_void, size: usize) -> Code {
    copy(to, from, size, TO_HOST)
}

pub(crate) extern "C" fn copy_to_device(to: *mut c_void, from: *const c_void, size: usize) -> Code {
    copy(to, from, size, TO_DEVICE)
}

/// `hipMemcpyDtoDAsync`.
pub(crate) extern "C" fn copy_within_on(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    stream: Handle,
) -> Code {
    copy_on(to, from, size, 3, stream)
}

#[allow(clippy::too_many_arguments, reason = "the runtime's")]
pub(crate) extern "C" fn copy_2d_on(
    to: *mut c_void,
    to_pitch: usize,
    from: *const c_void,
    from_pitch: usize,
    width: usize,
    height: usize,
    _kind: c_int,
    stream: Handle,
) -> Code {
    if to.is_null() || from.is_null() || width > to_pitch.min(from_pitch) {
        return to_code(Err(INVALID_VALUE));
    }
    to_code(run_kernel("copy", stream, || {
        for row in 0..height {
            // SAFETY: the caller guarantees both rectangles.
            unsafe { libc::memmove(to.byte_add(row * to_pitch), from.byte_add(row * from_pitch), width) };
        }
    }))
}

/// A fill of `rows` rows of `count` elements.
fn fill<T: Copy>(to: *mut c_void, pitch: usize, value: T, count: usize, rows: usize, stream: Handle) -> Code {
    if to.is_null() {
        return to_code(Err(INVALID_VALUE));
    }
    to_code(run_kernel("fill", stream, || {
        for row in 0..rows {
            for n in 0..count {
                // SAFETY: the caller guarantees the memory.
                unsafe { to.byte_add(row * pitch).cast::<T>().add(n).write_unaligned(value) };
            }
        }
    }))
}

/// The lowest byte of a value.
fn byte(value: c_int) -> u8 {
    value.to_ne_bytes()[0]
}

pub(crate) extern "C" fn set_on(to: *mut c_void, value: c_int, size: usize, stream: Handle) -> Code {
    fill(to, 0, byte(value), size, 1, stream)
}

pub(crate) extern "C" fn set(to: *mut c_void, value: c_int, size: usize) -> Code {
    set_on(to, value, size, std::ptr::null_mut())
}

pub(crate) extern "C" fn set_32_on(to: *mut c_void, value: c_int, count: usize, stream: Handle) -> Code {
    fill(to, 0, value, count, 1, stream)
}

pub(crate) extern "C" fn set_2d_on(
    to: *mut c_void,
    pitch: usize,
    value: c_int,
    width: usize,
    height: usize,
    stream: Handle,
) -> Code {
    fill(to, pitch, byte(value), width, height, stream)
}

/// `hipPitchedPtr`.
#[repr(C)]
pub(crate) struct Pitched {
    pub(crate) address: *mut c_void,
    pub(crate) pitch: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// `hipExtent`.
#[repr(C)]
pub(crate) struct Extent {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}

pub(crate) extern "C" fn set_3d_on(to: Pitched, value: c_int, extent: Extent, stream: Handle) -> Code {
    if extent.width > to.width || extent.height > to.height {
        return to_code(Err(INVALID_VALUE));
    }
    fill(to.address, to.pitch, byte(value), extent.width, extent.height * extent.depth, stream)
}
