//! Allocations, locked host memory, and what is known about a pointer.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::address_space::{Arena, unmap};
use crate::agents::{self, Agent, agents};
use crate::copies;
use crate::pools::{self, GRANULE};
use crate::runtime;
use crate::status::{
    ERROR, INVALID_ALLOCATION, INVALID_ARGUMENT, OUT_OF_RESOURCES, SUCCESS, Status, read_array, to_status,
    write_out,
};

/// `hsa_amd_pointer_type_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Hsa = 1,
    Locked = 2,
    Graphics = 3,
    Ipc = 4,
    ReservedAddress = 5,
}

type DeallocationCallback = extern "C" fn(*mut c_void, *mut c_void);

/// A range of memory that the runtime knows.
pub(crate) struct Allocation {
    pub(crate) size: usize,
    pub(crate) kind: Kind,
    /// The handle of the agent whose memory it is.
    pub(crate) owner: u64,
    /// The flags of its pool.
    pub(crate) flags: u32,
    /// The handles of the agents that were given access.
    pub(crate) access: Vec<u64>,
    /// Where it lies in the memory of its agent.
    pub(crate) arena: Option<(usize, u64)>,
    user_data: usize,
    /// Functions that are called before it is freed, with their arguments.
    callbacks: Vec<(DeallocationCallback, usize)>,
    /// How often host memory was locked.
    locks: u32,
}

impl Allocation {
    pub(crate) fn new(size: usize, kind: Kind, owner: u64) -> Self {
        Self {
            size,
            kind,
            owner,
            flags: 0,
            access: Vec::new(),
            arena: None,
            user_data: 0,
            callbacks: Vec::new(),
            locks: 1,
        }
    }
}

/// All ranges by their first address. Locked host memory may lie within other ranges and has a map of its own.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) ranges: BTreeMap<usize, Allocation>,
    locked: BTreeMap<usize, Allocation>,
    arenas: Vec<Option<Arena>>,
}

impl Memory {
    /// The range that contains an address.
    pub(crate) fn find(&self, address: usize) -> Option<(usize, &Allocation)> {
        let contains = |map: &'_ BTreeMap<usize, Allocation>| {
            let (base, allocation) = map.range(..=address).next_back()?;
            (address - base < allocation.size).then_some(*base)
        };
        match contains(&self.ranges) {
            Some(base) => Some((base, &self.ranges[&base])),
            None => contains(&self.locked).map(|base| (base, &self.locked[&base])),
        }
    }

    fn find_mut(&mut self, address: usize) -> Option<&mut Allocation> {
        let (base, kind) = self.find(address).map(|(base, allocation)| (base, allocation.kind))?;
        if kind == Kind::Locked { self.locked.get_mut(&base) } else { self.ranges.get_mut(&base) }
    }

    /// The memory of an agent.
    pub(crate) fn arena(&mut self, index: usize, bytes: u64) -> Option<&mut Arena> {
        if self.arenas.len() <= index {
            self.arenas.resize_with(index + 1, || None);
        }
        let arena = &mut self.arenas[index];
        if arena.is_none() {
            *arena = Arena::new(bytes);
        }
        arena.as_mut()
    }
}

static MEMORY: Mutex<Option<Memory>> = Mutex::new(None);

/// Access to all allocations.
pub(crate) struct MemoryGuard(MutexGuard<'static, Option<Memory>>);

impl std::ops::Deref for MemoryGuard {
    type Target = Memory;
    fn deref(&self) -> &Memory {
        self.0.as_ref().expect("`memory` created it")
    }
}

impl std::ops::DerefMut for MemoryGuard {
    fn deref_mut(&mut self) -> &mut Memory {
        self.0.as_mut().expect("`memory` created it")
    }
}

/// Locks the list of allocations.
pub(crate) fn memory() -> MemoryGuard {
    let mut guard = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    guard.get_or_insert_default();
    MemoryGuard(guard)
}

/// The memory of an agent that this process has not allocated.
pub(crate) fn available(agent: &Agent) -> u64 {
    let total = agent.device().map_or(0, |device| device.node.memory_bytes);
    let index = agents().iter().position(|known| std::ptr::eq(known, agent)).unwrap_or(0);
    memory().arena(index, total).map_or(0, |arena| arena.available())
}

/// `hsa_amd_memory_pool_allocate`.
pub(crate) extern "C" fn allocate(pool: u64, size: usize, _flags: u32, out: *mut *mut c_void) -> Status {
    to_status(runtime::require_running().and_then(|()| {
        let pool = pools::find(pool)?;
        if out.is_null() || size == 0 {
            return Err(INVALID_ARGUMENT);
        }
        if pool.is_group || size as u64 > pool.bytes() {
            return Err(INVALID_ALLOCATION);
        }
        let address = allocate_in(&pool, size)?;
        write_out(out, std::ptr::with_exposed_provenance_mut(address))
    }))
}

/// Allocates memory in a pool. Returns its address.
pub(crate) fn allocate_in(pool: &pools::Pool, size: usize) -> Result<usize, Status> {
    let size = size.checked_next_multiple_of(GRANULE).ok_or(INVALID_ALLOCATION)?;
    let index = agents().iter().position(|known| std::ptr::eq(known, pool.agent)).ok_or(ERROR)?;
    let mut memory = memory();
    let arena = memory.arena(index, pool.bytes()).ok_or(OUT_OF_RESOURCES)?;
    let (address, offset) = arena.allocate(size).ok_or(OUT_OF_RESOURCES)?;
    let mut allocation = Allocation::new(size, Kind::Hsa, pool.agent.handle());
    allocation.flags = pool.flags;
    allocation.arena = Some((index, offset));
    memory.ranges.insert(address, allocation);
    Ok(address)
}

/// `hsa_amd_memory_pool_free`.
pub(crate) extern "C" fn free(address: *mut c_void) -> Status {
    if address.is_null() {
        return SUCCESS;
    }
    to_status(runtime::require_running().and_then(|()| free_at(address.addr())))
}

/// Frees what `allocate_in` returned.
pub(crate) fn free_at(address: usize) -> Result<(), Status> {
    let mut guard = memory();
    let is_allocation = |allocation: &&mut Allocation| allocation.arena.is_some();
    let Some(allocation) = guard.ranges.get_mut(&address).filter(is_allocation) else {
        return Err(INVALID_ALLOCATION);
    };
    let callbacks = std::mem::take(&mut allocation.callbacks);
    drop(guard);
    for (callback, data) in callbacks {
        callback(std::ptr::with_exposed_provenance_mut(address), std::ptr::with_exposed_provenance_mut(data));
    }
    // A device may still write what was submitted before; AMD's driver waits for it, too.
    copies::wait_for_copies_in_flight();
    let mut guard = memory();
    let Some(allocation) = guard.ranges.remove(&address) else { return Err(INVALID_ALLOCATION) };
    unmap(address, allocation.size);
    if let Some((index, offset)) = allocation.arena
        && let Some(arena) = guard.arena(index, 0)
    {
        arena.free(offset, allocation.size);
    }
    Ok(())
}

/// `hsa_amd_agents_allow_access`.
pub(crate) extern "C" fn allow_access(
    count: u32,
    handles: *const u64,
    flags: *const u32,
    address: *const c_void,
) -> Status {
    if count == 0 || handles.is_null() || !flags.is_null() || address.is_null() {
        return INVALID_ARGUMENT;
    }
    to_status(read_array(handles, usize::try_from(count).unwrap_or(0)).and_then(|handles| {
        handles.iter().try_for_each(|handle| agents::find(*handle).map(drop))?;
        let mut memory = memory();
        let allocation = memory.find_mut(address.addr()).ok_or(ERROR)?;
        allocation.access = handles;
        Ok(())
    }))
}

/// `hsa_amd_pointer_info_t`.
#[repr(C)]
pub(crate) struct PointerInfo {
    size: u32,
    kind: u32,
    agent_base: usize,
    host_base: usize,
    bytes: usize,
    user_data: usize,
    owner: u64,
    flags: u32,
}

type Allocate = extern "C" fn(usize) -> *mut c_void;

/// `hsa_amd_pointer_info`.
pub(crate) extern "C" fn pointer_info(
    address: *const c_void,
    out: *mut PointerInfo,
    allocate: Option<Allocate>,
    count: *mut u32,
    accessible: *mut *mut u64,
) -> Status {
    if out.is_null() || (allocate.is_some() && (count.is_null() || accessible.is_null())) {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller states the size of its structure in its first field.
    let room = usize::try_from(unsafe { (*out).size }).unwrap_or(0);
    if room < 8 {
        return INVALID_ARGUMENT;
    }
    let mut info = PointerInfo {
        size: u32::try_from(room).unwrap_or(0),
        kind: 0,
        agent_base: 0,
        host_base: 0,
        bytes: 0,
        user_data: 0,
        owner: 0,
        flags: 0,
    };
    let mut access = Vec::new();
    if let Some((base, found)) = memory().find(address.addr()) {
        info.kind = found.kind as u32;
        (info.agent_base, info.host_base, info.bytes) = (base, base, found.size);
        (info.user_data, info.owner, info.flags) = (found.user_data, found.owner, found.flags);
        access.clone_from(&found.access);
        if !access.contains(&found.owner) {
            access.push(found.owner);
        }
    }
    // SAFETY: the caller has room for `room` bytes, and the structure is larger or as large as what is copied.
    unsafe {
        out.cast::<u8>().write_bytes(0, room);
        out.cast::<u8>()
            .copy_from_nonoverlapping((&raw const info).cast(), room.min(size_of::<PointerInfo>()));
    }
    if !count.is_null() {
        let _ = write_out(count, u32::try_from(access.len()).unwrap_or(0));
    }
    if let Some(allocate) = allocate
        && !access.is_empty()
    {
        let list = allocate(access.len() * size_of::<u64>()).cast::<u64>();
        if list.is_null() {
            return OUT_OF_RESOURCES;
        }
        // SAFETY: the program's function allocated room for them.
        unsafe { list.copy_from_nonoverlapping(access.as_ptr(), access.len()) };
        return to_status(write_out(accessible, list));
    }
    SUCCESS
}

/// `hsa_amd_pointer_info_set_userdata`.
pub(crate) extern "C" fn set_user_data(address: *const c_void, data: *mut c_void) -> Status {
    match memory().find_mut(address.addr()) {
        Some(allocation) => {
            allocation.user_data = data.expose_provenance();
            SUCCESS
        }
        None => INVALID_ARGUMENT,
    }
}

/// `hsa_amd_memory_lock`.
pub(crate) extern "C" fn lock(
    address: *mut c_void,
    size: usize,
    handles: *const u64,
    count: i32,
    out: *mut *mut c_void,
) -> Status {
    lock_to_pool(address, size, handles, count, 1, 0, out)
}

/// `hsa_amd_memory_lock_to_pool`: the device sees the memory at the same address.
pub(crate) extern "C" fn lock_to_pool(
    address: *mut c_void,
    size: usize,
    handles: *const u64,
    count: i32,
    pool: u64,
    _flags: u32,
    out: *mut *mut c_void,
) -> Status {
    if address.is_null() || size == 0 || out.is_null() || (count > 0) == handles.is_null() {
        return INVALID_ARGUMENT;
    }
    to_status(runtime::require_running().and_then(|()| {
        let pool = pools::find(pool)?;
        let handles = read_array(handles, usize::try_from(count).unwrap_or(0))?;
        handles.iter().try_for_each(|handle| agents::find(*handle).map(drop))?;
        if !copies::is_mapped(address.addr(), size) {
            return Err(ERROR);
        }
        let mut memory = memory();
        let base = address.addr();
        if let Some(known) = memory.locked.get_mut(&base) {
            known.locks += 1;
            known.size = known.size.max(size);
        } else {
            let mut allocation = Allocation::new(size, Kind::Locked, pool.agent.handle());
            let all = || agents().iter().map(Agent::handle).collect();
            allocation.access = if handles.is_empty() { all() } else { handles };
            memory.locked.insert(base, allocation);
        }
        write_out(out, address)
    }))
}

/// `hsa_amd_memory_unlock`.
pub(crate) extern "C" fn unlock(address: *mut c_void) -> Status {
    let mut memory = memory();
    let Some(found) = memory.locked.get_mut(&address.addr()) else {
        return if address.is_null() { INVALID_ARGUMENT } else { ERROR };
    };
    found.locks -= 1;
    if found.locks == 0 {
        memory.locked.remove(&address.addr());
    }
    SUCCESS
}

/// `hsa_amd_memory_fill`.
pub(crate) extern "C" fn fill(address: *mut c_void, value: u32, count: usize) -> Status {
    if address.is_null() || !address.addr().is_multiple_of(4) {
        return INVALID_ARGUMENT;
    }
    for index in 0..count {
        // SAFETY: the caller guarantees that many words.
        unsafe { address.cast::<u32>().add(index).write(value) };
    }
    SUCCESS
}

/// `hsa_amd_register_deallocation_callback`.
pub(crate) extern "C" fn register_callback(
    address: *mut c_void,
    callback: Option<DeallocationCallback>,
    data: *mut c_void,
) -> Status {
    let Some(callback) = callback else { return INVALID_ARGUMENT };
    match memory().ranges.get_mut(&address.addr()) {
        Some(allocation) => {
            allocation.callbacks.push((callback, data.expose_provenance()));
            SUCCESS
        }
        None => INVALID_ALLOCATION,
    }
}

/// `hsa_amd_deregister_deallocation_callback`.
pub(crate) extern "C" fn deregister_callback(
    address: *mut c_void,
    callback: Option<DeallocationCallback>,
) -> Status {
    let Some(callback) = callback else { return INVALID_ARGUMENT };
    match memory().ranges.get_mut(&address.addr()) {
        Some(allocation) => {
            let before = allocation.callbacks.len();
            allocation.callbacks.retain(|(known, _)| !std::ptr::fn_addr_eq(*known, callback));
            if allocation.callbacks.len() == before { INVALID_ARGUMENT } else { SUCCESS }
        }
        None => INVALID_ARGUMENT,
    }
}

/// `hsa_memory_copy`.
pub(crate) extern "C" fn copy(to: *mut c_void, from: *const c_void, size: usize) -> Status {
    if to.is_null() || from.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller guarantees both ranges.
    unsafe { to.cast::<u8>().copy_from(from.cast::<u8>(), size) };
    SUCCESS
}

/// `hsa_memory_register`: on this system the device reaches memory only after it was locked, and registering is a hint.
pub(crate) extern "C" fn register(address: *mut c_void, size: usize) -> Status {
    if size == 0 && !address.is_null() { INVALID_ARGUMENT } else { SUCCESS }
}

/// `hsa_memory_deregister`.
pub(crate) extern "C" fn deregister(_address: *mut c_void, _size: usize) -> Status {
    SUCCESS
}

/// `hsa_amd_svm_attributes_set`: not supported without page faults.
pub(crate) extern "C" fn set_svm_attributes(
    _address: *mut c_void,
    _size: usize,
    _list: *mut c_void,
    _count: usize,
) -> Status {
    ERROR
}

/// `hsa_amd_svm_attributes_get`.
pub(crate) extern "C" fn get_svm_attributes(
    _address: *mut c_void,
    _size: usize,
    _list: *mut c_void,
    _count: usize,
) -> Status {
    ERROR
}

/// `hsa_amd_svm_prefetch_async`.
pub(crate) extern "C" fn prefetch_svm(
    _address: *mut c_void,
    _size: usize,
    _agent: u64,
    _count: u32,
    _dependencies: *const u64,
    _done: u64,
) -> Status {
    ERROR
}
