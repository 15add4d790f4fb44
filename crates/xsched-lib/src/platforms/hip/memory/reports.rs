//! The sizes of the device that the runtime reports: with a limit, the device has no more memory than the limit.

use std::ffi::c_void;

use xsched_interpose::run_isolated;

use super::super::Call;
use super::super::vendor::{self, Code};
use super::{devices, limit};
use crate::runtime::memory_account;

/// Where `totalGlobalMem` is in `hipDeviceProp_t`, since version 6 and before.
pub(super) const TOTAL_IN_PROPERTIES_6: usize = 288;
pub(super) const TOTAL_IN_PROPERTIES_5: usize = 256;

/// Reduces the size of a device that the runtime has written, if there is a limit.
fn cap(total: *mut usize) {
    if total.is_null() {
        return;
    }
    // SAFETY: the runtime has written there.
    let found = unsafe { total.read_unaligned() };
    if let Some(limit) = limit(found as u64).and_then(|limit| usize::try_from(limit).ok()) {
        // SAFETY: as above.
        unsafe { total.write_unaligned(limit.min(found)) };
    }
}

/// A function that writes the size of a device.
pub(super) fn capped(call: Call, total: *mut usize) -> Code {
    let code = call.forward();
    if code == vendor::SUCCESS {
        run_isolated(|| cap(total));
    }
    code
}

/// A function that writes the properties of a device, with its size at `offset`.
pub(super) fn properties(call: Call, properties: *mut c_void, offset: usize) -> Code {
    if properties.is_null() {
        return call.forward();
    }
    capped(call, properties.wrapping_byte_add(offset).cast())
}

/// `hipMemGetInfo`.
pub(super) fn information(call: Call, free: *mut usize, total: *mut usize) -> Code {
    let copy = call.copy;
    let code = call.forward();
    run_isolated(|| {
        if code != vendor::SUCCESS || limit(u64::MAX).is_none() {
            return;
        }
        let Some(device) = devices::current(copy) else { return };
        cap(total);
        if let Some(limit) = limit(device.total).filter(|_| !free.is_null()) {
            let left = limit.saturating_sub(memory_account().used_together(device.id));
            // SAFETY: the runtime has written there.
            unsafe { free.write(free.read().min(usize::try_from(left).unwrap_or(usize::MAX))) };
        }
    });
    code
}
