//! The platform of the simulated device: `libxsim.so`. The smallest platform, and a template for others.

mod api;
mod queue;
mod vendor;

use std::ffi::c_void;
use std::fmt::Write as _;

use xsched_ipc::KernelName;

use crate::hooks::hooks;
use crate::loader::VendorIdentity;
use crate::platforms::Platform;
use crate::queue_hooks;
use crate::tracked_queue::ApiQueue;
use queue::XsimQueue;
use vendor::{Code, Device, Queue};

/// The library of the simulated device.
static VENDOR: VendorIdentity =
    VendorIdentity { exports: &[c"xsim_open", c"xsim_finished"], files: &["libxsim.so"] };

/// The platform, for the registry.
pub(crate) static PLATFORM: Platform = Platform {
    vendor: &VENDOR,
    hooks: &[&LIBRARY],
    bypasses_hook: None,
    observe_ioctl: None,
    at_exit: None,
    #[cfg(test)]
    header: &api::HEADER,
};

hooks! {
    prefix "xsim_";
    if missing return vendor::UNKNOWN;

    /// Tracks every new queue.
    fn xsim_queue_create(device: Device, queue: *mut Queue) -> Code = create;
    /// Untracks a queue before it is destroyed.
    fn xsim_queue_destroy(queue: Queue) -> Code = queue_hooks::release_queue;
    /// A launch passes the gate first.
    fn xsim_launch(queue: Queue, length_ns: u64) -> Code
        = |real, queue: Queue, length_ns| queue_hooks::launch_and_track_kernel(
            real, queue.addr(), || XsimQueue::new(queue), || name(length_ns));
    /// The queue is idle when it returns, unless another thread has launched meanwhile.
    fn xsim_synchronize(queue: Queue) -> Code = queue_hooks::synchronize;
}

/// The device knows its commands by their lengths only.
fn name(length_ns: u64) -> Option<KernelName> {
    let mut name = KernelName::new(b"");
    write!(name, "{} us", length_ns / 1_000).ok()?;
    Some(name)
}

fn create(real: impl FnOnce() -> Code, _device: Device, queue: *mut Queue) -> Code {
    let code = real();
    if code == vendor::SUCCESS {
        // SAFETY: the vendor's function has just written the handle there.
        let queue = unsafe { *queue };
        queue_hooks::queue_created(queue, || XsimQueue::new(queue));
    }
    code
}

/// A queue that the program passes to the C interface.
fn api_queue(queue: *mut c_void) -> Option<ApiQueue> {
    ApiQueue::from_handle(&LIBRARY, "libxsim.so", queue, XsimQueue::new)
}
