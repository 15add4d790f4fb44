//! Memory. Device memory is ordinary memory of the process: an address is the same on host and device.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};

use crate::capture;
use crate::code::{Code, Outcome, write_out};
use crate::driver::{Handle, driver};
use crate::stream::{DefaultStream, Work, submit, submit_and_wait};

/// The alignment of the driver's allocations.
const ALIGN: usize = 512;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Device,
    Host,
    Registered,
}

/// The memory that the device can access.
#[derive(Default)]
pub(crate) struct Memory {
    ranges: BTreeMap<usize, Range>,
}

#[derive(Clone, Copy)]
struct Range {
    size: usize,
    kind: Kind,
    /// The context that it is released with.
    context: Handle,
}

impl Memory {
    /// Whether the device can access all of this range.
    pub(crate) fn reaches(&self, address: usize, length: usize) -> bool {
        let before = self.ranges.range(..=address).next_back();
        before.is_some_and(|(start, range)| {
            address.checked_add(length).is_some_and(|end| end <= start + range.size)
        })
    }

    fn remove(&mut self, address: usize, kinds: &[Kind]) -> Option<usize> {
        let range = *self.ranges.get(&address)?;
        kinds.contains(&range.kind).then(|| self.ranges.remove(&address))?;
        Some(range.size)
    }

    /// Releases the allocations of a destroyed context, and forgets what it had registered.
    pub(crate) fn end(&mut self, context: Handle) {
        self.ranges.retain(|address, range| {
            let ends = range.context == context;
            if let (true, Ok(layout)) = (ends && range.kind != Kind::Registered, layout(range.size)) {
                // SAFETY: `allocate` allocated it with this layout, and this removes the only record of it.
                unsafe { dealloc(*address as *mut u8, layout) };
            }
            !ends
        });
    }

    fn overlaps(&self, address: usize, length: usize) -> bool {
        let last = self.ranges.range(..address.saturating_add(length)).next_back();
        last.is_some_and(|(start, range)| start + range.size > address)
    }
}

fn layout(size: usize) -> Result<Layout, Code> {
    Layout::from_size_align(size, ALIGN).map_err(|_| Code::ERROR_OUT_OF_MEMORY)
}

unsafe fn allocate(out: *mut usize, size: usize, kind: Kind) -> Outcome {
    let mut driver = driver()?;
    let context = driver.current()?;
    capture::forbid_unsafe(&mut driver)?;
    if size == 0 || out.is_null() {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    // SAFETY: the size is not zero.
    let address = unsafe { alloc_zeroed(layout(size)?) } as usize;
    if address == 0 {
        return Err(Code::ERROR_OUT_OF_MEMORY);
    }
    driver.memory.ranges.insert(address, Range { size, kind, context });
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, address) }
}

fn free(address: usize, kind: Kind) -> Outcome {
    // As the vendor's driver does: work that was launched before may still use the memory.
    crate::context::synchronize()?;
    let size = driver()?.memory.remove(address, &[kind]).ok_or(Code::ERROR_INVALID_VALUE)?;
    // SAFETY: `allocate` allocated it with this layout, and its record has been removed.
    unsafe { dealloc(address as *mut u8, layout(size)?) };
    Ok(())
}

pub(crate) unsafe fn alloc(out: *mut usize, size: usize) -> Outcome {
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { allocate(out, size, Kind::Device) }
}

pub(crate) unsafe fn release(address: usize) -> Outcome {
    if address == 0 { Ok(()) } else { free(address, Kind::Device) }
}

pub(crate) unsafe fn info(left: *mut usize, all: *mut usize) -> Outcome {
    driver()?.current()?;
    // SAFETY: the caller guarantees that both are valid.
    unsafe {
        write_out(left, 15 << 30)?;
        write_out(all, 16 << 30)
    }
}

pub(crate) unsafe fn host_alloc(out: *mut usize, size: usize, _flags: c_uint) -> Outcome {
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { allocate(out, size, Kind::Host) }
}

pub(crate) unsafe fn alloc_host(out: *mut usize, size: usize) -> Outcome {
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { allocate(out, size, Kind::Host) }
}

pub(crate) unsafe fn free_host(address: *mut c_void) -> Outcome {
    free(address as usize, Kind::Host)
}

pub(crate) unsafe fn register(address: *mut c_void, size: usize, _flags: c_uint) -> Outcome {
    let mut driver = driver()?;
    let context = driver.current()?;
    if address.is_null() || size == 0 {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    if driver.memory.overlaps(address as usize, size) {
        return Err(Code::ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    }
    driver.memory.ranges.insert(address as usize, Range { size, kind: Kind::Registered, context });
    Ok(())
}

pub(crate) unsafe fn unregister(address: *mut c_void) -> Outcome {
    crate::context::synchronize()?;
    let taken = driver()?.memory.remove(address as usize, &[Kind::Registered]);
    taken.map(drop).ok_or(Code::ERROR_HOST_MEMORY_NOT_REGISTERED)
}

pub(crate) unsafe fn device_pointer(out: *mut usize, address: *mut c_void, flags: c_uint) -> Outcome {
    let driver = driver()?;
    driver.current()?;
    if flags != 0 || !driver.memory.reaches(address as usize, 1) {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, address as usize) }
}

/// A copy of which the given addresses must be device memory.
fn copy(to: usize, from: usize, length: usize, device_side: &[usize]) -> Result<Work, Code> {
    let driver = driver()?;
    let reached = device_side.iter().all(|address| driver.memory.reaches(*address, length));
    if reached { Ok(Work::Copy { to, from, length }) } else { Err(Code::ERROR_INVALID_VALUE) }
}

pub(crate) unsafe fn to_device(
    default_stream: DefaultStream,
    to: usize,
    from: *const c_void,
    length: usize,
) -> Outcome {
    submit_and_wait(default_stream, copy(to, from as usize, length, &[to])?)
}

pub(crate) unsafe fn to_host(
    default_stream: DefaultStream,
    to: *mut c_void,
    from: usize,
    length: usize,
) -> Outcome {
    submit_and_wait(default_stream, copy(to as usize, from, length, &[from])?)
}

/// Reads the source at submission if it is pageable host memory, because the program may change it afterwards.
fn stage_pageable(from: usize, length: usize) -> Result<Option<Vec<u8>>, Code> {
    if driver()?.memory.reaches(from, length) {
        return Ok(None);
    }
    // SAFETY: the caller of the copy guarantees that this much can be read there.
    Ok(Some(unsafe { std::slice::from_raw_parts(from as *const u8, length) }.to_vec()))
}

pub(crate) unsafe fn to_device_async(
    default_stream: DefaultStream,
    to: usize,
    from: *const c_void,
    length: usize,
    stream: Handle,
) -> Outcome {
    let work = copy(to, from as usize, length, &[to])?;
    let work = match stage_pageable(from as usize, length)? {
        Some(bytes) => Work::Put { to, bytes: bytes.into() },
        None => work,
    };
    submit(default_stream, stream, work)
}

pub(crate) unsafe fn to_host_async(
    default_stream: DefaultStream,
    to: *mut c_void,
    from: usize,
    length: usize,
    stream: Handle,
) -> Outcome {
    submit(default_stream, stream, copy(to as usize, from, length, &[from])?)
}

pub(crate) unsafe fn on_device_async(
    default_stream: DefaultStream,
    to: usize,
    from: usize,
    length: usize,
    stream: Handle,
) -> Outcome {
    submit(default_stream, stream, copy(to, from, length, &[to, from])?)
}

fn set(to: usize, value: c_uint, count: usize) -> Result<Work, Code> {
    let length = count.checked_mul(4).ok_or(Code::ERROR_INVALID_VALUE)?;
    if to.is_multiple_of(4) && driver()?.memory.reaches(to, length) {
        Ok(Work::Set { to, value, count })
    } else {
        Err(Code::ERROR_INVALID_VALUE)
    }
}

pub(crate) unsafe fn set_words(
    default_stream: DefaultStream,
    to: usize,
    value: c_uint,
    count: usize,
) -> Outcome {
    submit_and_wait(default_stream, set(to, value, count)?)
}

pub(crate) unsafe fn set_words_async(
    default_stream: DefaultStream,
    to: usize,
    value: c_uint,
    count: usize,
    stream: Handle,
) -> Outcome {
    submit(default_stream, stream, set(to, value, count)?)
}

/// `cuPointerGetAttribute`, for `CU_POINTER_ATTRIBUTE_MEMORY_TYPE` only.
pub(crate) unsafe fn attribute(out: *mut c_void, which: c_int, address: usize) -> Outcome {
    let driver = driver()?;
    let range = driver.memory.ranges.range(..=address).next_back();
    let kind = range.filter(|_| driver.memory.reaches(address, 1)).map(|(_, range)| range.kind);
    match (which, kind) {
        // SAFETY: the caller guarantees room for this attribute's type.
        (2, Some(kind)) => unsafe {
            write_out(out.cast::<c_uint>(), if kind == Kind::Device { 2 } else { 1 })
        },
        _ => Err(Code::ERROR_INVALID_VALUE),
    }
}
