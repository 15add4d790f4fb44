//! The simulated device's platform: `libxsim.so`.

mod api;
mod hardware;
mod vendor;

use std::ffi::c_void;

use crate::hooks::hooks;
use crate::platforms::Platform;
use crate::queue_hooks;
use crate::tracked_queue::ApiQueue;
use hardware::XsimQueue;
use vendor::{Code, Device, Queue};

/// The platform, for the registry.
pub(crate) static PLATFORM: Platform = Platform {
    hooks: &[&LIBRARY],
    bypasses_hook: None,
    observe_ioctl: None,
    at_exit: None,
    #[cfg(test)]
    header: &api::HEADER,
};

hooks! {
    names begin with "xsim_";
    unless found answer vendor::UNKNOWN;

    /// Every new queue is put under control.
    fn xsim_queue_create(device: Device, queue: *mut Queue) -> Code = create;
    /// A queue that is destroyed is forgotten first.
    fn xsim_queue_destroy(queue: Queue) -> Code = queue_hooks::release_queue;
    /// A launch waits at the gate until it may go.
    fn xsim_launch(queue: Queue, length_ns: u64) -> Code
        = |real, queue: Queue, _| queue_hooks::launch_and_track(real, queue.addr(), || XsimQueue::new(queue));
    /// When it returns, the queue may have become idle.
    fn xsim_synchronize(queue: Queue) -> Code = queue_hooks::synchronize;
}

fn create(real: impl FnOnce() -> Code, _device: Device, queue: *mut Queue) -> Code {
    let code = real();
    if code == vendor::SUCCESS {
        // SAFETY: the vendor has just written the handle there.
        let queue = unsafe { *queue };
        queue_hooks::queue_created(queue, || XsimQueue::new(queue));
    }
    code
}

/// For the C interface: what a queue is known by, and how to take control of it.
fn find(queue: *mut c_void) -> Option<ApiQueue> {
    ApiQueue::from_handle(&LIBRARY, "libxsim.so", queue, XsimQueue::new)
}
