//! Device memory: what the program has allocated on each GPU, and its limit.
//!
//! Every way to allocate device memory is counted, whether there is a limit or not. Beyond the limit an allocation fails as the
//! driver fails it, without a call of the driver, and the functions that report sizes report the limit.
//!
//! * This file: memory by address. [`arrays`]: CUDA arrays. [`physical`]: memory that the program maps itself.
//! * [`pools`], [`graphs`]: the driver reserves memory for these by itself, and is asked how much ([`reserves`]).
//! * [`swap`]: memory that can be moved to the host and back.
//! * [`nvml`]: the management library in the program's own process.
//!
//! Not counted: memory of another process (IPC handles, imported handles), memory of the host, and what the driver allocates
//! for contexts and code.

pub(super) mod arrays;
pub(super) mod graphs;
pub(super) mod nvml;
pub(super) mod physical;
pub(super) mod pools;
pub(super) mod reserves;
pub(super) mod swap;

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};

use xsched_core::DeviceId;
use xsched_interpose::run_isolated;
use xsched_ipc::memory::OverLimit;
use xsched_ipc::page::Staying;

use super::contexts::is_primary_active;
use super::current_context;
use super::stream::device_with_ordinal;
use super::vendor::{self, Code};
use crate::allocations::{Allocations, Capacity, PerProcess, Reservation, report_refusal};

/// The driver's pages. Allocations of more than half a page have pages of their own; smaller ones share pages.
const PAGE: u64 = 2 << 20;
/// The granularity of allocations that share a page, and of the rows of a pitched allocation.
const GRAIN: u64 = 512;

static POINTERS: Allocations = Allocations::new();

/// A GPU as the program sees it.
#[derive(Clone, Copy)]
pub(super) struct Device {
    pub(super) ordinal: c_int,
    pub(super) id: DeviceId,
    /// Its memory in bytes.
    pub(super) total: u64,
}

static DEVICES: PerProcess<BTreeMap<c_int, Device>> = PerProcess::new();

impl Device {
    /// The GPU with this ordinal. None if the driver does not report it, for example in a child after fork.
    pub(super) fn with_ordinal(ordinal: c_int) -> Option<Self> {
        if let Some(known) = DEVICES.lock().get(&ordinal) {
            return Some(*known);
        }
        let id = device_with_ordinal(ordinal)?;
        let mut total = 0;
        // SAFETY: `total` has room for the result.
        let code = unsafe { vendor::DEVICE_TOTAL.get()?(&raw mut total, ordinal) };
        let device = (code == vendor::SUCCESS).then_some(Self { ordinal, id, total: total as u64 })?;
        DEVICES.lock().insert(ordinal, device);
        Some(device)
    }

    /// The GPU of the calling thread's current context.
    pub(super) fn current() -> Option<Self> {
        let mut ordinal = 0;
        // SAFETY: `ordinal` has room for the result.
        let code = unsafe { vendor::CTX_GET_DEVICE.get()?(&raw mut ordinal) };
        if code == vendor::SUCCESS { Self::with_ordinal(ordinal) } else { None }
    }

    /// The GPU with this identity, if the program has allocated memory on it.
    fn with_id(id: DeviceId) -> Option<Self> {
        DEVICES.lock().values().find(|device| device.id == id).copied()
    }

    /// Reserves `bytes`.
    fn reserve(self, bytes: u64) -> Result<Reservation, OverLimit> {
        self.reserve_needed(|| bytes)
    }

    /// Reserves what `needed` returns. Before it refuses that, it gives unused memory of pools back to the GPU, which may change
    /// what is needed.
    fn reserve_needed(self, needed: impl Fn() -> u64) -> Result<Reservation, OverLimit> {
        let attempt = || Reservation::reserve(self.id, self.total, needed());
        let reserved = attempt().or_else(|over| if reserves::trim(self) { attempt() } else { Err(over) });
        reserved.inspect_err(|over| report_refusal(self.id, needed(), *over))
    }
}

/// What the driver allocates for `bytes`.
fn taken(bytes: u64) -> u64 {
    let granularity = if bytes > PAGE / 2 { PAGE } else { GRAIN };
    bytes.checked_next_multiple_of(granularity).unwrap_or(u64::MAX)
}

/// Counts `bytes` in the current context, around `real`, which allocates them. `key` returns what `real` has written.
fn allocate_in(
    table: &Allocations,
    bytes: u64,
    real: impl FnOnce() -> Code,
    key: impl FnOnce(&mut Reservation) -> usize,
) -> Code {
    let owner = current_context().map_or(0, <*mut c_void>::addr);
    let reserve = || Device::current().map(|device| device.reserve(bytes)).transpose();
    table.allocate(owner, reserve, real, key).unwrap_or(vendor::OUT_OF_MEMORY)
}

/// Calls `real`, which allocates `bytes`.
pub(super) fn allocate(real: impl FnOnce() -> Code, address: *mut usize, bytes: usize) -> Code {
    // SAFETY: the driver has written the address there.
    allocate_in(&POINTERS, taken(bytes as u64), real, |_| unsafe { *address })
}

/// Calls `real`, which allocates managed memory.
pub(super) fn allocate_managed(real: impl FnOnce() -> Code, address: *mut usize, bytes: usize) -> Code {
    swap::stays(Staying::Managed);
    allocate(real, address, bytes)
}

/// Calls `real`, which allocates rows whose distance it decides.
pub(super) fn allocate_pitched(
    real: impl FnOnce() -> Code,
    address: *mut usize,
    pitch: *mut usize,
    width: usize,
    height: usize,
) -> Code {
    let bytes = |row: u64| taken(row.saturating_mul(height as u64));
    let expected = (width as u64).checked_next_multiple_of(GRAIN).unwrap_or(u64::MAX);
    allocate_in(&POINTERS, bytes(expected), real, |reservation| {
        // SAFETY: the driver has written both.
        let (address, pitch) = unsafe { (*address, *pitch) };
        reservation.resize(bytes(pitch as u64));
        address
    })
}

/// Calls `real`, which frees memory, also of a pool.
pub(super) fn free(real: impl FnOnce() -> Code, address: usize) -> Code {
    let code = POINTERS.free(address, real);
    reserves::refresh_if_used();
    code
}

/// Calls `real`, which reports free and total memory of the current context's GPU.
pub(super) fn info(real: impl FnOnce() -> Code, left: *mut usize, total: *mut usize) -> Code {
    let code = real();
    run_isolated(|| {
        if code != vendor::SUCCESS || left.is_null() || total.is_null() {
            return;
        }
        let Some(device) = Device::current() else { return };
        reserves::refresh(device.id);
        if let Some(capacity) = Capacity::of(device.id, device.total) {
            // SAFETY: the driver has written both.
            unsafe {
                *total = at_most(*total, capacity.limit);
                *left = at_most(*left, capacity.left());
            }
        }
    });
    code
}

/// Calls `real`, which reports the memory of a GPU.
pub(super) fn total(real: impl FnOnce() -> Code, total: *mut usize, ordinal: c_int) -> Code {
    let code = real();
    run_isolated(|| {
        if code == vendor::SUCCESS
            && !total.is_null()
            && let Some(device) = Device::with_ordinal(ordinal)
            && let Some(capacity) = Capacity::of(device.id, device.total)
        {
            // SAFETY: the driver has written it.
            unsafe { *total = at_most(*total, capacity.limit) };
        }
    });
    code
}

fn at_most(bytes: usize, limit: u64) -> usize {
    usize::try_from(limit).map_or(bytes, |limit| bytes.min(limit))
}

/// Calls `real`, which destroys a context with its memory.
pub(super) fn free_with_context(context: usize, real: impl FnOnce() -> Code) -> Code {
    let code = POINTERS.free_owned_by(context, || arrays::free_with_context(context, real));
    if code == vendor::SUCCESS {
        run_isolated(|| swap::free_with_context(context));
    }
    reserves::refresh_if_used();
    code
}

/// The driver has destroyed a context with its memory.
pub(super) fn freed_with_context(context: usize) {
    POINTERS.release_owned_by(context);
    swap::free_with_context(context);
    arrays::freed_with_context(context);
    reserves::refresh_if_used();
}

/// The primary context of a device; 0 if there is none. The driver returns it only to programs that retain it.
pub(super) fn primary_context(device: c_int) -> usize {
    let mut context = std::ptr::null_mut();
    run_isolated(|| {
        let functions = vendor::PRIMARY_RETAIN.get().zip(vendor::PRIMARY_RELEASE.get());
        let Some((retain, release)) = functions.filter(|_| is_primary_active(device)) else { return };
        // SAFETY: `context` has room for a handle. The context is active, so that it stays so after the release.
        unsafe {
            if retain(&raw mut context, device) == vendor::SUCCESS {
                release(device);
            }
        }
    });
    context.addr()
}
