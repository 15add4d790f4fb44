//! The OpenCL platform: `libOpenCL.so.1`, and with it every vendor's implementation behind it.
//!
//! Whoever is linked to it calls our exports; whoever looks its functions up by `dlsym` or by OpenCL's own look-up is
//! given our hooks. It calls the vendors through their tables, not through names, so nothing passes a gate twice.
//!
//! Hooked is what puts work into a queue, what says whom it waits for, and what waits. The rest is the vendor's alone.

#[cfg(test)]
mod conformance;
mod hardware;
mod stall;
mod vendor;
mod waits;

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::sync::Arc;

use xsched_interpose::aside;

use crate::callback::{self, Callback};
use crate::hooks::hooks;
use crate::station::{Found, Leased};
use crate::world::world;
use crate::{around, loaded};
use vendor::{Bool, Code, Event, Handle, Missing, Queue};

/// Hooks of functions that begin with a queue and end with a list of events and a place for a new one. Those that may
/// wait for their own command say so by an argument, which stands at the semicolon.
macro_rules! opencl {
    (
        work { $( fn $work:ident($($a:ident: $at:ty),*); )* }
        work that may block { $( fn $block:ident($($b:ident: $bt:ty),*; $($c:ident: $ct:ty),*); )* }
        order { $( fn $order:ident(); )* }
        $($rest:tt)*
    ) => { hooks! {
        names begin with "cl";
        unless found answer Missing::missing();
        $( fn $work(queue: Queue, $($a: $at,)* count: c_uint, list: *const Event, event: *mut Event) -> Code
            = |real, queue, $(_: $at,)* count, list, _: *mut Event| enqueue(real, queue, 0, count, list); )*
        $( fn $block(queue: Queue, $($b: $bt,)* blocking: Bool, $($c: $ct,)* count: c_uint, list: *const Event, event: *mut Event) -> Code
            = |real, queue, $(_: $bt,)* blocking, $(_: $ct,)* count, list, _: *mut Event| enqueue(real, queue, blocking, count, list); )*
        $( fn $order(queue: Queue, count: c_uint, list: *const Event, event: *mut Event) -> Code
            = |real, queue, count, list, _: *mut Event| order(real, queue, count, list); )*
        $($rest)*
    } };
}

type Sizes = *const usize;
type Memory = *mut c_void;

opencl! {
    work {
        fn clEnqueueNDRangeKernel(kernel: Handle, dimensions: c_uint, offset: Sizes, global: Sizes, local: Sizes);
        fn clEnqueueTask(kernel: Handle);
        fn clEnqueueNativeKernel(function: Handle, arguments: Memory, size: usize, count_of_mem: c_uint, mem: *const Handle, places: *const Memory);
        fn clEnqueueCopyBuffer(from: Handle, to: Handle, from_offset: usize, to_offset: usize, size: usize);
        fn clEnqueueCopyBufferRect(from: Handle, to: Handle, from_origin: Sizes, to_origin: Sizes, region: Sizes, from_row: usize, from_slice: usize, to_row: usize, to_slice: usize);
        fn clEnqueueCopyImage(from: Handle, to: Handle, from_origin: Sizes, to_origin: Sizes, region: Sizes);
        fn clEnqueueCopyImageToBuffer(from: Handle, to: Handle, from_origin: Sizes, region: Sizes, to_offset: usize);
        fn clEnqueueCopyBufferToImage(from: Handle, to: Handle, from_offset: usize, to_origin: Sizes, region: Sizes);
        fn clEnqueueFillBuffer(to: Handle, pattern: Memory, length: usize, offset: usize, size: usize);
        fn clEnqueueFillImage(to: Handle, colour: Memory, origin: Sizes, region: Sizes);
        fn clEnqueueUnmapMemObject(mem: Handle, mapped: Memory);
        fn clEnqueueMigrateMemObjects(count_of_mem: c_uint, mem: *const Handle, flags: u64);
        fn clEnqueueSVMFree(count_of_pointers: c_uint, pointers: *const Memory, free: Handle, data: Memory);
        fn clEnqueueSVMMemFill(to: Memory, pattern: Memory, length: usize, size: usize);
        fn clEnqueueSVMUnmap(mapped: Memory);
        fn clEnqueueSVMMigrateMem(count_of_pointers: c_uint, pointers: *const Memory, sizes: Sizes, flags: u64);
    }
    work that may block {
        fn clEnqueueReadBuffer(from: Handle; offset: usize, size: usize, to: Memory);
        fn clEnqueueReadBufferRect(from: Handle; origin: Sizes, host_origin: Sizes, region: Sizes, row: usize, slice: usize, host_row: usize, host_slice: usize, to: Memory);
        fn clEnqueueReadImage(from: Handle; origin: Sizes, region: Sizes, row: usize, slice: usize, to: Memory);
        fn clEnqueueWriteBuffer(to: Handle; offset: usize, size: usize, from: Memory);
        fn clEnqueueWriteBufferRect(to: Handle; origin: Sizes, host_origin: Sizes, region: Sizes, row: usize, slice: usize, host_row: usize, host_slice: usize, from: Memory);
        fn clEnqueueWriteImage(to: Handle; origin: Sizes, region: Sizes, row: usize, slice: usize, from: Memory);
        fn clEnqueueSVMMemcpy(; to: Memory, from: Memory, size: usize);
        fn clEnqueueSVMMap(; flags: u64, memory: Memory, size: usize);
    }
    order {
        fn clEnqueueMarkerWithWaitList();
        fn clEnqueueBarrierWithWaitList();
    }
    fn clEnqueueMapBuffer(queue: Queue, mem: Handle, blocking: Bool, flags: u64, offset: usize, size: usize, count: c_uint, list: *const Event, event: *mut Event, error: *mut Code) -> Memory
        = |real, queue, _, blocking, _, _, _, count, list, _, _| enqueue(real, queue, blocking, count, list);
    fn clEnqueueMapImage(queue: Queue, image: Handle, blocking: Bool, flags: u64, origin: Sizes, region: Sizes, row: *mut usize, slice: *mut usize, count: c_uint, list: *const Event, event: *mut Event, error: *mut Code) -> Memory
        = |real, queue, _, blocking, _, _, _, _, _, count, list, _, _| enqueue(real, queue, blocking, count, list);
    fn clEnqueueWaitForEvents(queue: Queue, count: c_uint, list: *const Event) -> Code = order;
    fn clFinish(queue: Queue) -> Code = |real, queue: Queue| around::synchronize(real, queue.addr());
    fn clWaitForEvents(count: c_uint, list: *const Event) -> Code = wait_for_events;
    fn clCreateCommandQueue(context: Handle, device: Handle, properties: u64, error: *mut Code) -> Queue
        = |real, _, _, _, _| create(real);
    fn clCreateCommandQueueWithProperties(context: Handle, device: Handle, properties: *const u64, error: *mut Code) -> Queue
        = |real, _, _, _, _| create(real);
    fn clCreateCommandQueueWithPropertiesKHR(context: Handle, device: Handle, properties: *const u64, error: *mut Code) -> Queue
        = |real, _, _, _, _| create(real);
    fn clRetainCommandQueue(queue: Queue) -> Code = |real, queue: Queue| around::retained(real, queue.addr());
    fn clReleaseCommandQueue(queue: Queue) -> Code = |real, queue: Queue| around::released(real, queue.addr());
    fn clSetEventCallback(event: Event, status: i32, function: Option<Callback>, data: Memory) -> Code = set_callback;
    fn clGetExtensionFunctionAddress(name: *const c_char) -> Memory = |real, name| LIBRARY.look_up(real, name);
    fn clGetExtensionFunctionAddressForPlatform(platform: Handle, name: *const c_char) -> Memory
        = |real, _, name| LIBRARY.look_up(real, name);
}

fn create(real: impl FnOnce() -> Queue) -> Queue {
    let queue = real();
    if !queue.is_null() {
        around::created(queue.addr(), || hardware::take(queue));
    }
    queue
}

fn enqueue<R>(
    real: impl FnOnce() -> R,
    queue: Queue,
    blocking: Bool,
    count: c_uint,
    list: *const Event,
) -> R {
    note_waits(queue, count, list);
    if blocking != 0 && hardware::is_in_order(queue) {
        around::launch_and_finish(real, queue.addr())
    } else {
        around::launch(real, queue.addr())
    }
}

/// Markers and barriers are no work and are never held, but what comes after them waits for what they wait for.
fn order(real: impl FnOnce() -> Code, queue: Queue, count: c_uint, list: *const Event) -> Code {
    note_waits(queue, count, list);
    real()
}

fn note_waits(queue: Queue, count: c_uint, list: *const Event) {
    // SAFETY: the vendor is about to read the same list.
    let Some(events) = (unsafe { events(count, list) }) else { return };
    aside(|| {
        if let Some(world) = world().filter(|world| world.knows(queue.addr())) {
            waits::note(world, queue, events);
        }
    });
}

fn wait_for_events(real: impl FnOnce() -> Code, count: c_uint, list: *const Event) -> Code {
    let code = real();
    if code != vendor::SUCCESS {
        return code;
    }
    aside(|| {
        // SAFETY: as above; the program still has the events, for it has just waited for them.
        let (Some(world), Some(events)) = (world(), unsafe { events(count, list) }) else { return };
        let mut looked_at = std::ptr::null_mut();
        for event in events {
            let queue = waits::queue_of(*event);
            if queue != looked_at {
                world.look_for_idle(queue.addr());
                looked_at = queue;
            }
        }
    });
    code
}

/// The events of a list; none if it is empty.
unsafe fn events<'a>(count: c_uint, list: *const Event) -> Option<&'a [Event]> {
    let some = count > 0 && !list.is_null();
    // SAFETY: the caller vouches for the list being as long as it says.
    some.then(|| unsafe { std::slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0)) })
}

/// What a vendor's thread calls when an event is done.
fn set_callback(
    real: impl FnOnce() -> Code,
    event: Event,
    status: i32,
    function: Option<Callback>,
    data: Memory,
) -> Code {
    let (Some(function), Some(set)) = (function, vendor::SET_CALLBACK.get()) else { return real() };
    let mut code = vendor::SUCCESS;
    callback::wrap(function, data, |ours, wanted| {
        // SAFETY: the caller's own arguments, but that its function is called by ours.
        code = unsafe { set(event, status, Some(ours), wanted) };
        code == vendor::SUCCESS
    });
    code
}

/// Whether a name is looked up on behalf of a library that has such a function itself: it looks into its drivers, and
/// each of them has its own.
pub(crate) fn is_asked_of_a_driver(name: &CStr, caller: *const c_void) -> bool {
    name == c"clGetExtensionFunctionAddress" && loaded::has_itself(caller, name)
}

/// For the C interface: what a queue is known by, and how to take control of it.
pub(crate) fn find(queue: Queue) -> Found<impl FnOnce() -> Option<Arc<dyn Leased>>> {
    let known = LIBRARY.meet("libOpenCL.so") && !queue.is_null();
    known.then(|| (queue.addr(), move || hardware::take(queue).map(|queue| Arc::new(queue) as _)))
}
