//! Physical memory that the program maps itself. It exists while a handle or a mapping refers to it.

use std::collections::BTreeMap;
use std::ffi::c_int;

use super::super::Call;
use super::super::vendor::{self, Code};
use super::{Address, Place, allocate};
use crate::allocations::{Allocations, PerProcess};
use xsched_interpose::run_isolated;

/// The beginning of `hipMemAllocationProp`.
#[repr(C)]
pub(super) struct AllocationProperties {
    kind: c_int,
    handle_type: c_int,
    location_type: c_int,
    /// The ordinal of the device.
    location: c_int,
}

/// `hipMemLocationTypeDevice`.
const ON_DEVICE: c_int = 1;

/// The memory by handle.
static HANDLES: Allocations = Allocations::new();
static REFERENCES: PerProcess<References> = PerProcess::new();

/// What refers to the memory that [`HANDLES`] contains.
#[derive(Default)]
struct References {
    counts: BTreeMap<usize, usize>,
    /// The handle of each mapping, by address.
    mappings: BTreeMap<usize, usize>,
}

impl References {
    fn add(&mut self, handle: usize) {
        *self.counts.entry(handle).or_insert(0) += 1;
    }

    /// Removes a reference. Returns whether it was the last.
    fn remove(&mut self, handle: usize) -> bool {
        let Some(count) = self.counts.get_mut(&handle) else { return false };
        *count = count.saturating_sub(1);
        let is_last = *count == 0;
        if is_last {
            self.counts.remove(&handle);
        }
        is_last
    }
}

pub(super) fn create(
    call: Call,
    out: *mut Address,
    size: usize,
    properties: *const AllocationProperties,
) -> Code {
    // SAFETY: the program passes the same pointer to the runtime, which reads the properties there.
    let place = match unsafe { properties.as_ref() } {
        Some(properties) if properties.location_type == ON_DEVICE => Place::Ordinal(properties.location),
        // Memory of the host, or a request that the runtime rejects.
        _ => return call.forward(),
    };
    let code = allocate(call, &HANDLES, place, size as u64, out);
    if code == vendor::SUCCESS {
        run_isolated(|| {
            // SAFETY: the runtime has written the handle.
            let handle = unsafe { out.read() }.addr();
            if HANDLES.contains(handle) {
                REFERENCES.lock().counts.insert(handle, 1);
            }
        });
    }
    code
}

/// Calls `real`, which removes a reference to the memory. The memory is free when `real` has removed the last one.
fn remove_reference(handle: usize, real: &mut dyn FnMut() -> Code) -> Code {
    let mut is_last = false;
    run_isolated(|| is_last = REFERENCES.lock().remove(handle));
    let code = if is_last { HANDLES.free(handle, real) } else { real() };
    if code != vendor::SUCCESS {
        run_isolated(|| {
            if HANDLES.contains(handle) {
                REFERENCES.lock().add(handle);
            }
        });
    }
    code
}

pub(super) fn release(call: Call, handle: Address) -> Code {
    let Call { real, .. } = call;
    remove_reference(handle.addr(), real)
}

/// The program gets another reference to memory that is mapped.
pub(super) fn retain(call: Call, out: *mut Address) -> Code {
    let code = call.forward();
    if code == vendor::SUCCESS {
        // SAFETY: the runtime has written the handle.
        run_isolated(|| add_reference(unsafe { out.read() }.addr()));
    }
    code
}

/// Memory of other processes is not counted, and has no references here.
fn add_reference(handle: usize) {
    if HANDLES.contains(handle) {
        REFERENCES.lock().add(handle);
    }
}

pub(super) fn map(call: Call, address: Address, handle: Address) -> Code {
    let code = call.forward();
    if code == vendor::SUCCESS {
        run_isolated(|| {
            add_reference(handle.addr());
            REFERENCES.lock().mappings.insert(address.addr(), handle.addr());
        });
    }
    code
}

/// One call can unmap several mappings.
pub(super) fn unmap(call: Call, address: Address, size: usize) -> Code {
    let code = call.forward();
    if code == vendor::SUCCESS {
        run_isolated(|| {
            let range = address.addr()..address.addr().saturating_add(size);
            let unmapped: Vec<_> = {
                let mappings = &mut REFERENCES.lock().mappings;
                let addresses: Vec<_> = mappings.range(range).map(|(address, _)| *address).collect();
                addresses.iter().filter_map(|address| mappings.remove(address)).collect()
            };
            for handle in unmapped {
                remove_reference(handle, &mut || vendor::SUCCESS);
            }
        });
    }
    code
}

/// The device was reset.
pub(super) fn release_owned_by(owner: usize) {
    HANDLES.release_owned_by(owner);
}
