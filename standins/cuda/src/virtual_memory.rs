//! Virtual memory management: physical memory that the program maps itself (`cuMemCreate`, `cuMemMap`).
//!
//! Physical memory is a file in memory. It is freed when its handle was released and nothing maps it, as in the vendor's
//! driver.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_void};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

use crate::code::{Code, Outcome, write_out};
use crate::device::index;
use crate::device_memory::PAGE;
use crate::driver::{Handle, driver, new_handle};

/// `CU_MEM_ALLOCATION_TYPE_PINNED` and `CU_MEM_LOCATION_TYPE_DEVICE`.
const PINNED: c_int = 1;
const ON_DEVICE: c_int = 1;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location {
    kind: c_int,
    id: c_int,
}

impl Location {
    /// The device that it means.
    pub(crate) fn device(self) -> Result<usize, Code> {
        if self.kind == ON_DEVICE { index(self.id) } else { Err(Code::ERROR_NOT_SUPPORTED) }
    }
}

/// `CUmemAllocationProp`.
#[repr(C)]
pub(crate) struct Properties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    metadata: *mut c_void,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
pub(crate) struct Access {
    location: Location,
    flags: c_int,
}

struct Physical {
    file: OwnedFd,
    device: usize,
    size: usize,
}

struct Mapping {
    size: usize,
    handle: Handle,
    physical: Arc<Physical>,
}

/// The address ranges, the physical memory and the mappings of this process.
#[derive(Default)]
pub(crate) struct VirtualMemory {
    reserved: BTreeMap<usize, usize>,
    /// With the number of references that the program holds.
    physical: HashMap<Handle, (Arc<Physical>, u32)>,
    mappings: BTreeMap<usize, Mapping>,
}

fn page() -> usize {
    usize::try_from(PAGE).unwrap_or(usize::MAX)
}

fn is_in_pages(size: usize) -> bool {
    size > 0 && size.is_multiple_of(page())
}

pub(crate) unsafe fn granularity(out: *mut usize, properties: *const Properties, _which: c_int) -> Outcome {
    driver()?;
    // SAFETY: null, or the caller guarantees properties.
    let properties = unsafe { properties.as_ref() }.ok_or(Code::ERROR_INVALID_VALUE)?;
    properties.location.device()?;
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, page()) }
}

pub(crate) unsafe fn create(
    out: *mut Handle,
    size: usize,
    properties: *const Properties,
    flags: u64,
) -> Outcome {
    let mut driver = driver()?;
    // SAFETY: null, or the caller guarantees properties.
    let properties = unsafe { properties.as_ref() }.ok_or(Code::ERROR_INVALID_VALUE)?;
    if !is_in_pages(size) || flags != 0 || out.is_null() || properties.kind != PINNED {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    let device = properties.location.device()?;
    driver.memory.on_device.allocate(device, size as u64)?;
    let file = memfd_create("standin-cuda", MemfdFlags::CLOEXEC);
    let file = file.and_then(|file| ftruncate(&file, size as u64).map(|()| file));
    let Ok(file) = file else {
        driver.memory.on_device.free(device, size as u64);
        return Err(Code::ERROR_OUT_OF_MEMORY);
    };
    let handle = new_handle();
    driver.memory.mapped.physical.insert(handle, (Arc::new(Physical { file, device, size }), 1));
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, handle) }
}

pub(crate) unsafe fn release(handle: Handle) -> Outcome {
    let mut driver = driver()?;
    let memory = &mut driver.memory.mapped;
    let (_, references) = memory.physical.get_mut(&handle).ok_or(Code::ERROR_INVALID_VALUE)?;
    *references -= 1;
    if *references == 0 {
        let ended = memory.physical.remove(&handle);
        driver.memory.free_unmapped(ended.map(|(physical, _)| physical));
    }
    Ok(())
}

pub(crate) unsafe fn retain(out: *mut Handle, address: *mut c_void) -> Outcome {
    let mut driver = driver()?;
    let memory = &mut driver.memory.mapped;
    let mapping = memory.mappings.range(..=address as usize).next_back();
    let mapping = mapping.filter(|(start, mapping)| (address as usize) < *start + mapping.size);
    let (_, Mapping { handle, physical, .. }) = mapping.ok_or(Code::ERROR_INVALID_VALUE)?;
    let (handle, physical) = (*handle, Arc::clone(physical));
    memory.physical.entry(handle).or_insert((physical, 0)).1 += 1;
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, handle) }
}

pub(crate) unsafe fn reserve_addresses(
    out: *mut usize,
    size: usize,
    _alignment: usize,
    _at: usize,
    flags: u64,
) -> Outcome {
    let mut driver = driver()?;
    if !is_in_pages(size) || flags != 0 || out.is_null() {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    let room = size.checked_add(page()).ok_or(Code::ERROR_OUT_OF_MEMORY)?;
    // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), room, ProtFlags::empty(), MapFlags::PRIVATE) };
    let start = start.map_err(|_| Code::ERROR_OUT_OF_MEMORY)? as usize;
    let aligned = start.next_multiple_of(page());
    let behind = aligned + size;
    for (from, to) in [(start, aligned), (behind, start + room)].into_iter().filter(|(from, to)| from < to) {
        // SAFETY: a part of the range that was mapped above, and that nothing uses.
        let _ = unsafe { munmap(from as *mut c_void, to - from) };
    }
    driver.memory.mapped.reserved.insert(aligned, size);
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, aligned) }
}

pub(crate) unsafe fn free_addresses(address: usize, size: usize) -> Outcome {
    let mut driver = driver()?;
    let memory = &mut driver.memory.mapped;
    if memory.reserved.get(&address) != Some(&size)
        || memory.mappings.range(address..address + size).next().is_some()
    {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    memory.reserved.remove(&address);
    // SAFETY: reserved by `reserve_addresses`, with nothing mapped in it.
    unsafe { munmap(address as *mut c_void, size) }.map_err(|_| Code::ERROR_INVALID_VALUE)
}

pub(crate) unsafe fn map(address: usize, size: usize, offset: usize, handle: Handle, flags: u64) -> Outcome {
    let mut driver = driver()?;
    let memory = &mut driver.memory.mapped;
    let (physical, _) = memory.physical.get(&handle).ok_or(Code::ERROR_INVALID_VALUE)?;
    let physical = Arc::clone(physical);
    let end = address.checked_add(size).ok_or(Code::ERROR_INVALID_VALUE)?;
    let reserved = memory.reserved.range(..=address).next_back();
    let is_reserved = reserved.is_some_and(|(start, length)| end <= start + length);
    let is_mapped =
        memory.mappings.range(..end).next_back().is_some_and(|(start, its)| start + its.size > address);
    if flags != 0 || offset != 0 || size != physical.size || !is_reserved || is_mapped {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    let how = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the range was reserved, and nothing is mapped there.
    unsafe { mmap(address as *mut c_void, size, ProtFlags::empty(), how, &physical.file, 0) }
        .map_err(|_| Code::ERROR_OUT_OF_MEMORY)?;
    memory.mappings.insert(address, Mapping { size, handle, physical });
    Ok(())
}

pub(crate) unsafe fn set_access(address: usize, size: usize, access: *const Access, count: usize) -> Outcome {
    let mut driver = driver()?;
    // SAFETY: null, or the caller guarantees `count` descriptions.
    let access = unsafe { access.as_ref() }.filter(|_| count == 1).ok_or(Code::ERROR_INVALID_VALUE)?;
    access.location.device()?;
    let mappings = &driver.memory.mapped.mappings;
    let covered: usize = mappings.range(address..address + size).map(|(_, mapping)| mapping.size).sum();
    if covered != size || access.flags != 3 {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    // SAFETY: mapped by `map`.
    unsafe { mprotect(address as *mut c_void, size, MprotectFlags::READ | MprotectFlags::WRITE) }
        .map_err(|_| Code::ERROR_INVALID_VALUE)?;
    driver.memory.add_mapped(address, size);
    Ok(())
}

pub(crate) unsafe fn unmap(address: usize, size: usize) -> Outcome {
    // Needs no context, which may have been destroyed with its work.
    let has_context = driver()?.current().is_ok();
    if has_context {
        crate::context::synchronize_now()?;
    }
    let mut driver = driver()?;
    let mappings = &mut driver.memory.mapped.mappings;
    let inside: Vec<_> =
        mappings.range(address..address.saturating_add(size)).map(|(at, its)| (*at, its.size)).collect();
    if inside.iter().map(|(_, size)| size).sum::<usize>() != size {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    let unmapped: Vec<_> = inside.iter().filter_map(|(at, _)| mappings.remove(at)).collect();
    let how = MapFlags::PRIVATE | MapFlags::FIXED;
    // SAFETY: the range stays reserved, and its mappings have been removed.
    unsafe { mmap_anonymous(address as *mut c_void, size, ProtFlags::empty(), how) }
        .map_err(|_| Code::ERROR_OUT_OF_MEMORY)?;
    driver.memory.remove_mapped(address, size);
    driver.memory.free_unmapped(unmapped.into_iter().map(|mapping| mapping.physical));
    Ok(())
}

impl crate::memory::Memory {
    /// Frees physical memory that neither a handle nor a mapping refers to any more.
    fn free_unmapped(&mut self, ended: impl IntoIterator<Item = Arc<Physical>>) {
        for physical in ended {
            if let Some(physical) = Arc::into_inner(physical) {
                self.on_device.free(physical.device, physical.size as u64);
            }
        }
    }
}
