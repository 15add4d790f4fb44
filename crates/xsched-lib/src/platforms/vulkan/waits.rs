//! Submissions that may wait for the program.
//!
//! A binary semaphore is signalled by work that was submitted before. A timeline semaphore may be signalled by the program, or by
//! work that it submits later; an event may be set by the program. No thread may block on such a queue: it could be the thread
//! that ends the wait.

use super::device::Device;
use super::queue::Vulkan;
use super::vendor::{
    self, BindSparseInfo, Chained, Code, EventCreateInfo, Handle, SubmitInfo, SubmitInfo2, TimelineSubmitInfo,
};
use crate::event_queue::{Event, EventApi as _};
use crate::event_wait_lists::{from_c_list, record_program_wait};
use crate::runtime::Runtime;

/// Whether batches of `vkQueueSubmit` wait for a timeline semaphore. The values of binary semaphores are usually 0.
///
/// # Safety
/// There are `count` batches.
pub(crate) unsafe fn of_submit(count: u32, batches: *const SubmitInfo) -> bool {
    // SAFETY: guaranteed by the caller.
    unsafe { from_c_list(count, batches) }.iter().any(|batch| unsafe { of_batch(&raw const batch.head) })
}

/// The same for `vkQueueBindSparse`.
///
/// # Safety
/// As for [`of_submit`].
pub(crate) unsafe fn of_bind_sparse(count: u32, batches: *const BindSparseInfo) -> bool {
    // SAFETY: guaranteed by the caller.
    unsafe { from_c_list(count, batches) }.iter().any(|batch| unsafe { of_batch(&raw const batch.head) })
}

unsafe fn of_batch(batch: *const Chained) -> bool {
    // SAFETY: the caller passes a batch of the program, whose lists are valid.
    unsafe {
        vendor::in_chain(batch, vendor::TIMELINE_SEMAPHORE_SUBMIT_INFO).any(|info| {
            let TimelineSubmitInfo { waits, wait_values, .. } = &*info.cast();
            from_c_list(*waits, *wait_values).iter().any(|value| *value > 0)
        })
    }
}

/// The same for `vkQueueSubmit2`.
///
/// # Safety
/// As for [`of_submit`].
pub(crate) unsafe fn of_submit_2(count: u32, batches: *const SubmitInfo2) -> bool {
    // SAFETY: guaranteed by the caller.
    unsafe {
        from_c_list(count, batches)
            .iter()
            .any(|batch| from_c_list(batch.waits, batch.wait_list).iter().any(|wait| wait.value > 0))
    }
}

/// Calls `real`, which creates an event. The program can set it, unless it is for the device only.
///
/// # Safety
/// `info` is the program's structure, or null.
pub(crate) unsafe fn create_event(
    real: impl FnOnce() -> Code,
    device: &Device,
    info: *const EventCreateInfo,
) -> Code {
    // SAFETY: guaranteed by the caller.
    if unsafe { info.as_ref() }.is_some_and(|info| info.flags & vendor::DEVICE_ONLY == 0) {
        device.set_has_host_events();
    }
    real()
}

/// Records that the last submission to a queue may wait for the program. Called on the thread that has submitted it.
pub(crate) fn record(runtime: &Runtime, queue: Handle) {
    if let Ok(event) = Event::<Vulkan>::record(|| Vulkan::record(queue)) {
        record_program_wait(runtime, queue, event);
    }
}
