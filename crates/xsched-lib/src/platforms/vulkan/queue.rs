//! A queue of Vulkan as a hardware queue of the core. A marker is a fence behind everything that was submitted.
//!
//! A fence needs no feature of the device. A timeline semaphore would be one object for all markers, but the program has to enable
//! it when it creates the device, and some drivers then submit from a thread of their own.

use std::cell::Cell;
use std::ptr;
use std::sync::Arc;

use super::device::Device;
use super::vendor::{self, Handle, Object};
use crate::event_queue::{EventApi, EventQueue};

/// A queue of this device.
pub(crate) fn open(device: &Device, queue: Handle) -> EventQueue<Vulkan> {
    device.add_queue(queue.addr());
    EventQueue::new(queue, device.id, device.name.clone(), "Vulkan cannot stop work that was submitted")
        .owned_by(device.handle.addr())
        .marked_by_launching_thread()
}

thread_local! {
    /// The queue to which this thread submits, inside a call of the program; 0 if none.
    static SUBMITS_TO: Cell<usize> = const { Cell::new(0) };
}

/// While it exists, this thread may submit markers to a queue: the program is in a call that submits to the queue, so that no
/// other thread uses the queue.
pub(crate) struct Submitting(());

impl Submitting {
    pub(crate) fn to(queue: Handle) -> Self {
        SUBMITS_TO.set(queue.addr());
        Self(())
    }
}

impl Drop for Submitting {
    fn drop(&mut self) {
        let _ = SUBMITS_TO.try_with(|queue| queue.set(0));
    }
}

/// A fence that the device signals.
struct Fence {
    device: Arc<Device>,
    fence: Object,
}

/// Vulkan's functions for fences. The handle of an event is a leaked [`Fence`].
pub(crate) struct Vulkan;

impl Vulkan {
    fn fence(event: Handle) -> *mut Fence {
        ptr::with_exposed_provenance_mut(event.addr())
    }
}

impl EventApi for Vulkan {
    fn record(queue: Handle) -> Result<Handle, String> {
        if SUBMITS_TO.get() != queue.addr() {
            return Err("only a thread that submits to the queue may use it".to_owned());
        }
        // SAFETY: the program is submitting to the queue.
        let device = unsafe { Device::of(queue) }.ok_or("the device was destroyed")?;
        let submit = device.functions.vkQueueSubmit.ok_or("the driver cannot submit")?;
        let fence = device.take_fence()?;
        // SAFETY: as above, on the thread that uses the queue; the fence is not signalled and not in use.
        match unsafe { submit(queue, 0, ptr::null(), fence) } {
            vendor::SUCCESS => {
                let leaked = Box::into_raw(Box::new(Fence { device, fence }));
                leaked.expose_provenance();
                // SAFETY: a handle of this platform, which only its functions use.
                Ok(unsafe { Handle::from_pointer(leaked.cast()) })
            }
            code => {
                device.return_fence(fence);
                Err(format!("error {code}"))
            }
        }
    }

    /// The fence of a lost device returns an error.
    fn is_complete(event: Handle) -> bool {
        // SAFETY: `record` leaked it, and it is not released.
        let Fence { device, fence } = unsafe { &*Self::fence(event) };
        // SAFETY: the device exists while its queues are tracked.
        device
            .functions
            .vkGetFenceStatus
            .is_none_or(|status| unsafe { status(device.handle, *fence) } != vendor::NOT_READY)
    }

    fn release(event: Handle) {
        // SAFETY: `record` leaked it, and it is released once.
        let Fence { device, fence } = *unsafe { Box::from_raw(Self::fence(event)) };
        device.return_fence(fence);
    }

    fn synchronize(queue: Handle) -> Result<(), String> {
        let event = Self::record(queue)?;
        // SAFETY: as in `is_complete`.
        let Fence { device, fence } = unsafe { &*Self::fence(event) };
        let code = device.functions.vkWaitForFences.map(|wait| {
            // SAFETY: as in `is_complete`.
            unsafe { wait(device.handle, 1, fence, 1, u64::MAX) }
        });
        Self::release(event);
        match code {
            Some(vendor::SUCCESS) => Ok(()),
            code => Err(format!("error {code:?}")),
        }
    }
}
