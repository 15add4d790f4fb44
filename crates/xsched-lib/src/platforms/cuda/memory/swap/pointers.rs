//! What the driver reports about addresses: the same for memory that can be moved as for plain memory.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::AtomicBool;

use xsched_interpose::run_isolated;
use xsched_ipc::page::Staying;
use xsched_ipc::report::report_to_user;

use super::ranges::{self, Range};
use super::{MODE, ON, held, stays};
use crate::platforms::cuda::vendor::{self, Code};
use std::sync::atomic::Ordering;

/// The attributes that the driver derives from chunks, which the program does not know: `CU_POINTER_ATTRIBUTE_CONTEXT`,
/// `..._BUFFER_ID`, `..._RANGE_START_ADDR` and `..._RANGE_SIZE`. All are 8 bytes.
fn attribute_of(range: &Range, attribute: c_int) -> Option<u64> {
    match attribute {
        1 => Some(range.context as u64),
        7 => Some(range.identifier),
        10 => Some(range.address() as u64),
        11 => Some(range.requested as u64),
        _ => None,
    }
}

fn find<R>(address: usize, with: impl FnOnce(&mut Range) -> R) -> Option<R> {
    let mut found = None;
    if MODE.load(Ordering::Relaxed) == ON {
        run_isolated(|| found = ranges::with_range(address, with));
    }
    found
}

/// Calls `real`, which reports an attribute of an address.
pub(super) fn attribute(
    real: impl FnOnce() -> Code,
    out: *mut c_void,
    attribute: c_int,
    address: usize,
) -> Code {
    held(|| {
        let known = find(address, |range| attribute_of(range, attribute)).flatten();
        match known.filter(|_| !out.is_null()) {
            Some(value) => {
                // SAFETY: the program passes room for the attribute, which has 8 bytes.
                unsafe { out.cast::<u64>().write_unaligned(value) };
                vendor::SUCCESS
            }
            None => real(),
        }
    })
}

/// Calls `real`, which reports several attributes of an address.
pub(super) fn attributes(
    real: impl FnOnce() -> Code,
    count: c_uint,
    attributes: *const c_int,
    out: *const *mut c_void,
    address: usize,
) -> Code {
    held(|| {
        let code = real();
        if code == vendor::SUCCESS && !attributes.is_null() && !out.is_null() {
            find(address, |range| {
                for n in 0..count as usize {
                    // SAFETY: the driver has read `count` attributes and has written as many results.
                    unsafe {
                        if let Some(value) = attribute_of(range, *attributes.add(n)) {
                            (*out.add(n)).cast::<u64>().write_unaligned(value);
                        }
                    }
                }
            });
        }
        code
    })
}

/// Calls `real`, which reports the allocation that contains an address.
pub(super) fn address_range(
    real: impl FnOnce() -> Code,
    base: *mut usize,
    bytes: *mut usize,
    address: usize,
) -> Code {
    held(|| match find(address, |range| (range.address(), range.requested)) {
        Some((start, requested)) => {
            // SAFETY: null, or the program passes room for the results.
            unsafe {
                if let Some(base) = base.as_mut() {
                    *base = start;
                }
                if let Some(bytes) = bytes.as_mut() {
                    *bytes = requested;
                }
            }
            vendor::SUCCESS
        }
        None => real(),
    })
}

/// Calls `real`, which returns the handle of memory that the program has mapped itself. Other memory has none.
pub(in super::super::super) fn retain(real: impl FnOnce() -> Code, address: usize) -> Code {
    held(|| if find(address, |_| ()).is_some() { vendor::INVALID_VALUE } else { real() })
}

/// Calls `real`, which makes the memory at this address known to a device or driver outside of the process: it stays.
pub(super) fn expose(real: impl FnOnce() -> Code, address: usize) -> Code {
    held(|| {
        if MODE.load(Ordering::Relaxed) == ON {
            run_isolated(|| {
                if ranges::pin(address) {
                    stays(Staying::Exported);
                }
            });
        }
        real()
    })
}

/// Calls `real`, which exports memory to other processes. The driver refuses that for memory that chunks back.
pub(in super::super::super) fn export(real: impl FnOnce() -> Code, address: usize) -> Code {
    held(|| {
        let code = real();
        if code != vendor::SUCCESS && find(address, |_| ()).is_some() {
            static IS_REPORTED: AtomicBool = AtomicBool::new(false);
            report_to_user(
                &IS_REPORTED,
                format_args!(
                    "memory of a program with --swap cannot be shared by cuIpcGetMemHandle: start it without"
                ),
            );
        }
        code
    })
}
