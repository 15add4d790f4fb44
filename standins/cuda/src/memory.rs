//! Memory. Device memory is ordinary memory of the process: an address is the same on host and device. How much of it a device
//! has is counted ([`DeviceMemory`]).

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};

use crate::arrays::Arrays;
use crate::capture;
use crate::code::{Code, Outcome, write_out};
use crate::device_memory::{DeviceMemory, free_and_total};
use crate::driver::{Handle, driver};
use crate::pools::Pools;
use crate::stream::{DefaultStream, Work, submit, submit_and_wait};
use crate::virtual_memory::VirtualMemory;

/// The alignment of the driver's allocations.
const ALIGN: usize = 512;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Memory of this device.
    Device(usize),
    Host,
    Registered,
    /// Physical memory that the program has mapped there.
    Mapped,
    /// Memory of this pool.
    Pool(Handle),
    /// Memory of an allocation node of a graph.
    Graph,
}

impl Kind {
    /// Whether the stand-in has allocated the memory with its own allocator.
    fn is_allocated(self) -> bool {
        !matches!(self, Self::Registered | Self::Mapped)
    }
}

/// The widths of the rows of a pitched allocation are multiples of this.
const PITCH: usize = 512;
/// No context: the memory is not released with one.
const NO_CONTEXT: Handle = 0;

/// The memory that the device can access.
#[derive(Default)]
pub(crate) struct Memory {
    ranges: BTreeMap<usize, Range>,
    pub(crate) on_device: DeviceMemory,
    pub(crate) arrays: Arrays,
    pub(crate) pools: Pools,
    pub(crate) mapped: VirtualMemory,
}

/// Memory as [`Memory::containing`] finds it.
pub(crate) struct Allocation {
    pub(crate) start: usize,
    pub(crate) size: usize,
    pub(crate) kind: Kind,
    pub(crate) context: Handle,
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
        let Some(end) = address.checked_add(length) else { return false };
        // Mapped memory may consist of several ranges without a gap.
        let before = self.ranges.range(..=address).next_back().map_or(address, |(start, _)| *start);
        let mut reached = address;
        for (start, range) in self.ranges.range(before..) {
            if *start > reached {
                break;
            }
            reached = reached.max(start + range.size);
            if reached > address && reached >= end {
                return true;
            }
        }
        false
    }

    /// The memory that contains an address that the device can access.
    pub(crate) fn containing(&self, address: usize) -> Option<Allocation> {
        let (start, range) = self.ranges.range(..=address).next_back()?;
        let Range { size, kind, context } = *range;
        (address - start < size).then_some(Allocation { start: *start, size, kind, context })
    }

    /// The kind of the memory that begins at this address.
    pub(crate) fn kind(&self, address: usize) -> Option<Kind> {
        self.ranges.get(&address).map(|range| range.kind)
    }

    /// Allocates memory that belongs to no context.
    pub(crate) fn add(&mut self, size: usize, kind: Kind) -> Result<usize, Code> {
        // SAFETY: the size is not zero, as the callers have checked.
        let address = unsafe { alloc_zeroed(layout(size)?) } as usize;
        if address == 0 {
            return Err(Code::ERROR_OUT_OF_MEMORY);
        }
        self.ranges.insert(address, Range { size, kind, context: NO_CONTEXT });
        Ok(address)
    }

    /// Makes mapped memory accessible to the device.
    pub(crate) fn add_mapped(&mut self, address: usize, size: usize) {
        self.ranges.insert(address, Range { size, kind: Kind::Mapped, context: NO_CONTEXT });
    }

    /// Mapped memory in this range is no longer accessible.
    pub(crate) fn remove_mapped(&mut self, address: usize, size: usize) {
        let is_inside = |at: &usize| (address..address.saturating_add(size)).contains(at);
        self.ranges.retain(|at, range| range.kind != Kind::Mapped || !is_inside(at));
    }

    /// Removes the record of memory whose kind satisfies a condition. Returns it.
    fn remove(&mut self, address: usize, is_kind: impl FnOnce(Kind) -> bool) -> Option<Range> {
        let range = *self.ranges.get(&address)?;
        is_kind(range.kind).then(|| self.ranges.remove(&address))?
    }

    /// Releases the allocations of a destroyed context, and forgets what it had registered.
    pub(crate) fn end(&mut self, context: Handle) {
        let Self { ranges, on_device, arrays, .. } = self;
        ranges.retain(|address, range| {
            let ends = range.context == context;
            if let (true, Ok(layout)) = (ends && range.kind.is_allocated(), layout(range.size)) {
                // SAFETY: `allocate` allocated it with this layout, and this removes the only record of it.
                unsafe { dealloc(*address as *mut u8, layout) };
            }
            if let (true, Kind::Device(device)) = (ends, range.kind) {
                on_device.free(device, range.size as u64);
            }
            !ends
        });
        for (device, bytes) in arrays.end(context) {
            on_device.free(device, bytes);
        }
    }

    fn overlaps(&self, address: usize, length: usize) -> bool {
        let last = self.ranges.range(..address.saturating_add(length)).next_back();
        last.is_some_and(|(start, range)| start + range.size > address)
    }
}

fn layout(size: usize) -> Result<Layout, Code> {
    Layout::from_size_align(size, ALIGN).map_err(|_| Code::ERROR_OUT_OF_MEMORY)
}

unsafe fn allocate(out: *mut usize, size: usize, is_on_device: bool) -> Outcome {
    let mut driver = driver()?;
    let context = driver.current()?;
    capture::forbid_unsafe(&mut driver)?;
    if size == 0 || out.is_null() {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    let device = driver.contexts[&context].device;
    let memory = &mut driver.memory;
    let kind = if is_on_device { Kind::Device(device) } else { Kind::Host };
    if is_on_device {
        memory.on_device.allocate(device, size as u64)?;
    }
    let added = memory.add(size, kind);
    if added.is_err() && is_on_device {
        memory.on_device.free(device, size as u64);
    }
    let address = added?;
    memory.ranges.insert(address, Range { size, kind, context });
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, address) }
}

fn free(address: usize, is_kind: impl FnOnce(Kind) -> bool) -> Outcome {
    // As the vendor's driver does: work that was launched before may still use the memory.
    crate::context::synchronize_now()?;
    let mut driver = driver()?;
    let range = driver.memory.remove(address, is_kind).ok_or(Code::ERROR_INVALID_VALUE)?;
    match range.kind {
        Kind::Device(device) => driver.memory.on_device.free(device, range.size as u64),
        Kind::Pool(pool) => driver.return_to_pool(pool, range.size as u64),
        _ => {}
    }
    // SAFETY: `add` allocated it with this layout, and its record has been removed.
    unsafe { dealloc(address as *mut u8, layout(range.size)?) };
    Ok(())
}

/// Frees memory of a pool when a stream has reached that point.
pub(crate) fn free_from_pool(address: usize) -> Outcome {
    let mut driver = driver()?;
    let removed = driver.memory.remove(address, |kind| matches!(kind, Kind::Pool(_)));
    let range = removed.ok_or(Code::ERROR_INVALID_VALUE)?;
    if let Kind::Pool(pool) = range.kind {
        driver.return_to_pool(pool, range.size as u64);
    }
    // SAFETY: as above.
    unsafe { dealloc(address as *mut u8, layout(range.size)?) };
    Ok(())
}

pub(crate) unsafe fn alloc(out: *mut usize, size: usize) -> Outcome {
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { allocate(out, size, true) }
}

/// The device's memory holds all of it here.
pub(crate) unsafe fn alloc_managed(out: *mut usize, size: usize, flags: c_uint) -> Outcome {
    if !matches!(flags, 1 | 2) {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { allocate(out, size, true) }
}

pub(crate) unsafe fn alloc_pitch(
    out: *mut usize,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> Outcome {
    let row = width.checked_next_multiple_of(PITCH).ok_or(Code::ERROR_OUT_OF_MEMORY)?;
    let size = row.checked_mul(height).ok_or(Code::ERROR_OUT_OF_MEMORY)?;
    if !matches!(element, 4 | 8 | 16) || pitch.is_null() {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller guarantees that both are valid.
    unsafe {
        allocate(out, size, true)?;
        write_out(pitch, row)
    }
}

pub(crate) unsafe fn release(address: usize) -> Outcome {
    if address == 0 {
        return Ok(());
    }
    free(address, |kind| matches!(kind, Kind::Device(_) | Kind::Pool(_)))
}

pub(crate) unsafe fn info(left: *mut usize, all: *mut usize) -> Outcome {
    let driver = driver()?;
    let (free, total) = free_and_total(driver.contexts[&driver.current()?].device);
    // SAFETY: the caller guarantees that both are valid.
    unsafe {
        write_out(left, usize::try_from(free).unwrap_or(usize::MAX))?;
        write_out(all, usize::try_from(total).unwrap_or(usize::MAX))
    }
}

pub(crate) unsafe fn host_alloc(out: *mut usize, size: usize, _flags: c_uint) -> Outcome {
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { allocate(out, size, false) }
}

pub(crate) unsafe fn alloc_host(out: *mut usize, size: usize) -> Outcome {
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { allocate(out, size, false) }
}

pub(crate) unsafe fn free_host(address: *mut c_void) -> Outcome {
    free(address as usize, |kind| kind == Kind::Host)
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
    crate::context::synchronize_now()?;
    let taken = driver()?.memory.remove(address as usize, |kind| kind == Kind::Registered);
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

pub(crate) unsafe fn on_device(
    default_stream: DefaultStream,
    to: usize,
    from: usize,
    length: usize,
) -> Outcome {
    submit_and_wait(default_stream, copy(to, from, length, &[to, from])?)
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
