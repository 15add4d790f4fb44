//! The devices on which a copy of the runtime allocates.

use std::collections::BTreeMap;
use std::ffi::c_int;

use xsched_core::DeviceId;

use super::super::stream;
use super::super::vendor::{self, Stream};
use super::super::{legacy_stream, runtime_copies, runtime_thread};
use crate::allocations::PerProcess;
use crate::runtime::existing_runtime;

/// A device of one copy of the runtime.
#[derive(Clone, Copy)]
pub(super) struct MemoryDevice {
    pub(super) id: DeviceId,
    /// The size of its memory in bytes.
    pub(super) total: u64,
    /// Identifies the device of this copy: the key of its legacy default stream.
    pub(super) owner: usize,
}

/// The devices by owner; none for a device that the runtime does not describe.
static DEVICES: PerProcess<BTreeMap<usize, Option<MemoryDevice>>> = PerProcess::new();

/// Whether memory of some device was counted.
pub(super) fn is_any_known() -> bool {
    DEVICES.lock().values().any(Option::is_some)
}

/// The calling thread's device.
pub(super) fn current(copy: usize) -> Option<MemoryDevice> {
    at(copy, legacy_stream(copy)?.ordinal()?)
}

/// The device of a stream: of one that was not used yet, the calling thread's.
pub(super) fn of_stream(copy: usize, stream: Stream) -> Option<MemoryDevice> {
    let current = current(copy)?;
    let queue = existing_runtime().and_then(|runtime| runtime.scheduled_queue(stream.addr()));
    let Some(id) = queue.map(|queue| queue.launch_path().hw().device()) else { return Some(current) };
    let others = DEVICES.lock();
    let of_device = |device: &&MemoryDevice| device.id == id;
    Some(others.values().flatten().find(of_device).copied().unwrap_or(MemoryDevice { id, ..current }))
}

/// A device by its ordinal.
pub(super) fn at(copy: usize, ordinal: c_int) -> Option<MemoryDevice> {
    let owner = runtime_copies::base(copy) + usize::try_from(ordinal).ok()?;
    if let Some(known) = DEVICES.lock().get(&owner) {
        return *known;
    }
    // If the thread is blocked, the next allocation asks again.
    let found = runtime_thread::call(move || describe(copy, ordinal, owner))?;
    DEVICES.lock().insert(owner, found);
    found
}

/// For the runtime thread: each call may fail.
fn describe(copy: usize, ordinal: c_int, owner: usize) -> Option<MemoryDevice> {
    let mut total = 0;
    // SAFETY: `total` has room for the result; the runtime rejects an ordinal that does not exist.
    let code = unsafe { vendor::TOTAL_MEMORY.of(copy)?(&raw mut total, ordinal) };
    let id = (code == vendor::SUCCESS).then(|| stream::device_of_ordinal(copy, ordinal)).flatten()?;
    Some(MemoryDevice { id, total: total as u64, owner })
}
