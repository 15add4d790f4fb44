//! Memory that the driver reserves by itself: for pools, which keep more than the program uses, and for graphs. The driver reports
//! how much it has reserved; the count is corrected when that may have changed.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use xsched_core::DeviceId;
use xsched_interpose::run_isolated;

use super::Device;
use crate::allocations::{PerProcess, Reservation};
use crate::platforms::cuda::capture::unless_capturing;
use crate::platforms::cuda::vendor;

/// What the driver has reserved memory for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    Pool(usize),
    /// All graphs on the GPU with this ordinal.
    Graphs(c_int),
}

struct Reserve {
    holder: Holder,
    counted: Reservation,
}

static RESERVES: PerProcess<Vec<Reserve>> = PerProcess::new();

/// Whether there is any: most programs have neither pools nor graphs with memory.
static IS_USED: AtomicBool = AtomicBool::new(false);
/// Memory of a pool was freed since the last synchronization, which gives it back to the GPU.
static IS_FREED: AtomicBool = AtomicBool::new(false);

impl Holder {
    /// What the driver has reserved; none if it does not report it.
    fn reserved(self) -> Option<u64> {
        /// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT` and `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`.
        const OF_POOL: c_int = 5;
        const OF_GRAPHS: c_int = 2;
        let mut bytes = 0;
        // SAFETY: `bytes` has room for the result. A pool is known until the program destroys it.
        let code = unsafe {
            match self {
                Self::Pool(pool) => vendor::POOL_ATTRIBUTE.get()?(pool, OF_POOL, &raw mut bytes),
                Self::Graphs(device) => {
                    vendor::GRAPH_MEMORY_ATTRIBUTE.get()?(device, OF_GRAPHS, &raw mut bytes)
                }
            }
        };
        (code == vendor::SUCCESS).then_some(bytes)
    }

    /// How much of a pool's reserve the program does not use.
    pub(super) fn unused(self) -> u64 {
        /// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`.
        const USED: c_int = 7;
        let (Self::Pool(pool), Some(attribute)) = (self, vendor::POOL_ATTRIBUTE.get()) else { return 0 };
        let mut used = 0;
        // SAFETY: as above.
        let code = unsafe { attribute(pool, USED, &raw mut used) };
        let reserved = self.reserved().filter(|_| code == vendor::SUCCESS);
        reserved.map_or(0, |reserved| reserved.saturating_sub(used))
    }
}

/// Counts what the driver has reserved for a holder on a device from now on. `grown` was counted before the reserve grew.
pub(super) fn count(holder: Holder, device: DeviceId, grown: Option<Reservation>) {
    IS_USED.store(true, Ordering::Release);
    let mut reserves = RESERVES.lock();
    let known = reserves.iter().position(|reserve| reserve.holder == holder);
    let place = known.unwrap_or_else(|| {
        reserves.push(Reserve { holder, counted: Reservation::of_allocated(device, 0) });
        reserves.len() - 1
    });
    let reserve = &mut reserves[place];
    let before = reserve.counted.bytes();
    if let Some(grown) = grown {
        reserve.counted.absorb(grown);
    }
    reserve.counted.resize(holder.reserved().unwrap_or(before));
}

/// The device of a holder that is counted.
pub(super) fn device_of(holder: Holder) -> Option<DeviceId> {
    RESERVES.lock().iter().find(|reserve| reserve.holder == holder).map(|reserve| reserve.counted.device())
}

/// A holder ends.
pub(super) fn forget(holder: Holder) {
    RESERVES.lock().retain(|reserve| reserve.holder != holder);
}

/// Corrects what is counted on a device.
pub(super) fn refresh(device: DeviceId) {
    refresh_where(|on| on == device);
}

/// Corrects what is counted, if there is anything.
pub(super) fn refresh_if_used() {
    if IS_USED.load(Ordering::Acquire) {
        run_isolated(|| refresh_where(|_| true));
    }
}

fn refresh_where(condition: impl Fn(DeviceId) -> bool) {
    if !IS_USED.load(Ordering::Acquire) {
        return;
    }
    for reserve in RESERVES.lock().iter_mut().filter(|reserve| condition(reserve.counted.device())) {
        if let Some(bytes) = reserve.holder.reserved() {
            reserve.counted.resize(bytes);
        }
    }
}

/// The program has freed memory of a pool. The pool keeps it at least until a synchronization.
pub(super) fn freed() {
    IS_FREED.store(true, Ordering::Release);
}

/// The program has synchronized.
pub(super) fn synchronized() {
    if IS_FREED.load(Ordering::Relaxed) && IS_FREED.swap(false, Ordering::AcqRel) {
        refresh_if_used();
    }
}

/// Gives the unused memory of pools back to the device. Returns whether less is counted now.
pub(super) fn trim(device: Device) -> bool {
    if !IS_USED.load(Ordering::Acquire) {
        return false;
    }
    let mut is_less = false;
    // A capture may forbid it.
    unless_capturing(|| {
        for reserve in RESERVES.lock().iter_mut().filter(|reserve| reserve.counted.device() == device.id) {
            if let (Holder::Pool(pool), Some(trim)) = (reserve.holder, vendor::POOL_TRIM.get()) {
                // SAFETY: a pool is known until the program destroys it.
                unsafe { trim(pool, 0) };
            }
            let before = reserve.counted.bytes();
            if let Some(bytes) = reserve.holder.reserved() {
                reserve.counted.resize(bytes);
                is_less |= bytes < before;
            }
        }
    });
    is_less
}
