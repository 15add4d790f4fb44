//! A stand-in for `libnvidia-ml.so.1`, NVIDIA's management library: the same file under another name.
//!
//! Only what tells which processes use a device, how much, and how much memory it has. A process's utilization is measured
//! between two calls.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::device;
use crate::device_memory::free_and_total;
use crate::settings::Settings;
use crate::shared::{self, DeviceUse};

const SUCCESS: c_int = 0;
const INVALID_ARGUMENT: c_int = 2;
const NOT_FOUND: c_int = 6;
const INSUFFICIENT_SIZE: c_int = 7;
const VERSION_MISMATCH: c_int = 25;
/// The size of the structure and its version.
#[allow(clippy::cast_possible_truncation, reason = "the size is small")]
const MEMORY_INFO_VERSION: c_uint = size_of::<MemoryInfo2>() as c_uint | 2 << 24;

/// `nvmlProcessInfo_t`.
#[repr(C)]
pub(crate) struct ProcessInfo {
    pid: c_uint,
    used_memory: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// `nvmlProcessUtilizationSample_t`.
#[repr(C)]
pub(crate) struct Sample {
    pid: c_uint,
    taken_at: c_ulonglong,
    multiprocessors: c_uint,
    memory: c_uint,
    encoder: c_uint,
    decoder: c_uint,
}

/// `nvmlPciInfo_t`.
#[repr(C)]
pub(crate) struct PciInfo {
    old_address: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_id: c_uint,
    subsystem_id: c_uint,
    address: [c_char; 32],
}

/// `nvmlMemory_t`.
#[repr(C)]
pub(crate) struct MemoryInfo {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
pub(crate) struct MemoryInfo2 {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// How much each process had used at the last call, by device, and when that was.
static LAST: Mutex<Vec<(usize, u64, Vec<DeviceUse>)>> = Mutex::new(Vec::new());

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlInit_v2() -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlShutdown() -> c_int {
    SUCCESS
}

/// # Safety
/// The address is a string, and `handle` can be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    address: *const c_char,
    handle: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller guarantees a string.
    let address = unsafe { CStr::from_ptr(address) }.to_string_lossy().into_owned();
    let is_here = |index: &usize| {
        let (domain, bus, slot) = device::pci(*index);
        address == format!("{domain:04x}:{bus:02x}:{slot:02x}.0")
    };
    let Some(index) = (0..Settings::get().devices).find(is_here) else { return NOT_FOUND };
    // SAFETY: the caller guarantees that it can be written. Handles start at 1.
    unsafe { handle.write(std::ptr::without_provenance_mut(index + 1)) };
    SUCCESS
}

/// # Safety
/// `handle` can be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(
    index: c_uint,
    handle: *mut *mut c_void,
) -> c_int {
    let index = index as usize;
    if index >= Settings::get().devices || handle.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller guarantees that it can be written.
    unsafe { handle.write(std::ptr::without_provenance_mut(index + 1)) };
    SUCCESS
}

/// # Safety
/// `out` can be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(handle: *mut c_void, out: *mut PciInfo) -> c_int {
    let Some(index) = handle.addr().checked_sub(1) else { return INVALID_ARGUMENT };
    let (domain, bus, device) = device::pci(index);
    let (bus, device) = (bus.into(), device.into());
    let (old_address, address) = ([0; 16], [0; 32]);
    let info = PciInfo { old_address, domain, bus, device, device_id: 0, subsystem_id: 0, address };
    // SAFETY: the caller guarantees that it can be written.
    unsafe { out.write(info) };
    SUCCESS
}

/// # Safety
/// `out` can be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetMemoryInfo(handle: *mut c_void, out: *mut MemoryInfo) -> c_int {
    let Some(index) = handle.addr().checked_sub(1) else { return INVALID_ARGUMENT };
    let (free, total) = free_and_total(index);
    // SAFETY: the caller guarantees that it can be written.
    unsafe { out.write(MemoryInfo { total, free, used: total - free }) };
    SUCCESS
}

/// # Safety
/// `out` can be read and written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    handle: *mut c_void,
    out: *mut MemoryInfo2,
) -> c_int {
    let Some(index) = handle.addr().checked_sub(1) else { return INVALID_ARGUMENT };
    // SAFETY: the caller guarantees that it can be read.
    let version = unsafe { (*out).version };
    if version != MEMORY_INFO_VERSION {
        return VERSION_MISMATCH;
    }
    let (free, total) = free_and_total(index);
    // SAFETY: the caller guarantees that it can be written.
    unsafe { out.write(MemoryInfo2 { version, total, reserved: 0, free, used: total - free }) };
    SUCCESS
}

/// # Safety
/// There is room for `count` entries.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    handle: *mut c_void,
    count: *mut c_uint,
    out: *mut ProcessInfo,
) -> c_int {
    let Some(index) = handle.addr().checked_sub(1) else { return INVALID_ARGUMENT };
    let memory = shared::memory_use(index);
    let entries = shared::device_use(index).into_iter().map(|DeviceUse { pid, .. }| ProcessInfo {
        pid,
        used_memory: memory.iter().find(|(process, _)| *process == pid).map_or(0, |(_, bytes)| *bytes),
        gpu_instance: c_uint::MAX,
        compute_instance: c_uint::MAX,
    });
    // SAFETY: passed on from the caller.
    unsafe { write_entries(entries.collect(), count, out) }
}

/// # Safety
/// There is room for `count` samples.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetProcessUtilization(
    handle: *mut c_void,
    out: *mut Sample,
    count: *mut c_uint,
    _since: c_ulonglong,
) -> c_int {
    let Some(index) = handle.addr().checked_sub(1) else { return INVALID_ARGUMENT };
    let (now, used) = (shared::now(), shared::device_use(index));
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let before = last.iter().position(|(device, ..)| *device == index).map(|place| last.remove(place));
    let taken_at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros());
    let samples = before.iter().flat_map(|(_, at, before)| {
        let elapsed = now.saturating_sub(*at).max(1);
        used.iter().filter_map(move |DeviceUse { pid, used }| {
            let its = before.iter().find(|other| other.pid == *pid)?;
            let percent = used.saturating_sub(its.used) * 100 / elapsed;
            Some(Sample {
                pid: *pid,
                taken_at: c_ulonglong::try_from(taken_at).unwrap_or(0),
                multiprocessors: c_uint::try_from(percent.min(100)).unwrap_or(0),
                memory: 0,
                encoder: 0,
                decoder: 0,
            })
        })
    });
    let samples: Vec<_> = samples.collect();
    last.push((index, now, used));
    if samples.is_empty() {
        return NOT_FOUND;
    }
    // SAFETY: passed on from the caller.
    unsafe { write_entries(samples, count, out) }
}

/// # Safety
/// There is room for `count` entries.
unsafe fn write_entries<T>(entries: Vec<T>, count: *mut c_uint, out: *mut T) -> c_int {
    // SAFETY: the caller guarantees a valid count.
    let room = unsafe { count.replace(c_uint::try_from(entries.len()).unwrap_or(0)) };
    if entries.len() > room as usize {
        return INSUFFICIENT_SIZE;
    }
    for (place, entry) in entries.into_iter().enumerate() {
        // SAFETY: the caller guarantees `room` entries.
        unsafe { out.add(place).write(entry) };
    }
    SUCCESS
}
