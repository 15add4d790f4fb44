//! How much memory of each device this process has allocated. The other processes see it through [`shared`].
//!
//! The device allocates pages of 2 MiB. Small allocations share pages, larger ones have pages of their own.

use crate::code::{Code, Outcome};
use crate::settings::{MAX_DEVICES, Settings};
use crate::shared;

/// The size of a page.
pub(crate) const PAGE: u64 = 2 << 20;
/// Larger allocations have pages of their own.
const SMALL: u64 = 1 << 20;
/// The granularity of small allocations.
const GRAIN: u64 = 512;

/// The memory that this process has allocated, by device.
#[derive(Default)]
pub(crate) struct DeviceMemory {
    devices: [Amount; MAX_DEVICES],
}

#[derive(Clone, Copy, Default)]
struct Amount {
    pages: u64,
    small: u64,
}

impl Amount {
    fn taken(self) -> u64 {
        self.pages + self.small.next_multiple_of(PAGE)
    }
}

impl DeviceMemory {
    /// Allocates memory of a device, unless it is full.
    pub(crate) fn allocate(&mut self, device: usize, bytes: u64) -> Outcome {
        let mut amount = self.devices[device];
        if bytes > SMALL {
            let pages = bytes.checked_next_multiple_of(PAGE).ok_or(Code::ERROR_OUT_OF_MEMORY)?;
            amount.pages = amount.pages.checked_add(pages).ok_or(Code::ERROR_OUT_OF_MEMORY)?;
        } else {
            amount.small += bytes.next_multiple_of(GRAIN);
        }
        if amount.taken() > self.devices[device].taken() {
            shared::set_memory(device, amount.taken(), Settings::get().memory)?;
        }
        self.devices[device] = amount;
        Ok(())
    }

    /// Frees memory that was allocated in one call.
    pub(crate) fn free(&mut self, device: usize, bytes: u64) {
        let amount = &mut self.devices[device];
        let before = amount.taken();
        if bytes > SMALL {
            amount.pages = amount.pages.saturating_sub(bytes.next_multiple_of(PAGE));
        } else {
            amount.small = amount.small.saturating_sub(bytes.next_multiple_of(GRAIN));
        }
        if amount.taken() < before {
            // Less than before always fits.
            let _ = shared::set_memory(device, amount.taken(), u64::MAX);
        }
    }
}

/// How much memory of a device is free, and how much it has.
pub(crate) fn free_and_total(device: usize) -> (u64, u64) {
    let total = Settings::get().memory;
    let used: u64 = shared::memory_use(device).iter().map(|(_, bytes)| bytes).sum();
    (total.saturating_sub(used), total)
}
