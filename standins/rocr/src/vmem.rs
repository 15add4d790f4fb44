//! Virtual memory: reserved addresses, handles of memory, and mappings of one at the other.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::address_space::{create_file, map_file, reserve as reserve_addresses, unmap as release, withdraw};
use crate::agents;
use crate::memory::{Allocation, Kind, memory};
use crate::pools::{self, GRANULE};
use crate::runtime;
use crate::status::{
    ERROR, INVALID_ALLOCATION, INVALID_ARGUMENT, OUT_OF_RESOURCES, RESOURCE_BUSY, Status, read_array,
    to_status, write_out,
};

/// Memory that can be mapped.
struct Memory {
    fd: c_int,
    size: usize,
    pool: u64,
    kind: u32,
    /// How many handles and mappings refer to it.
    references: usize,
}

struct Mapping {
    size: usize,
    handle: u64,
    /// The permissions of each agent.
    access: Vec<(u64, u32)>,
}

#[derive(Default)]
struct State {
    /// Reserved addresses and their sizes.
    reservations: BTreeMap<usize, usize>,
    mappings: BTreeMap<usize, Mapping>,
    handles: BTreeMap<u64, Memory>,
    last_handle: u64,
}

impl State {
    fn drop_reference(&mut self, handle: u64) {
        let Some(memory) = self.handles.get_mut(&handle) else { return };
        memory.references -= 1;
        if memory.references == 0 {
            // SAFETY: the descriptor belongs to the handle, which is removed.
            unsafe { libc::close(memory.fd) };
            self.handles.remove(&handle);
        }
    }
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

fn with_state<T>(operation: impl FnOnce(&mut State) -> Result<T, Status>) -> Result<T, Status> {
    runtime::require_running()?;
    let mut guard: MutexGuard<'_, Option<State>> = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    operation(guard.get_or_insert_default())
}

/// `hsa_amd_vmem_address_reserve`.
pub(crate) extern "C" fn reserve(out: *mut *mut c_void, size: usize, address: u64, flags: u64) -> Status {
    reserve_aligned(out, size, address, GRANULE as u64, flags)
}

/// `hsa_amd_vmem_address_reserve_align`.
pub(crate) extern "C" fn reserve_aligned(
    out: *mut *mut c_void,
    size: usize,
    address: u64,
    alignment: u64,
    _flags: u64,
) -> Status {
    to_status(with_state(|state| {
        let alignment = usize::try_from(alignment).unwrap_or(0).max(GRANULE);
        if out.is_null() || size == 0 || !size.is_multiple_of(GRANULE) || !alignment.is_power_of_two() {
            return Err(INVALID_ARGUMENT);
        }
        let hint = usize::try_from(address).unwrap_or(0);
        let hint = if hint.is_multiple_of(alignment) { hint } else { 0 };
        let start = reserve_addresses(size, alignment, hint).ok_or(OUT_OF_RESOURCES)?;
        state.reservations.insert(start, size);
        memory().ranges.insert(start, Allocation::new(size, Kind::ReservedAddress, 0));
        write_out(out, std::ptr::with_exposed_provenance_mut(start))
    }))
}

/// `hsa_amd_vmem_address_free`.
pub(crate) extern "C" fn free_address(address: *mut c_void, size: usize) -> Status {
    to_status(with_state(|state| {
        let start = address.addr();
        if state.reservations.get(&start) != Some(&size) {
            return Err(INVALID_ALLOCATION);
        }
        if state.mappings.range(start..start + size).next().is_some() {
            return Err(RESOURCE_BUSY);
        }
        state.reservations.remove(&start);
        memory().ranges.remove(&start);
        release(start, size);
        Ok(())
    }))
}

/// `hsa_amd_vmem_handle_create`.
pub(crate) extern "C" fn create_handle(
    pool: u64,
    size: usize,
    kind: u32,
    _flags: u64,
    out: *mut u64,
) -> Status {
    to_status(with_state(|state| {
        let found = pools::find(pool)?;
        if out.is_null() || size == 0 || !size.is_multiple_of(GRANULE) {
            return Err(INVALID_ARGUMENT);
        }
        if found.is_group || size as u64 > found.bytes() {
            return Err(INVALID_ALLOCATION);
        }
        let fd = create_file(c"rocr-vmem", size as u64).ok_or(OUT_OF_RESOURCES)?;
        write_out(out, add_handle(state, Memory { fd, size, pool, kind, references: 1 }))
    }))
}

fn add_handle(state: &mut State, memory: Memory) -> u64 {
    state.last_handle += 1;
    state.handles.insert(state.last_handle, memory);
    state.last_handle
}

/// `hsa_amd_vmem_handle_release`. The memory lives as long as it is mapped.
pub(crate) extern "C" fn release_handle(handle: u64) -> Status {
    to_status(with_state(|state| {
        if !state.handles.contains_key(&handle) {
            return Err(INVALID_ALLOCATION);
        }
        state.drop_reference(handle);
        Ok(())
    }))
}

/// `hsa_amd_vmem_map`. No agent has access yet.
pub(crate) extern "C" fn map(
    address: *mut c_void,
    size: usize,
    offset: usize,
    handle: u64,
    _flags: u64,
) -> Status {
    to_status(with_state(|state| {
        let start = address.addr();
        let is_reserved = state
            .reservations
            .range(..=start)
            .next_back()
            .is_some_and(|(base, length)| start + size <= base + length);
        if !is_reserved || size == 0 || !size.is_multiple_of(GRANULE) || !offset.is_multiple_of(GRANULE) {
            return Err(INVALID_ARGUMENT);
        }
        let overlaps =
            |(base, mapping): (&usize, &Mapping)| start < base + mapping.size && *base < start + size;
        if state.mappings.iter().any(overlaps) {
            return Err(INVALID_ARGUMENT);
        }
        let memory = state.handles.get_mut(&handle).ok_or(INVALID_ALLOCATION)?;
        if offset + size > memory.size {
            return Err(INVALID_ARGUMENT);
        }
        if !map_file(start, size, memory.fd, offset as u64) {
            return Err(OUT_OF_RESOURCES);
        }
        set_protection(start, size, libc::PROT_NONE);
        memory.references += 1;
        let owner = pools::find(memory.pool).map_or(0, |pool| pool.agent.handle());
        state.mappings.insert(start, Mapping { size, handle, access: Vec::new() });
        split_reservation(start, size, owner);
        Ok(())
    }))
}

fn set_protection(start: usize, size: usize, access: c_int) {
    // SAFETY: a range that `map` mapped.
    unsafe { libc::mprotect(std::ptr::with_exposed_provenance_mut(start), size, access) };
}

/// Records a mapping as memory that pointers can be looked up in. A mapping may cover a part of a reservation.
fn split_reservation(start: usize, size: usize, owner: u64) {
    let mut memory = memory();
    let found = memory.find(start).map(|(base, allocation)| (base, allocation.size));
    if let Some((base, length)) = found {
        memory.ranges.remove(&base);
        if base < start {
            memory.ranges.insert(base, Allocation::new(start - base, Kind::ReservedAddress, 0));
        }
        let end = base + length;
        if start + size < end {
            memory.ranges.insert(start + size, Allocation::new(end - start - size, Kind::ReservedAddress, 0));
        }
    }
    let mut allocation = Allocation::new(size, Kind::Hsa, owner);
    allocation.flags = pools::COARSE_GRAINED;
    memory.ranges.insert(start, allocation);
}

/// `hsa_amd_vmem_unmap`.
pub(crate) extern "C" fn unmap(address: *mut c_void, size: usize) -> Status {
    to_status(with_state(|state| {
        let start = address.addr();
        if state.mappings.get(&start).is_none_or(|mapping| mapping.size != size) {
            return Err(INVALID_ALLOCATION);
        }
        crate::copies::wait_for_copies_in_flight();
        withdraw(start, size);
        if let Some(mapping) = state.mappings.remove(&start) {
            state.drop_reference(mapping.handle);
        }
        memory().ranges.insert(start, Allocation::new(size, Kind::ReservedAddress, 0));
        merge_reservation(state, start);
        Ok(())
    }))
}

/// Joins the unmapped parts of a reservation, so that a look-up finds the whole reservation again.
fn merge_reservation(state: &State, start: usize) {
    let Some((base, length)) = state.reservations.range(..=start).next_back().map(|(a, b)| (*a, *b)) else {
        return;
    };
    if state.mappings.range(base..base + length).next().is_some() {
        return;
    }
    let mut memory = memory();
    let parts: Vec<usize> = memory.ranges.range(base..base + length).map(|(part, _)| *part).collect();
    for part in parts {
        memory.ranges.remove(&part);
    }
    memory.ranges.insert(base, Allocation::new(length, Kind::ReservedAddress, 0));
}

/// `hsa_amd_memory_access_desc_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AccessDescription {
    permissions: u32,
    agent: u64,
}

/// `HSA_ACCESS_PERMISSION_NONE`, `_RO`, `_WO` and `_RW`.
fn protection(permissions: u32) -> c_int {
    match permissions {
        1 => libc::PROT_READ,
        2 | 3 => libc::PROT_READ | libc::PROT_WRITE,
        _ => libc::PROT_NONE,
    }
}

/// `hsa_amd_vmem_set_access`. The range may cover several mappings.
pub(crate) extern "C" fn set_access(
    address: *mut c_void,
    size: usize,
    list: *const AccessDescription,
    count: usize,
) -> Status {
    to_status(with_state(|state| {
        let list = read_array(list, count)?;
        if list.is_empty() || list.iter().any(|entry| entry.permissions > 3) {
            return Err(INVALID_ARGUMENT);
        }
        list.iter().try_for_each(|entry| agents::find(entry.agent).map(drop))?;
        let start = address.addr();
        let mut covered = start;
        for (base, mapping) in state.mappings.range_mut(start..start + size) {
            if *base != covered || base + mapping.size > start + size {
                return Err(INVALID_ALLOCATION);
            }
            covered = base + mapping.size;
            for entry in &list {
                mapping.access.retain(|(agent, _)| *agent != entry.agent);
                mapping.access.push((entry.agent, entry.permissions));
            }
            let all = mapping.access.iter().fold(libc::PROT_NONE, |all, (_, one)| all | protection(*one));
            set_protection(*base, mapping.size, all);
        }
        if covered != start + size {
            return Err(INVALID_ALLOCATION);
        }
        if let Some(allocation) = memory().ranges.get_mut(&start) {
            allocation.access = list.iter().map(|entry| entry.agent).collect();
        }
        Ok(())
    }))
}

/// `hsa_amd_vmem_get_access`.
pub(crate) extern "C" fn get_access(address: *mut c_void, out: *mut u32, agent: u64) -> Status {
    to_status(with_state(|state| {
        let start = address.addr();
        let (base, mapping) = state.mappings.range(..=start).next_back().ok_or(INVALID_ALLOCATION)?;
        if start >= base + mapping.size {
            return Err(INVALID_ALLOCATION);
        }
        agents::find(agent)?;
        let found = mapping.access.iter().find(|(known, _)| *known == agent);
        write_out(out, found.map_or(0, |(_, permissions)| *permissions))
    }))
}

/// `hsa_amd_vmem_export_shareable_handle`.
pub(crate) extern "C" fn export_handle(out: *mut c_int, handle: u64, _flags: u64) -> Status {
    to_status(with_state(|state| {
        let memory = state.handles.get(&handle).ok_or(INVALID_ALLOCATION)?;
        // SAFETY: a descriptor of this library.
        let copy = unsafe { libc::fcntl(memory.fd, libc::F_DUPFD_CLOEXEC, 3) };
        if copy < 0 { Err(OUT_OF_RESOURCES) } else { write_out(out, copy) }
    }))
}

/// `hsa_amd_vmem_import_shareable_handle`.
pub(crate) extern "C" fn import_handle(fd: c_int, out: *mut u64) -> Status {
    to_status(with_state(|state| {
        // SAFETY: all zero is a valid value of this struct of numbers.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel checks the descriptor and fills the struct.
        if unsafe { libc::fstat(fd, &raw mut status) } != 0 || status.st_size <= 0 {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: a descriptor, as the call above has shown.
        let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
        if copy < 0 {
            return Err(OUT_OF_RESOURCES);
        }
        let size = usize::try_from(status.st_size).map_err(|_| ERROR)?;
        // The device of the memory is not part of the file: it is the first GPU.
        let pool = agents::agents().get(1).map_or(0, |_| pools::FIRST_GPU_POOL);
        write_out(out, add_handle(state, Memory { fd: copy, size, pool, kind: 0, references: 1 }))
    }))
}

/// `hsa_amd_vmem_retain_alloc_handle`.
pub(crate) extern "C" fn retain_handle(out: *mut u64, address: *mut c_void) -> Status {
    to_status(with_state(|state| {
        let start = address.addr();
        let (base, mapping) = state.mappings.range(..=start).next_back().ok_or(INVALID_ALLOCATION)?;
        if start >= base + mapping.size {
            return Err(INVALID_ALLOCATION);
        }
        let handle = mapping.handle;
        if let Some(memory) = state.handles.get_mut(&handle) {
            memory.references += 1;
        }
        write_out(out, handle)
    }))
}

/// `hsa_amd_vmem_get_alloc_properties_from_handle`.
pub(crate) extern "C" fn handle_properties(handle: u64, pool: *mut u64, kind: *mut u32) -> Status {
    to_status(with_state(|state| {
        let memory = state.handles.get(&handle).ok_or(INVALID_ALLOCATION)?;
        write_out(pool, memory.pool).and(write_out(kind, memory.kind))
    }))
}
