//! Memory. The device's lies in the process as everything else: an address means the same on both sides.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};

use crate::capture;
use crate::code::{Code, Outcome, put};
use crate::stream::{Form, Work, submit, submit_and_wait};
use crate::world::{Handle, world};

/// Where the driver's allocations begin: at multiples of this.
const ALIGN: usize = 512;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Device,
    Host,
    Registered,
}

/// What can be reached by the device.
#[derive(Default)]
pub(crate) struct Memory {
    ranges: BTreeMap<usize, Range>,
}

#[derive(Clone, Copy)]
struct Range {
    size: usize,
    kind: Kind,
    /// The context it ends with.
    context: Handle,
}

impl Memory {
    /// Whether the device can reach all of this.
    pub(crate) fn reaches(&self, address: usize, length: usize) -> bool {
        let before = self.ranges.range(..=address).next_back();
        before.is_some_and(|(start, range)| {
            address.checked_add(length).is_some_and(|end| end <= start + range.size)
        })
    }

    fn take(&mut self, address: usize, kinds: &[Kind]) -> Option<usize> {
        let range = *self.ranges.get(&address)?;
        kinds.contains(&range.kind).then(|| self.ranges.remove(&address))?;
        Some(range.size)
    }

    /// A context has ended: what it had allocated is freed, and what it had registered is reached no more.
    pub(crate) fn end(&mut self, context: Handle) {
        self.ranges.retain(|address, range| {
            let ends = range.context == context;
            if let (true, Ok(layout)) = (ends && range.kind != Kind::Registered, layout(range.size)) {
                // SAFETY: `allocate` made it with this layout, and nobody can find it any more.
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
    let mut world = world()?;
    let context = world.current()?;
    capture::forbid_unsafe(&mut world)?;
    if size == 0 || out.is_null() {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    // SAFETY: the size is not zero.
    let address = unsafe { alloc_zeroed(layout(size)?) } as usize;
    if address == 0 {
        return Err(Code::ERROR_OUT_OF_MEMORY);
    }
    world.memory.ranges.insert(address, Range { size, kind, context });
    // SAFETY: the caller vouches for `out`.
    unsafe { put(out, address) }
}

fn free(address: usize, kind: Kind) -> Outcome {
    // As the driver does: nothing that was launched before uses the memory any more.
    crate::context::synchronize()?;
    let size = world()?.memory.take(address, &[kind]).ok_or(Code::ERROR_INVALID_VALUE)?;
    // SAFETY: `allocate` made it with this layout, and nobody can find it any more.
    unsafe { dealloc(address as *mut u8, layout(size)?) };
    Ok(())
}

pub(crate) unsafe fn alloc(out: *mut usize, size: usize) -> Outcome {
    // SAFETY: the caller vouches for `out`.
    unsafe { allocate(out, size, Kind::Device) }
}

pub(crate) unsafe fn release(address: usize) -> Outcome {
    if address == 0 { Ok(()) } else { free(address, Kind::Device) }
}

pub(crate) unsafe fn info(left: *mut usize, all: *mut usize) -> Outcome {
    world()?.current()?;
    // SAFETY: the caller vouches for both.
    unsafe {
        put(left, 15 << 30)?;
        put(all, 16 << 30)
    }
}

pub(crate) unsafe fn host_alloc(out: *mut usize, size: usize, _flags: c_uint) -> Outcome {
    // SAFETY: the caller vouches for `out`.
    unsafe { allocate(out, size, Kind::Host) }
}

pub(crate) unsafe fn alloc_host(out: *mut usize, size: usize) -> Outcome {
    // SAFETY: the caller vouches for `out`.
    unsafe { allocate(out, size, Kind::Host) }
}

pub(crate) unsafe fn free_host(address: *mut c_void) -> Outcome {
    free(address as usize, Kind::Host)
}

pub(crate) unsafe fn register(address: *mut c_void, size: usize, _flags: c_uint) -> Outcome {
    let mut world = world()?;
    let context = world.current()?;
    if address.is_null() || size == 0 {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    if world.memory.overlaps(address as usize, size) {
        return Err(Code::ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    }
    world.memory.ranges.insert(address as usize, Range { size, kind: Kind::Registered, context });
    Ok(())
}

pub(crate) unsafe fn unregister(address: *mut c_void) -> Outcome {
    crate::context::synchronize()?;
    let taken = world()?.memory.take(address as usize, &[Kind::Registered]);
    taken.map(drop).ok_or(Code::ERROR_HOST_MEMORY_NOT_REGISTERED)
}

pub(crate) unsafe fn device_pointer(out: *mut usize, address: *mut c_void, flags: c_uint) -> Outcome {
    let world = world()?;
    world.current()?;
    if flags != 0 || !world.memory.reaches(address as usize, 1) {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller vouches for `out`.
    unsafe { put(out, address as usize) }
}

/// A copy between host and device: one side must be the device's.
fn copy(to: usize, from: usize, length: usize, device_side: &[usize]) -> Result<Work, Code> {
    let world = world()?;
    let reached = device_side.iter().all(|address| world.memory.reaches(*address, length));
    if reached { Ok(Work::Copy { to, from, length }) } else { Err(Code::ERROR_INVALID_VALUE) }
}

pub(crate) unsafe fn to_device(form: Form, to: usize, from: *const c_void, length: usize) -> Outcome {
    submit_and_wait(form, copy(to, from as usize, length, &[to])?)
}

pub(crate) unsafe fn to_host(form: Form, to: *mut c_void, from: usize, length: usize) -> Outcome {
    submit_and_wait(form, copy(to as usize, from, length, &[from])?)
}

/// What lies in memory that can change under the driver is read when the copy is asked for, as from pageable memory.
fn readable(from: usize, length: usize) -> Result<Option<Vec<u8>>, Code> {
    if world()?.memory.reaches(from, length) {
        return Ok(None);
    }
    // SAFETY: the caller of the copy vouches that this much can be read there.
    Ok(Some(unsafe { std::slice::from_raw_parts(from as *const u8, length) }.to_vec()))
}

pub(crate) unsafe fn to_device_async(
    form: Form,
    to: usize,
    from: *const c_void,
    length: usize,
    stream: Handle,
) -> Outcome {
    let work = copy(to, from as usize, length, &[to])?;
    let work = match readable(from as usize, length)? {
        Some(bytes) => Work::Put { to, bytes: bytes.into() },
        None => work,
    };
    submit(form, stream, work)
}

pub(crate) unsafe fn to_host_async(
    form: Form,
    to: *mut c_void,
    from: usize,
    length: usize,
    stream: Handle,
) -> Outcome {
    submit(form, stream, copy(to as usize, from, length, &[from])?)
}

pub(crate) unsafe fn on_device_async(
    form: Form,
    to: usize,
    from: usize,
    length: usize,
    stream: Handle,
) -> Outcome {
    submit(form, stream, copy(to, from, length, &[to, from])?)
}

fn set(to: usize, value: c_uint, count: usize) -> Result<Work, Code> {
    let length = count.checked_mul(4).ok_or(Code::ERROR_INVALID_VALUE)?;
    if to.is_multiple_of(4) && world()?.memory.reaches(to, length) {
        Ok(Work::Set { to, value, count })
    } else {
        Err(Code::ERROR_INVALID_VALUE)
    }
}

pub(crate) unsafe fn set_words(form: Form, to: usize, value: c_uint, count: usize) -> Outcome {
    submit_and_wait(form, set(to, value, count)?)
}

pub(crate) unsafe fn set_words_async(
    form: Form,
    to: usize,
    value: c_uint,
    count: usize,
    stream: Handle,
) -> Outcome {
    submit(form, stream, set(to, value, count)?)
}

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE` and no other.
pub(crate) unsafe fn attribute(out: *mut c_void, which: c_int, address: usize) -> Outcome {
    let world = world()?;
    let range = world.memory.ranges.range(..=address).next_back();
    let kind = range.filter(|_| world.memory.reaches(address, 1)).map(|(_, range)| range.kind);
    match (which, kind) {
        // SAFETY: the caller vouches for room for what this attribute is.
        (2, Some(kind)) => unsafe { put(out.cast::<c_uint>(), if kind == Kind::Device { 2 } else { 1 }) },
        _ => Err(Code::ERROR_INVALID_VALUE),
    }
}
