//! The platform of the toy vendor: `libtoy.so`.

mod api;
#[cfg(test)]
mod conformance;
mod queue;
mod vendor;

use std::ffi::c_void;

use crate::hooks::hooks;
use crate::loader::VendorIdentity;
use crate::platforms::Platform;
use crate::queue_hooks;
use crate::tracked_queue::ApiQueue;
use vendor::{Code, Queue};

/// The vendor's own library.
static VENDOR: VendorIdentity =
    VendorIdentity { exports: &[c"toy_queue_create", c"toy_event_query"], files: &["libtoy.so"] };

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
    prefix "toy_";
    if missing return vendor::UNKNOWN;

    /// Tracks every new queue.
    fn toy_queue_create(queue: *mut Queue) -> Code = create;
    /// Untracks a queue before it is destroyed.
    fn toy_queue_destroy(queue: Queue) -> Code = queue_hooks::release_queue;
    /// A launch waits until the scheduler allows it.
    fn toy_launch(queue: Queue, kernel: *mut c_void, argument: *mut c_void) -> Code
        = |real, queue: Queue, _, _| queue_hooks::launch_and_track(real, queue.addr(), || queue::open(queue));
    /// The queue may be idle when it returns.
    fn toy_synchronize(queue: Queue) -> Code = queue_hooks::synchronize;
}

fn create(real: impl FnOnce() -> Code, queue: *mut Queue) -> Code {
    let code = real();
    if code == vendor::SUCCESS {
        // SAFETY: the vendor's function has just written the handle there.
        let queue = unsafe { *queue };
        queue_hooks::queue_created(queue, || queue::open(queue));
    }
    code
}

/// A queue that the program passes to the C interface.
fn api_queue(queue: *mut c_void) -> Option<ApiQueue> {
    ApiQueue::from_handle(&LIBRARY, "libtoy.so", queue, queue::open)
}
