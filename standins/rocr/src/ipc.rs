//! Memory and signals that processes share, and memory as file descriptors.
//!
//! A handle names the process and the descriptor whose memory is shared; the other process opens the same file through
//! `/proc`. The processes must see each other there, and the exporting process must live until the other one has attached.

use std::ffi::{CString, c_int, c_void};
use std::sync::{Mutex, PoisonError};

use crate::address_space::{create_file, map_file, reserve, unmap};
use crate::agents::{self, agents};
use crate::memory::{Allocation, Kind, memory};
use crate::runtime;
use crate::signals::{self, Signal};
use crate::status::{
    ERROR, INVALID_ALLOCATION, INVALID_ARGUMENT, INVALID_SIGNAL, OUT_OF_RESOURCES, SUCCESS, Status,
    read_array, to_status, write_out,
};

/// `hsa_amd_ipc_memory_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Handle {
    magic: u32,
    pid: u32,
    fd: i32,
    agent: u32,
    offset: u64,
    size: u64,
}

const _: () = assert!(size_of::<Handle>() == 32);

const MEMORY_MAGIC: u32 = u32::from_le_bytes(*b"mem1");
const SIGNAL_MAGIC: u32 = u32::from_le_bytes(*b"sig1");
const PAGE: usize = 4096;

/// `hsa_amd_ipc_memory_create`.
pub(crate) extern "C" fn create_memory(address: *mut c_void, size: usize, out: *mut Handle) -> Status {
    to_status(runtime::require_running().and_then(|()| {
        let mut memory = memory();
        let (base, allocation) = memory.find(address.addr()).ok_or(INVALID_ARGUMENT)?;
        let within = (address.addr() - base) as u64;
        let Some((index, offset)) = allocation.arena else { return Err(INVALID_ARGUMENT) };
        if size > allocation.size || base != address.addr() {
            return Err(INVALID_ARGUMENT);
        }
        let size = allocation.size as u64;
        let fd = memory.arena(index, 0).ok_or(ERROR)?.fd();
        let agent = u32::try_from(index).unwrap_or(0);
        let handle =
            Handle { magic: MEMORY_MAGIC, pid: std::process::id(), fd, agent, offset: offset + within, size };
        write_out(out, handle)
    }))
}

/// Opens the file that a handle names.
fn open_file(handle: &Handle) -> Result<c_int, Status> {
    let path =
        CString::new(format!("/proc/{}/fd/{}", handle.pid, handle.fd)).map_err(|_| INVALID_ARGUMENT)?;
    // SAFETY: a C string.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if fd < 0 { Err(INVALID_ARGUMENT) } else { Ok(fd) }
}

/// Maps the part of a file that a handle names. Returns its address.
fn map_handle(handle: &Handle) -> Result<usize, Status> {
    let size = usize::try_from(handle.size).map_err(|_| INVALID_ARGUMENT)?;
    let fd = open_file(handle)?;
    let address = reserve(size, PAGE, 0).filter(|address| map_file(*address, size, fd, handle.offset));
    // SAFETY: opened above; the mapping keeps the file.
    unsafe { libc::close(fd) };
    address.ok_or(OUT_OF_RESOURCES)
}

/// `hsa_amd_ipc_memory_attach`.
pub(crate) extern "C" fn attach_memory(
    handle: *const Handle,
    size: usize,
    count: u32,
    agents_: *const u64,
    out: *mut *mut c_void,
) -> Status {
    to_status(runtime::require_running().and_then(|()| {
        let handle = read_array(handle, 1)?[0];
        let access = read_array(agents_, usize::try_from(count).unwrap_or(0))?;
        if handle.magic != MEMORY_MAGIC || out.is_null() || size as u64 > handle.size {
            return Err(INVALID_ARGUMENT);
        }
        access.iter().try_for_each(|agent| agents::find(*agent).map(drop))?;
        let owner = agents().get(handle.agent as usize).ok_or(INVALID_ARGUMENT)?.handle();
        let address = map_handle(&handle)?;
        let mut allocation = Allocation::new(usize::try_from(handle.size).unwrap_or(0), Kind::Ipc, owner);
        allocation.access = access;
        memory().ranges.insert(address, allocation);
        write_out(out, std::ptr::with_exposed_provenance_mut(address))
    }))
}

fn detach(address: usize, kind: Kind) -> Result<(), Status> {
    let mut memory = memory();
    if memory.ranges.get(&address).is_none_or(|allocation| allocation.kind != kind) {
        return Err(INVALID_ARGUMENT);
    }
    if let Some(allocation) = memory.ranges.remove(&address) {
        unmap(address, allocation.size);
    }
    Ok(())
}

/// `hsa_amd_ipc_memory_detach`.
pub(crate) extern "C" fn detach_memory(address: *mut c_void) -> Status {
    to_status(runtime::require_running().and_then(|()| detach(address.addr(), Kind::Ipc)))
}

/// Signals that processes share: address, file and size of the mapping.
static SHARED_SIGNALS: Mutex<Vec<(usize, c_int)>> = Mutex::new(Vec::new());

/// Creates a signal in memory of its own, which other processes can attach to.
pub(crate) fn shared_signal(value: i64) -> Result<u64, Status> {
    runtime::require_running()?;
    signals::expect_silent_writers();
    let fd = create_file(c"rocr-signal", PAGE as u64).ok_or(OUT_OF_RESOURCES)?;
    let address = reserve(PAGE, PAGE, 0).ok_or(OUT_OF_RESOURCES)?;
    if !map_file(address, PAGE, fd, 0) {
        unmap(address, PAGE);
        return Err(OUT_OF_RESOURCES);
    }
    SHARED_SIGNALS.lock().unwrap_or_else(PoisonError::into_inner).push((address, fd));
    // SAFETY: just mapped, aligned to a page, and kept until the signal is destroyed.
    Ok(unsafe { signals::create_at(std::ptr::with_exposed_provenance_mut::<Signal>(address), value) })
}

/// Whether a signal lies in memory of its own. Such memory stays mapped, because a thread may still look at it.
pub(crate) fn is_shared_signal(address: usize) -> bool {
    let signals = SHARED_SIGNALS.lock().unwrap_or_else(PoisonError::into_inner);
    signals.iter().any(|(known, _)| *known == address)
}

/// `hsa_amd_ipc_signal_create`.
pub(crate) extern "C" fn create_signal(signal: u64, out: *mut Handle) -> Status {
    let signals = SHARED_SIGNALS.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((_, fd)) = signals.iter().find(|(address, _)| *address as u64 == signal) else {
        return INVALID_SIGNAL;
    };
    let handle = Handle {
        magic: SIGNAL_MAGIC,
        pid: std::process::id(),
        fd: *fd,
        agent: 0,
        offset: 0,
        size: PAGE as u64,
    };
    to_status(write_out(out, handle))
}

/// `hsa_amd_ipc_signal_attach`.
pub(crate) extern "C" fn attach_signal(handle: *const Handle, out: *mut u64) -> Status {
    to_status(runtime::require_running().and_then(|()| {
        let handle = read_array(handle, 1)?[0];
        if handle.magic != SIGNAL_MAGIC || handle.size != PAGE as u64 {
            return Err(INVALID_ARGUMENT);
        }
        let address = map_handle(&handle)?;
        signals::expect_silent_writers();
        SHARED_SIGNALS.lock().unwrap_or_else(PoisonError::into_inner).push((address, -1));
        write_out(out, address as u64)
    }))
}

/// `hsa_amd_portable_export_dmabuf`.
pub(crate) extern "C" fn export_dmabuf(
    address: *const c_void,
    size: usize,
    out: *mut c_int,
    offset_out: *mut u64,
) -> Status {
    export_dmabuf_with_flags(address, size, out, offset_out, 0)
}

/// `hsa_amd_portable_export_dmabuf_v2`. The buffer is all memory of the agent, and the offset is that of the allocation.
pub(crate) extern "C" fn export_dmabuf_with_flags(
    address: *const c_void,
    size: usize,
    out: *mut c_int,
    offset_out: *mut u64,
    _flags: u64,
) -> Status {
    to_status(runtime::require_running().and_then(|()| {
        if out.is_null() || offset_out.is_null() || size == 0 {
            return Err(INVALID_ARGUMENT);
        }
        let mut memory = memory();
        let (base, allocation) = memory.find(address.addr()).ok_or(INVALID_ALLOCATION)?;
        let within = address.addr() - base;
        let Some((index, offset)) = allocation.arena else { return Err(INVALID_ALLOCATION) };
        if within + size > allocation.size {
            return Err(INVALID_ALLOCATION);
        }
        let fd = memory.arena(index, 0).ok_or(ERROR)?.fd();
        // SAFETY: a descriptor of this library.
        let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
        if copy < 0 {
            return Err(OUT_OF_RESOURCES);
        }
        write_out(out, copy).and(write_out(offset_out, offset + within as u64))
    }))
}

/// `hsa_amd_portable_close_dmabuf`.
pub(crate) extern "C" fn close_dmabuf(fd: c_int) -> Status {
    // SAFETY: the caller's own descriptor.
    if unsafe { libc::close(fd) } == 0 { SUCCESS } else { INVALID_ARGUMENT }
}

/// `hsa_amd_interop_map_buffer`.
pub(crate) extern "C" fn map_buffer(
    count: u32,
    agents_: *const u64,
    fd: c_int,
    _flags: u32,
    size_out: *mut usize,
    out: *mut *mut c_void,
    metadata_size: *mut usize,
    metadata: *mut *const c_void,
) -> Status {
    to_status(runtime::require_running().and_then(|()| {
        let access = read_array(agents_, usize::try_from(count).unwrap_or(0))?;
        let owner = *access.first().ok_or(INVALID_ARGUMENT)?;
        access.iter().try_for_each(|agent| agents::find(*agent).map(drop))?;
        // SAFETY: all zero is a valid value of this struct of numbers.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel checks the descriptor and fills the struct.
        if unsafe { libc::fstat(fd, &raw mut status) } != 0 || status.st_size <= 0 {
            return Err(INVALID_ARGUMENT);
        }
        let size = usize::try_from(status.st_size).map_err(|_| INVALID_ARGUMENT)?;
        let address = reserve(size, PAGE, 0).filter(|address| map_file(*address, size, fd, 0));
        let address = address.ok_or(OUT_OF_RESOURCES)?;
        let mut allocation = Allocation::new(size, Kind::Graphics, owner);
        allocation.access = access;
        memory().ranges.insert(address, allocation);
        if !metadata_size.is_null() {
            write_out(metadata_size, 0)?;
        }
        if !metadata.is_null() {
            write_out(metadata, std::ptr::null())?;
        }
        write_out(size_out, size).and(write_out(out, std::ptr::with_exposed_provenance_mut(address)))
    }))
}

/// `hsa_amd_interop_unmap_buffer`.
pub(crate) extern "C" fn unmap_buffer(address: *mut c_void) -> Status {
    to_status(runtime::require_running().and_then(|()| detach(address.addr(), Kind::Graphics)))
}
