//! Memory pools and stream-ordered allocation.
//!
//! A pool reserves memory of its device in large pieces. When an allocation was freed and its stream has reached that point, the
//! pool keeps as much of its reserve as its release threshold permits.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};

use crate::capture::{self, Exec};
use crate::code::{Code, Outcome, write_out};
use crate::device::index;
use crate::device_memory::PAGE;
use crate::driver::{Driver, Handle, driver, new_handle};
use crate::memory::{self, Kind};
use crate::stream::{DefaultStream, Work, resolve, submit};
use crate::virtual_memory::Location;

/// By how much a pool grows, if the device has as much.
const PIECE: u64 = 32 << 20;

/// `CUmemPool_attribute`.
const RELEASE_THRESHOLD: c_int = 4;
const RESERVED: c_int = 5;
const RESERVED_HIGH: c_int = 6;
const USED: c_int = 7;
const USED_HIGH: c_int = 8;

/// The beginning of `CUmemPoolProps`.
#[repr(C)]
pub(crate) struct Properties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
}

struct Pool {
    device: usize,
    is_default: bool,
    threshold: u64,
    used: u64,
    used_high: u64,
    reserved: u64,
    reserved_high: u64,
}

/// The pools of this process.
#[derive(Default)]
pub(crate) struct Pools {
    all: HashMap<Handle, Pool>,
    /// By device.
    defaults: HashMap<usize, Handle>,
    /// The pools that `cuMemAllocAsync` uses, by device, where they are not the default ones.
    current: HashMap<usize, Handle>,
    /// The memory that graphs have reserved, by device: one amount for each graph.
    graphs: HashMap<usize, Vec<u64>>,
}

impl Pools {
    fn make(&mut self, device: usize, is_default: bool) -> Handle {
        let (handle, threshold) = (new_handle(), 0);
        let pool =
            Pool { device, is_default, threshold, used: 0, used_high: 0, reserved: 0, reserved_high: 0 };
        self.all.insert(handle, pool);
        handle
    }

    fn default(&mut self, device: usize) -> Handle {
        let known = self.defaults.get(&device).copied();
        known.unwrap_or_else(|| {
            let made = self.make(device, true);
            self.defaults.insert(device, made);
            made
        })
    }

    fn current(&mut self, device: usize) -> Handle {
        let chosen = self.current.get(&device).copied();
        chosen.unwrap_or_else(|| self.default(device))
    }
}

impl Driver {
    fn grow_pool(&mut self, pool: Handle, bytes: u64) -> Outcome {
        let memory = &mut self.memory;
        let pool = memory.pools.all.get_mut(&pool).ok_or(Code::ERROR_INVALID_VALUE)?;
        let needed = pool.used.checked_add(bytes).ok_or(Code::ERROR_OUT_OF_MEMORY)?;
        if needed > pool.reserved {
            let steps = [PIECE, PAGE].into_iter().filter_map(|step| needed.checked_next_multiple_of(step));
            let grown = steps.map(|reserved| (reserved, reserved - pool.reserved)).find(|(_, more)| {
                let pages = more / PAGE;
                // Page by page, because the pool may give back parts of it.
                let taken = (0..pages)
                    .take_while(|_| memory.on_device.allocate(pool.device, PAGE).is_ok())
                    .count() as u64;
                if taken < pages {
                    (0..taken).for_each(|_| memory.on_device.free(pool.device, PAGE));
                }
                taken == pages
            });
            pool.reserved = grown.ok_or(Code::ERROR_OUT_OF_MEMORY)?.0;
            pool.reserved_high = pool.reserved_high.max(pool.reserved);
        }
        pool.used = needed;
        pool.used_high = pool.used_high.max(needed);
        Ok(())
    }

    fn shrink_pool(&mut self, pool: Handle, keep: u64) {
        let memory = &mut self.memory;
        let Some(pool) = memory.pools.all.get_mut(&pool) else { return };
        let kept = pool.used.next_multiple_of(PAGE).max(keep.min(pool.reserved).next_multiple_of(PAGE));
        (0..(pool.reserved - kept.min(pool.reserved)) / PAGE)
            .for_each(|_| memory.on_device.free(pool.device, PAGE));
        pool.reserved = kept.min(pool.reserved);
    }

    /// Frees memory of a pool whose record was removed.
    pub(crate) fn return_to_pool(&mut self, pool: Handle, bytes: u64) {
        let Some(its) = self.memory.pools.all.get_mut(&pool) else { return };
        its.used = its.used.saturating_sub(bytes);
        let threshold = its.threshold;
        self.shrink_pool(pool, threshold);
    }

    /// Reserves the memory of a graph when it is launched for the first time.
    pub(crate) fn reserve_for_graph(&mut self, device: usize, bytes: u64) -> Outcome {
        self.memory.on_device.allocate(device, bytes)?;
        self.memory.pools.graphs.entry(device).or_default().push(bytes);
        Ok(())
    }
}

pub(crate) unsafe fn create(out: *mut Handle, properties: *const Properties) -> Outcome {
    // SAFETY: null, or the caller guarantees properties.
    let properties = unsafe { properties.as_ref() }.ok_or(Code::ERROR_INVALID_VALUE)?;
    let device = properties.location.device()?;
    let pool = driver()?.memory.pools.make(device, false);
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, pool) }
}

/// The memory of a pool outlives it in the vendor's driver. Here a pool with memory in use cannot be destroyed.
pub(crate) unsafe fn destroy(pool: Handle) -> Outcome {
    let mut driver = driver()?;
    let its = driver.memory.pools.all.get(&pool).filter(|its| !its.is_default && its.used == 0);
    its.ok_or(Code::ERROR_INVALID_VALUE)?;
    driver.shrink_pool(pool, 0);
    driver.memory.pools.all.remove(&pool);
    driver.memory.pools.current.retain(|_, current| *current != pool);
    Ok(())
}

pub(crate) unsafe fn trim(pool: Handle, keep: usize) -> Outcome {
    let mut driver = driver()?;
    driver.memory.pools.all.get(&pool).ok_or(Code::ERROR_INVALID_VALUE)?;
    driver.shrink_pool(pool, keep as u64);
    Ok(())
}

pub(crate) unsafe fn attribute(pool: Handle, which: c_int, out: *mut c_void) -> Outcome {
    let driver = driver()?;
    let pool = driver.memory.pools.all.get(&pool).ok_or(Code::ERROR_INVALID_VALUE)?;
    let value = match which {
        // SAFETY: the caller guarantees room for this attribute's type.
        1..=3 => return unsafe { write_out(out.cast::<c_int>(), 1) },
        RELEASE_THRESHOLD => pool.threshold,
        RESERVED => pool.reserved,
        RESERVED_HIGH => pool.reserved_high,
        USED => pool.used,
        USED_HIGH => pool.used_high,
        _ => return Err(Code::ERROR_INVALID_VALUE),
    };
    // SAFETY: as above.
    unsafe { write_out(out.cast::<u64>(), value) }
}

pub(crate) unsafe fn set_attribute(pool: Handle, which: c_int, value: *mut c_void) -> Outcome {
    let mut driver = driver()?;
    let pool = driver.memory.pools.all.get_mut(&pool).ok_or(Code::ERROR_INVALID_VALUE)?;
    if which == RELEASE_THRESHOLD && !value.is_null() {
        // SAFETY: the caller guarantees this attribute's type.
        pool.threshold = unsafe { *value.cast::<u64>() };
    }
    if (1..=RELEASE_THRESHOLD).contains(&which) { Ok(()) } else { Err(Code::ERROR_INVALID_VALUE) }
}

pub(crate) unsafe fn default(out: *mut Handle, device: c_int) -> Outcome {
    let pool = driver()?.memory.pools.default(index(device)?);
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, pool) }
}

pub(crate) unsafe fn current(out: *mut Handle, device: c_int) -> Outcome {
    let pool = driver()?.memory.pools.current(index(device)?);
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, pool) }
}

pub(crate) unsafe fn set_current(device: c_int, pool: Handle) -> Outcome {
    let mut driver = driver()?;
    let device = index(device)?;
    driver
        .memory
        .pools
        .all
        .get(&pool)
        .filter(|pool| pool.device == device)
        .ok_or(Code::ERROR_INVALID_VALUE)?;
    driver.memory.pools.current.insert(device, pool);
    Ok(())
}

pub(crate) unsafe fn alloc(
    default_stream: DefaultStream,
    out: *mut usize,
    size: usize,
    stream: Handle,
) -> Outcome {
    let pool = {
        let mut driver = driver()?;
        let device = driver.contexts[&driver.current()?].device;
        driver.memory.pools.current(device)
    };
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { alloc_from(default_stream, out, size, pool, stream) }
}

pub(crate) unsafe fn alloc_from(
    default_stream: DefaultStream,
    out: *mut usize,
    size: usize,
    pool: Handle,
    stream: Handle,
) -> Outcome {
    let mut driver = driver()?;
    let stream = resolve(&mut driver, default_stream, stream)?;
    if size == 0 || out.is_null() {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    let kind = if driver.streams[&stream].capturing.is_some() {
        let device = driver.memory.pools.all.get(&pool).ok_or(Code::ERROR_INVALID_VALUE)?.device;
        capture::add(&mut driver, stream, Work::GraphAllocation { device, bytes: size as u64 })?;
        Kind::Graph
    } else {
        driver.grow_pool(pool, size as u64)?;
        Kind::Pool(pool)
    };
    let address = driver.memory.add(size, kind)?;
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, address) }
}

/// The stream frees the memory when it reaches this point. In a graph the memory stays reserved until the graphs' memory is
/// trimmed.
pub(crate) unsafe fn free(default_stream: DefaultStream, address: usize, stream: Handle) -> Outcome {
    unsafe extern "C" fn free_now(address: *mut c_void) {
        // The address was checked at submission. The program may have freed it twice.
        let _ = memory::free_from_pool(address as usize);
    }
    let kind = driver()?.memory.kind(address).ok_or(Code::ERROR_INVALID_VALUE)?;
    match kind {
        Kind::Pool(_) => {
            submit(default_stream, stream, Work::Host { function: free_now, data: address, started: false })
        }
        Kind::Graph => Ok(()),
        _ => Err(Code::ERROR_INVALID_VALUE),
    }
}

/// `cuDeviceGetGraphMemAttribute`: memory in use and reserved, and the most of both, are one amount here.
pub(crate) unsafe fn graph_attribute(device: c_int, which: c_int, out: *mut c_void) -> Outcome {
    let (driver, device) = (driver()?, index(device)?);
    if !(0..4).contains(&which) {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    let reserved = driver.memory.pools.graphs.get(&device).map_or(0, |graphs| graphs.iter().sum());
    // SAFETY: the caller guarantees room for this attribute's type.
    unsafe { write_out(out.cast::<u64>(), reserved) }
}

pub(crate) unsafe fn trim_graphs(device: c_int) -> Outcome {
    let (mut driver, device) = (driver()?, index(device)?);
    for bytes in driver.memory.pools.graphs.remove(&device).unwrap_or_default() {
        driver.memory.on_device.free(device, bytes);
    }
    driver.execs.values_mut().for_each(Exec::forget_memory);
    Ok(())
}
