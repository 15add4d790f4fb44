//! Hardware queues: the handles that programs create for vendors' queues.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use xsched_interpose::OutermostHook;
use xsched_ipc::ScheduledQueue;

use super::api;
use super::command;
use super::failure::{ApiResult, Failure};
use super::handles::{HandleKind, null_result_pointer, unknown_handle, write_result};
use super::types::{HwCommandHandle, HwQueueHandle, kXSchedSuccess};
use crate::runtime::{Runtime, existing_runtime, runtime_for_api};
use crate::tracked_queue::{ApiQueue, VendorQueue};

/// A hardware queue for which the program has created a handle.
pub(crate) struct HwQueue {
    /// The key under which it is tracked.
    pub(super) key: usize,
    pub(super) hw: Arc<dyn VendorQueue>,
    /// The handle of its XQueue, if the program has created one.
    queue: Mutex<Option<u64>>,
}

impl HandleKind for HwQueue {
    const NUMBER: u64 = 1;
    const NAME: &'static str = "hardware queue";
}

impl HwQueue {
    /// The handle of its XQueue, if it has one.
    pub(super) fn queue(&self) -> MutexGuard<'_, Option<u64>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its XQueue, created by the program or by the hooks.
    fn scheduled(&self, runtime: &Runtime) -> Option<Arc<ScheduledQueue>> {
        let own = (*self.queue()).and_then(|handle| runtime.handles().queues.get(handle).ok());
        own.map(|queue| Arc::clone(queue.scheduled())).or_else(|| runtime.scheduled_queue(self.key))
    }
}

/// The hardware queue behind a handle.
pub(super) fn get(hwq: HwQueueHandle) -> ApiResult<(&'static Runtime, Arc<HwQueue>)> {
    let runtime = existing_runtime().ok_or_else(|| unknown_handle::<HwQueue>(hwq))?;
    Ok((runtime, runtime.handles().hw_queues.get(hwq)?))
}

/// Creates the handle of a vendor's queue. A queue that has a handle keeps it.
pub(crate) fn create_hw_queue(hwq: *mut HwQueueHandle, find: impl FnOnce() -> Option<ApiQueue>) -> ApiResult {
    if hwq.is_null() {
        return Err(null_result_pointer());
    }
    let runtime = runtime_for_api().ok_or_else(Failure::process_exiting)?;
    // The calls of `find` to the vendor's library pass no hook.
    let _outermost = OutermostHook::enter_all();
    let ApiQueue { key, open } = find().ok_or_else(unusable_queue)?;
    let mut by_key = runtime.handles().by_key();
    let handle = if let Some(handle) = by_key.get(&key) {
        *handle
    } else {
        let hw = runtime.track_for_api(key, open).ok_or_else(unusable_queue)?;
        let (handle, _) =
            runtime.handles().hw_queues.insert(|_| HwQueue { key, hw, queue: Mutex::default() });
        by_key.insert(key, handle);
        handle
    };
    // SAFETY: the program guarantees that `hwq` may be written.
    unsafe { write_result(hwq, handle) }
}

/// Returns the handle of a vendor's queue.
pub(crate) fn find_hw_queue(hwq: *mut HwQueueHandle, find: impl FnOnce() -> Option<ApiQueue>) -> ApiResult {
    if hwq.is_null() {
        return Err(null_result_pointer());
    }
    let runtime = existing_runtime().ok_or_else(no_hw_queue)?;
    let _outermost = OutermostHook::enter_all();
    let ApiQueue { key, .. } = find().ok_or_else(unusable_queue)?;
    let handle = runtime.handles().by_key().get(&key).copied().ok_or_else(no_hw_queue)?;
    // SAFETY: the program guarantees that `hwq` may be written.
    unsafe { write_result(hwq, handle) }
}

fn unusable_queue() -> Failure {
    Failure::invalid(
        "the vendor's library does not accept this queue: the handle is invalid, the library is not loaded, \
         or the queue's context is not current on this thread",
    )
}

fn no_hw_queue() -> Failure {
    Failure::not_found("no hardware queue was created for this queue of the vendor")
}

api! {
    /// Destroys the handle of a hardware queue. Its XQueue has to be destroyed first. The vendor's queue is not changed.
    fn HwQueueDestroy(hwq: HwQueueHandle) = destroy;

    /// Calls a command's function for this hardware queue, at once and on this thread, and returns its result.
    fn HwQueueLaunch(hwq: HwQueueHandle, cmd: HwCommandHandle) = launch;

    /// Waits until everything that was launched on the hardware queue has completed.
    fn HwQueueSynchronize(hwq: HwQueueHandle) = synchronize;
}

fn destroy(hwq: HwQueueHandle) -> ApiResult {
    let (runtime, hw_queue) = get(hwq)?;
    let mut by_key = runtime.handles().by_key();
    if hw_queue.queue().is_some() {
        return Err(Failure::not_allowed("the hardware queue has an XQueue: destroy the XQueue first"));
    }
    runtime.handles().hw_queues.remove(hwq)?;
    if by_key.get(&hw_queue.key) == Some(&hwq) {
        by_key.remove(&hw_queue.key);
    }
    drop(by_key);
    runtime.untrack_unless_scheduled(hw_queue.key);
    Ok(())
}

fn launch(hwq: HwQueueHandle, cmd: HwCommandHandle) -> ApiResult {
    get(hwq)?;
    match command::get(cmd)?.call(hwq) {
        kXSchedSuccess => Ok(()),
        code => Err(Failure::of_callback(code)),
    }
}

fn synchronize(hwq: HwQueueHandle) -> ApiResult {
    let (runtime, hw_queue) = get(hwq)?;
    let _outermost = OutermostHook::enter_all();
    match hw_queue.scheduled(runtime) {
        Some(queue) => queue.launch_path().synchronized(|| hw_queue.hw.synchronize())?,
        None => hw_queue.hw.synchronize()?,
    }
    Ok(())
}
