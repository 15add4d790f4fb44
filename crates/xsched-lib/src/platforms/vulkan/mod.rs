//! The Vulkan platform: a layer, which the Vulkan loader puts between the program and the driver.
//!
//! ```text
//!   program ──► loader ──► other layers ──► hooks of this layer ──► gate ──► driver
//! ```
//! `xsched run` enables the layer by its manifest, `VkLayer_xsched.json`. The loader finds the layer's functions by one export
//! that no Vulkan library has. The library exports none of Vulkan's names, because it is also preloaded: they would replace
//! those of the loader.
//!
//! The program has to synchronize all uses of a queue. So the layer submits its own markers only inside the program's call that
//! submits, and never from another thread.
//!
//! * [`layer`]: the chain of layers, from the instance to the device. [`device`]: a logical device and the driver's functions.
//! * [`queue`]: a queue as a hardware queue.
//! * [`waits`]: submissions that may wait for the program.
//! * [`vendor`]: Vulkan's types.

#[cfg(test)]
mod conformance;
mod device;
mod layer;
mod queue;
mod vendor;
mod waits;

use std::ffi::c_void;

use xsched_interpose::{forward_once, run_isolated};
use xsched_ipc::ScheduledQueue;

#[cfg(test)]
use crate::api::PlatformHeader;
use crate::loader::VendorIdentity;
use crate::platforms::Platform;
use crate::queue_hooks;
use crate::runtime::{existing_runtime, runtime};
use device::{Device, device_hooks};
use vendor::{BindSparseInfo, Code, EventCreateInfo, Handle, Object, SUCCESS, SubmitInfo, SubmitInfo2};

/// The Vulkan loader.
static VENDOR: VendorIdentity =
    VendorIdentity { exports: &[c"vkCreateInstance", c"vkGetInstanceProcAddr"], files: &["libvulkan.so"] };

/// The platform, for the registry.
pub(crate) static PLATFORM: Platform = Platform {
    vendor: &VENDOR,
    hooks: &[],
    bypasses_hook: None,
    observe_ioctl: None,
    at_exit: None,
    #[cfg(test)]
    header: &PlatformHeader::NONE,
};

device_hooks! {
    fn vkQueueSubmit(queue: Handle, count: u32, batches: *const SubmitInfo, fence: Object) -> Code
        // SAFETY: the program passes the same batches to the driver.
        = |real, device, queue, count, batches, _| submit(real, device, queue, || unsafe { waits::of_submit(count, batches) });
    fn vkQueueSubmit2(queue: Handle, count: u32, batches: *const SubmitInfo2, fence: Object) -> Code
        // SAFETY: as above.
        = |real, device, queue, count, batches, _| submit(real, device, queue, || unsafe { waits::of_submit_2(count, batches) });
    fn vkQueueSubmit2KHR(queue: Handle, count: u32, batches: *const SubmitInfo2, fence: Object) -> Code
        // SAFETY: as above.
        = |real, device, queue, count, batches, _| submit(real, device, queue, || unsafe { waits::of_submit_2(count, batches) });
    fn vkQueueBindSparse(queue: Handle, count: u32, batches: *const BindSparseInfo, fence: Object) -> Code
        // SAFETY: as above.
        = |real, device, queue, count, batches, _| submit(real, device, queue, || unsafe { waits::of_bind_sparse(count, batches) });
    fn vkQueueWaitIdle(queue: Handle) -> Code = |real, _, queue| queue_hooks::synchronize(real, queue);
    fn vkDeviceWaitIdle(device: Handle) -> Code = |real, device, _| synchronize_all(real, device);
    fn vkWaitForFences(device: Handle, count: u32, fences: *const Object, all: u32, timeout: u64) -> Code
        = |real, device, _, _, _, _, _| observe_completion(real, device);
    fn vkGetFenceStatus(device: Handle, fence: Object) -> Code = |real, device, _, _| observe_completion(real, device);
    fn vkWaitSemaphores(device: Handle, info: *const c_void, timeout: u64) -> Code
        = |real, device, _, _, _| observe_completion(real, device);
    fn vkWaitSemaphoresKHR(device: Handle, info: *const c_void, timeout: u64) -> Code
        = |real, device, _, _, _| observe_completion(real, device);
    fn vkCreateEvent(device: Handle, info: *const EventCreateInfo, allocator: *const c_void, event: *mut Object) -> Code
        // SAFETY: the program passes the same structure to the driver.
        = |real, device, _, info, _, _| unsafe { waits::create_event(real, device, info) };
    functions of the driver {
        fn vkCreateFence(Handle, *const vendor::FenceCreateInfo, *const c_void, *mut Object) -> Code;
        fn vkDestroyFence(Handle, Object, *const c_void) -> ();
        fn vkResetFences(Handle, u32, *const Object) -> Code;
        fn vkDestroyDevice(Handle, *const c_void) -> ();
    }
}

/// Submits work to a queue once the scheduler allows it. `waits_for_program` returns whether it may wait for the program.
fn submit(
    real: impl FnOnce() -> Code,
    device: &Device,
    queue: Handle,
    waits_for_program: impl FnOnce() -> bool,
) -> Code {
    let Some(runtime) = runtime() else { return real() };
    forward_once(real, |call| {
        let track = || runtime.track(queue.addr(), || Some(queue::open(device, queue)));
        let Some(tracked) = runtime.queue_or_track(queue.addr(), track) else { return };
        let Some(path) = tracked.launch_path() else { return };
        let _submitting = queue::Submitting::to(queue);
        // Read before the call, which may change or free the batches.
        let waits_for_program = device.has_host_events() || waits_for_program();
        // Some drivers return only when the device has completed the work: the scheduler has to know of it before.
        path.launch_large(call);
        if waits_for_program {
            waits::record(runtime, queue);
        }
    })
}

/// Calls `real`, which waits for all queues of a logical device.
fn synchronize_all(real: impl FnOnce() -> Code, device: &Device) -> Code {
    fn wait(queues: &[std::sync::Arc<ScheduledQueue>], call: &mut dyn FnMut()) {
        match queues.split_first() {
            None => call(),
            Some((first, rest)) => first.launch_path().synchronized(|| wait(rest, call)),
        }
    }
    let Some(runtime) = existing_runtime() else { return real() };
    forward_once(real, |call| {
        let queues: Vec<_> = device.queues().iter().filter_map(|key| runtime.scheduled_queue(*key)).collect();
        wait(&queues, call);
    })
}

/// Calls `real`, which may observe that work has completed. The queues of the device may be idle then.
fn observe_completion(real: impl FnOnce() -> Code, device: &Device) -> Code {
    let code = real();
    if code == SUCCESS {
        run_isolated(|| {
            let Some(runtime) = existing_runtime() else { return };
            for queue in device.queues().iter() {
                runtime.poll_idle(*queue);
            }
        });
    }
    code
}
