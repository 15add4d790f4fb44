//! Physical memory that the program maps itself. It is freed when its handle has been released as often as it was created and
//! retained, and nothing maps it any more. It belongs to no context.

use std::collections::BTreeMap;
use std::sync::Arc;

use xsched_core::{DeviceId, NotDeferred};
use xsched_interpose::run_isolated;
use xsched_ipc::memory::OverLimit;
use xsched_ipc::page::Staying;

use super::{Device, swap};
use crate::allocations::{PerProcess, Reservation};
use crate::deferral::exposes;
use crate::platforms::cuda::stream::device_with_ordinal;
use crate::platforms::cuda::vendor::{self, AllocationProperties, Code, MemoryAccess};

/// Memory that handles and mappings share.
type Memory = Arc<Reservation>;

#[derive(Default)]
struct State {
    handles: BTreeMap<u64, Handle>,
    /// By address.
    mappings: BTreeMap<usize, Mapping>,
}

struct Handle {
    memory: Memory,
    /// How often the program has to release it.
    references: u32,
}

struct Mapping {
    bytes: usize,
    memory: Memory,
}

static STATE: PerProcess<State> = PerProcess::new();

impl State {
    fn add_reference(&mut self, handle: u64, memory: Memory) {
        self.handles.entry(handle).or_insert(Handle { memory, references: 0 }).references += 1;
    }

    fn remove_reference(&mut self, handle: u64) -> Option<Memory> {
        let known = self.handles.get_mut(&handle)?;
        known.references -= 1;
        if known.references > 0 {
            return Some(Arc::clone(&known.memory));
        }
        self.handles.remove(&handle).map(|handle| handle.memory)
    }

    fn mapped_at(&self, address: usize) -> Option<&Memory> {
        let (start, mapping) = self.mappings.range(..=address).next_back()?;
        (address - start < mapping.bytes).then_some(&mapping.memory)
    }
}

/// Calls `real`, which allocates memory without mapping it.
pub(in super::super) fn create(
    real: impl FnOnce() -> Code,
    handle: *mut u64,
    bytes: usize,
    properties: *const AllocationProperties,
) -> Code {
    swap::stays(Staying::Mapped);
    let mut reserved: Result<_, OverLimit> = Ok(None);
    run_isolated(|| {
        // SAFETY: null, or the program passes properties to the driver, which reads them.
        let ordinal = unsafe { properties.as_ref() }.and_then(|properties| properties.location.device());
        let device = ordinal.and_then(Device::with_ordinal);
        reserved = device.map(|device| device.reserve(bytes as u64)).transpose();
    });
    let Ok(reservation) = reserved else { return vendor::OUT_OF_MEMORY };
    let code = real();
    run_isolated(|| {
        if let Some(reservation) = reservation.filter(|_| code == vendor::SUCCESS) {
            let mut state = STATE.lock();
            // SAFETY: the driver has written the handle there.
            let handle = unsafe { *handle };
            // A handle of this value was released in a way that no hook has seen.
            state.handles.remove(&handle);
            state.add_reference(handle, Arc::new(reservation));
        }
    });
    code
}

/// Calls `real`, which releases a handle.
pub(in super::super) fn release(real: impl FnOnce() -> Code, handle: u64) -> Code {
    let mut released = None;
    // Before the call, because the driver may return the same handle to another thread as soon as it is free.
    run_isolated(|| released = STATE.lock().remove_reference(handle));
    let code = real();
    run_isolated(|| {
        if let Some(memory) = released.filter(|_| code != vendor::SUCCESS) {
            STATE.lock().add_reference(handle, memory);
        }
    });
    code
}

/// Calls `real`, which returns the handle of mapped memory once more.
pub(in super::super) fn retain(real: impl FnOnce() -> Code, handle: *mut u64, address: usize) -> Code {
    let code = real();
    run_isolated(|| {
        let mut state = STATE.lock();
        if let Some(memory) = state.mapped_at(address).filter(|_| code == vendor::SUCCESS).cloned() {
            // SAFETY: the driver has written the handle there.
            state.add_reference(unsafe { *handle }, memory);
        }
    });
    code
}

/// Calls `real`, which maps memory.
pub(in super::super) fn map(real: impl FnOnce() -> Code, address: usize, bytes: usize, handle: u64) -> Code {
    let code = real();
    run_isolated(|| {
        let mut state = STATE.lock();
        let memory = state.handles.get(&handle).map(|handle| Arc::clone(&handle.memory));
        if let Some(memory) = memory.filter(|_| code == vendor::SUCCESS) {
            state.mappings.insert(address, Mapping { bytes, memory });
        }
    });
    code
}

/// Calls `real`, which unmaps whole mappings.
pub(in super::super) fn unmap(real: impl FnOnce() -> Code, address: usize, bytes: usize) -> Code {
    let mut unmapped = Vec::new();
    run_isolated(|| {
        let mappings = &mut STATE.lock().mappings;
        let inside: Vec<_> =
            mappings.range(address..address.saturating_add(bytes)).map(|(at, _)| *at).collect();
        unmapped = inside.into_iter().filter_map(|at| Some((at, mappings.remove(&at)?))).collect();
    });
    let code = real();
    run_isolated(|| {
        if code == vendor::SUCCESS {
            drop(unmapped);
        } else {
            STATE.lock().mappings.extend(unmapped);
        }
    });
    code
}

/// Calls `real`, which lets devices access mapped memory.
pub(in super::super) fn set_access(
    real: impl FnOnce() -> Code,
    address: usize,
    access: *const MemoryAccess,
    count: usize,
) -> Code {
    /// More devices than any machine has.
    const MAX_DEVICES: usize = 256;
    let mut is_shared = false;
    run_isolated(|| {
        let own = STATE.lock().mapped_at(address).map(|memory| memory.device());
        let count = if access.is_null() { 0 } else { count.min(MAX_DEVICES) };
        // SAFETY: the program passes so many descriptions to the driver, which reads them.
        let devices = (0..count).filter_map(|index| unsafe { (*access.add(index)).location }.device());
        is_shared = is_accessed_by_another(own, devices.map(device_with_ordinal));
    });
    if is_shared { exposes(real, NotDeferred::PeerAccess) } else { real() }
}

/// Whether one of `devices` is not the one that the memory is on. Memory of another process is on an unknown one.
fn is_accessed_by_another(
    own: Option<DeviceId>,
    mut devices: impl Iterator<Item = Option<DeviceId>>,
) -> bool {
    devices.any(|device| own.is_none() || device != own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_of_the_own_device_does_not_share_memory() {
        let [own, other] = [1, 2].map(|number| Some(DeviceId(number)));
        assert!(!is_accessed_by_another(own, [own, own].into_iter()));
        assert!(is_accessed_by_another(own, [own, other].into_iter()));
        assert!(is_accessed_by_another(own, [None].into_iter()), "an unknown device");
        assert!(is_accessed_by_another(None, [own].into_iter()), "memory of another process");
    }
}
