//! Hardware queues as programs hand them to us: a vendor's stream behind a handle.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use xsched_interpose::OutermostHook;
use xsched_ipc::ScheduledQueue;

use super::api;
use super::command;
use super::failure::{Answer, Failure};
use super::handles::{Kind, no_place, put, unknown};
use super::types::{HwCommandHandle, HwQueueHandle, kXSchedSuccess};
use crate::runtime::{Runtime, existing_runtime, runtime_for_api};
use crate::tracked_queue::{ApiQueue, VendorQueue};

/// One hardware queue that the program has shown us.
pub(crate) struct HwQueue {
    /// What the platform tells it from others by.
    pub(super) key: usize,
    pub(super) hw: Arc<dyn VendorQueue>,
    /// The XQueue the program made on it, by its handle.
    queue: Mutex<Option<u64>>,
}

impl Kind for HwQueue {
    const NUMBER: u64 = 1;
    const NAME: &'static str = "hardware queue";
}

impl HwQueue {
    /// The handle of its XQueue, if it has one.
    pub(super) fn queue(&self) -> MutexGuard<'_, Option<u64>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its XQueue, whoever made it.
    fn joined(&self, runtime: &Runtime) -> Option<Arc<ScheduledQueue>> {
        let own = (*self.queue()).and_then(|handle| runtime.handles().queues.get(handle).ok());
        own.map(|queue| Arc::clone(queue.joined())).or_else(|| runtime.scheduled_queue(self.key))
    }
}

/// The hardware queue behind a handle.
pub(super) fn get(hwq: HwQueueHandle) -> Answer<(&'static Runtime, Arc<HwQueue>)> {
    let runtime = existing_runtime().ok_or_else(|| unknown::<HwQueue>(hwq))?;
    Ok((runtime, runtime.handles().hw_queues.get(hwq)?))
}

/// Makes a vendor's queue known. One that is known already keeps its handle.
pub(crate) fn create_hw_queue(hwq: *mut HwQueueHandle, find: impl FnOnce() -> Option<ApiQueue>) -> Answer {
    if hwq.is_null() {
        return Err(no_place());
    }
    let runtime = runtime_for_api().ok_or_else(Failure::over)?;
    // What the vendor's library does among its own functions is none of our business.
    let _outermost = OutermostHook::enter();
    let ApiQueue { key, open } = find().ok_or_else(not_usable)?;
    let mut known = runtime.handles().known();
    let handle = if let Some(handle) = known.get(&key) {
        *handle
    } else {
        let hw = runtime.track_for_api(key, open).ok_or_else(not_usable)?;
        let (handle, _) =
            runtime.handles().hw_queues.insert(|_| HwQueue { key, hw, queue: Mutex::default() });
        known.insert(key, handle);
        handle
    };
    // SAFETY: the program vouches for `hwq`.
    unsafe { put(hwq, handle) }
}

/// Finds the handle of a queue that was made known.
pub(crate) fn find_hw_queue(hwq: *mut HwQueueHandle, find: impl FnOnce() -> Option<ApiQueue>) -> Answer {
    if hwq.is_null() {
        return Err(no_place());
    }
    let runtime = existing_runtime().ok_or_else(never_made)?;
    let _outermost = OutermostHook::enter();
    let ApiQueue { key, .. } = find().ok_or_else(not_usable)?;
    let handle = runtime.handles().known().get(&key).copied().ok_or_else(never_made)?;
    // SAFETY: the program vouches for `hwq`.
    unsafe { put(hwq, handle) }
}

fn not_usable() -> Failure {
    Failure::invalid(
        "the vendor's library cannot be asked about this queue: it is none, its library is not loaded, \
         or its context is not current on this thread",
    )
}

fn never_made() -> Failure {
    Failure::not_found("no hardware queue was created for this one")
}

api! {
    /// Forgets a hardware queue. Its XQueue has to be destroyed before; the vendor's queue is not touched.
    fn HwQueueDestroy(hwq: HwQueueHandle) = destroy;

    /// Calls a command's function for this hardware queue, at once and on this thread, and answers what it answers.
    fn HwQueueLaunch(hwq: HwQueueHandle, cmd: HwCommandHandle) = launch;

    /// Dependencies until the device has finished everything that was launched on the hardware queue.
    fn HwQueueSynchronize(hwq: HwQueueHandle) = synchronize;
}

fn destroy(hwq: HwQueueHandle) -> Answer {
    let (runtime, hw_queue) = get(hwq)?;
    let mut known = runtime.handles().known();
    if hw_queue.queue().is_some() {
        return Err(Failure::not_allowed("it has an XQueue: destroy that first"));
    }
    runtime.handles().hw_queues.remove(hwq)?;
    if known.get(&hw_queue.key) == Some(&hwq) {
        known.remove(&hw_queue.key);
    }
    drop(known);
    runtime.untrack_unless_scheduled(hw_queue.key);
    Ok(())
}

fn launch(hwq: HwQueueHandle, cmd: HwCommandHandle) -> Answer {
    get(hwq)?;
    match command::get(cmd)?.call(hwq) {
        kXSchedSuccess => Ok(()),
        code => Err(Failure::of_callback(code)),
    }
}

fn synchronize(hwq: HwQueueHandle) -> Answer {
    let (runtime, hw_queue) = get(hwq)?;
    let _outermost = OutermostHook::enter();
    match hw_queue.joined(runtime) {
        Some(queue) => queue.launch_path().synchronized(|| hw_queue.hw.synchronize())?,
        None => hw_queue.hw.synchronize()?,
    }
    Ok(())
}
