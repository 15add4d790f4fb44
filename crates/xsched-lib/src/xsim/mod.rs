//! The simulated device's platform: `libxsim.so`.

mod hardware;
mod vendor;

use std::sync::Arc;

use crate::around;
use crate::hooks::hooks;
use crate::station::{Found, Leased};
use hardware::XsimQueue;
use vendor::{Code, Device, Queue};

hooks! {
    names begin with "xsim_";
    unless found answer vendor::UNKNOWN;

    /// Every new queue is put under control.
    fn xsim_queue_create(device: Device, queue: *mut Queue) -> Code = create;
    /// A queue that is destroyed is forgotten first.
    fn xsim_queue_destroy(queue: Queue) -> Code = |real, queue: Queue| around::released(real, queue.addr());
    /// A launch waits at the gate until it may go.
    fn xsim_launch(queue: Queue, length_ns: u64) -> Code
        = |real, queue: Queue, _| around::launch_or_adopt(real, queue.addr(), || XsimQueue::new(queue));
    /// When it returns, the queue may have become idle.
    fn xsim_synchronize(queue: Queue) -> Code = |real, queue: Queue| around::synchronize(real, queue.addr());
}

fn create(real: impl FnOnce() -> Code, _device: Device, queue: *mut Queue) -> Code {
    let code = real();
    if code == vendor::SUCCESS {
        // SAFETY: the vendor has just written the handle there.
        let queue = unsafe { *queue };
        around::created(queue.addr(), || XsimQueue::new(queue));
    }
    code
}

/// For the C interface: what a queue is known by, and how to take control of it.
pub(crate) fn find(queue: Queue) -> Found<impl FnOnce() -> Option<Arc<dyn Leased>>> {
    let known = LIBRARY.meet("libxsim.so") && !queue.is_null();
    known.then(|| (queue.addr(), move || XsimQueue::new(queue).map(|queue| Arc::new(queue) as _)))
}
