//! The simulated device's platform: `libxsim.so`.

mod hardware;
mod vendor;

use std::sync::Arc;

use xsched_interpose::{aside, forward_once};

use crate::hooks::hooks;
use crate::station::{Found, Leased};
use crate::world::{World, world};
use hardware::XsimQueue;
use vendor::{Code, Device, Queue};

hooks! {
    names begin with "xsim_";
    unless found answer vendor::UNKNOWN;

    /// Every new queue is put under control.
    fn xsim_queue_create(device: Device, queue: *mut Queue) -> Code = create;
    /// A queue that is destroyed is forgotten first.
    fn xsim_queue_destroy(queue: Queue) -> Code = destroy;
    /// A launch waits at the gate until it may go.
    fn xsim_launch(queue: Queue, length_ns: u64) -> Code = launch;
    /// When it returns, the queue may have become idle.
    fn xsim_synchronize(queue: Queue) -> Code = synchronize;
}

fn create(real: impl FnOnce() -> Code, _device: Device, queue: *mut Queue) -> Code {
    let code = real();
    if code == vendor::SUCCESS {
        // SAFETY: the vendor has just written the handle there.
        let queue = unsafe { *queue };
        aside(|| {
            if let Some(world) = world() {
                adopt(world, queue);
            }
        });
    }
    code
}

fn destroy(real: impl FnOnce() -> Code, queue: Queue) -> Code {
    forward_once(real, |_| {
        if let Some(world) = world() {
            world.retire(queue.addr());
        }
    })
}

fn launch(real: impl FnOnce() -> Code, queue: Queue, _length_ns: u64) -> Code {
    let Some(world) = world() else { return real() };
    forward_once(real, |call| {
        let known = world.with(queue.addr(), |station| station.map(|station| station.launch(call)).is_some());
        // Made before we were there.
        if !known && adopt(world, queue) {
            world.with(queue.addr(), |station| station.map(|station| station.launch(call)));
        }
    })
}

fn synchronize(real: impl FnOnce() -> Code, queue: Queue) -> Code {
    let Some(world) = world() else { return real() };
    forward_once(real, |call| {
        world.with(queue.addr(), |station| station.map(|station| station.synchronize(call)));
    })
}

#[cold]
fn adopt(world: &World, queue: Queue) -> bool {
    world.adopt(queue.addr(), || XsimQueue::new(queue))
}

/// For the C interface: what a queue is known by, and how to take control of it.
pub(crate) fn find(queue: Queue) -> Found<impl FnOnce() -> Option<Arc<dyn Leased>>> {
    let known = LIBRARY.meet("libxsim.so") && !queue.is_null();
    known.then(|| (queue.addr(), move || XsimQueue::new(queue).map(|queue| Arc::new(queue) as _)))
}
