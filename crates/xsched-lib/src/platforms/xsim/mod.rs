//! The simulated device's platform: `libxsim.so`.

mod hardware;
mod vendor;

use std::ffi::c_void;

use crate::hooks::hooks;
use crate::queue_hooks;
use crate::tracked_queue::{self, Found, Take};
use hardware::XsimQueue;
use vendor::{Code, Device, Queue};

hooks! {
    names begin with "xsim_";
    unless found answer vendor::UNKNOWN;

    /// Every new queue is put under control.
    fn xsim_queue_create(device: Device, queue: *mut Queue) -> Code = create;
    /// A queue that is destroyed is forgotten first.
    fn xsim_queue_destroy(queue: Queue) -> Code = queue_hooks::released;
    /// A launch waits at the gate until it may go.
    fn xsim_launch(queue: Queue, length_ns: u64) -> Code
        = |real, queue: Queue, _| queue_hooks::launch_or_adopt(real, queue.addr(), || XsimQueue::new(queue));
    /// When it returns, the queue may have become idle.
    fn xsim_synchronize(queue: Queue) -> Code = queue_hooks::synchronize;
}

fn create(real: impl FnOnce() -> Code, _device: Device, queue: *mut Queue) -> Code {
    let code = real();
    if code == vendor::SUCCESS {
        // SAFETY: the vendor has just written the handle there.
        let queue = unsafe { *queue };
        queue_hooks::created(queue, || XsimQueue::new(queue));
    }
    code
}

/// For the C interface: what a queue is known by, and how to take control of it.
pub(crate) fn find(queue: *mut c_void) -> Found<Take> {
    tracked_queue::found(&LIBRARY, "libxsim.so", queue, XsimQueue::new)
}
