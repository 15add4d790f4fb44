//! The OpenCL platform: `libOpenCL.so.1`, and with it every vendor's implementation behind it.
//!
//! Whoever is linked to it calls our exports; whoever looks its functions up by `dlsym` or by OpenCL's own look-up is
//! given our hooks. It calls the vendors through their tables, not through names, so nothing passes a gate twice.
//!
//! Hooked is what puts work into a queue, what says whom it waits for, and what waits. The rest is the vendor's alone.

mod api;
#[cfg(test)]
mod conformance;
mod hardware;
mod recorded;
mod stall;
mod vendor;

use std::ffi::{CStr, c_char, c_uint, c_void};

use crate::driver_callbacks::Callback;
use crate::hooks::hooks;
use crate::platforms::Platform;
use crate::tracked_queue::ApiQueue;
use crate::{driver_callbacks, event_wait_lists, loaded_libraries, queue_hooks};
use hardware::{OpenCl, take};
use vendor::{Code, Event, Handle, Queue};

/// The platform, for the registry.
pub(crate) static PLATFORM: Platform = Platform {
    hooks: &[&LIBRARY],
    bypasses_hook: Some(is_asked_of_a_driver),
    observe_ioctl: None,
    at_exit: None,
    #[cfg(test)]
    header: &api::HEADER,
};

type Bool = c_uint;
type Sizes = *const usize;
type Memory = *mut c_void;
type Events = *const Event;

/// Hooks of functions that begin with a queue and end with a list of events and a place for a new one. Those that may
/// wait for their own command say so by an argument, which stands at the semicolon.
macro_rules! opencl {
    (
        work { $( fn $work:ident($($a:ident: $at:ty),*); )* }
        work that may block { $( fn $block:ident($($b:ident: $bt:ty),*; $($c:ident: $ct:ty),*); )* }
        $($rest:tt)*
    ) => { hooks! {
        names begin with "cl";
        unless found answer vendor::INVALID_OPERATION;
        $( fn $work(queue: Queue, $($a: $at,)* count: c_uint, list: Events, event: *mut Event) -> Code
            = |real, queue, $(_: $at,)* count, list, _: *mut Event| enqueue(real, queue, 0, count, list); )*
        $( fn $block(queue: Queue, $($b: $bt,)* blocking: Bool, $($c: $ct,)* count: c_uint, list: Events, event: *mut Event) -> Code
            = |real, queue, $(_: $bt,)* blocking, $(_: $ct,)* count, list, _: *mut Event| enqueue(real, queue, blocking, count, list); )*
        $($rest)*
    } };
}

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
    fn clEnqueueMarkerWithWaitList(queue: Queue, count: c_uint, list: Events, event: *mut Event) -> Code = order;
    fn clEnqueueBarrierWithWaitList(queue: Queue, count: c_uint, list: Events, event: *mut Event) -> Code = order;
    fn clEnqueueWaitForEvents(queue: Queue, count: c_uint, list: Events) -> Code
        = |real, queue, count, list| order(real, queue, count, list, std::ptr::null_mut());
    fn clEnqueueMapBuffer(queue: Queue, mem: Handle, blocking: Bool, flags: u64, offset: usize, size: usize, count: c_uint, list: Events, event: *mut Event, error: *mut Code) -> Memory
        = |real, queue, _, blocking, _, _, _, count, list, _, _| enqueue(real, queue, blocking, count, list);
    fn clEnqueueMapImage(queue: Queue, image: Handle, blocking: Bool, flags: u64, origin: Sizes, region: Sizes, row: *mut usize, slice: *mut usize, count: c_uint, list: Events, event: *mut Event, error: *mut Code) -> Memory
        = |real, queue, _, blocking, _, _, _, _, _, count, list, _, _| enqueue(real, queue, blocking, count, list);
    fn clCreateCommandBufferKHR(count: c_uint, queues: *const Queue, properties: *const u64, error: *mut Code) -> Handle = recorded::create;
    fn clEnqueueCommandBufferKHR(count: c_uint, queues: *const Queue, buffer: Handle, events: c_uint, list: Events, event: *mut Event) -> Code = recorded::enqueue;
    fn clFinish(queue: Queue) -> Code = queue_hooks::synchronize;
    fn clWaitForEvents(count: c_uint, list: Events) -> Code
        // SAFETY: the vendor has just read the same list.
        = |real, count, list| unsafe { event_wait_lists::wait_for_events::<OpenCl>(real, count, list) };
    fn clCreateCommandQueue(context: Handle, device: Handle, properties: u64, error: *mut Code) -> Queue
        = |real, _, _, _, _| queue_hooks::create_queue(real, take);
    fn clCreateCommandQueueWithProperties(context: Handle, device: Handle, properties: *const u64, error: *mut Code) -> Queue
        = |real, _, _, _, _| queue_hooks::create_queue(real, take);
    fn clCreateCommandQueueWithPropertiesKHR(context: Handle, device: Handle, properties: *const u64, error: *mut Code) -> Queue
        = |real, _, _, _, _| queue_hooks::create_queue(real, take);
    fn clRetainCommandQueue(queue: Queue) -> Code = queue_hooks::retain_queue;
    fn clReleaseCommandQueue(queue: Queue) -> Code = queue_hooks::release_queue;
    fn clSetEventCallback(event: Event, status: i32, function: Option<Callback>, data: Memory) -> Code
        = |real, event, status, function, data| driver_callbacks::wrap(real, function, data, |ours, wanted|
            // SAFETY: the caller's own arguments, but that its function is called by ours.
            vendor::SET_CALLBACK.get().map(|set| unsafe { set(event, status, Some(ours), wanted) }));
    fn clGetExtensionFunctionAddress(name: *const c_char) -> Memory = |real, name| LIBRARY.intercept_lookup(real, name);
    fn clGetExtensionFunctionAddressForPlatform(platform: Handle, name: *const c_char) -> Memory
        = |real, _, name| LIBRARY.intercept_lookup(real, name);
}

fn enqueue<R>(real: impl FnOnce() -> R, queue: Queue, blocking: Bool, count: c_uint, list: Events) -> R {
    // SAFETY: the vendor is about to read the same list.
    unsafe { event_wait_lists::record_dependencies::<OpenCl>(queue, count, list) };
    let in_order = || vendor::QUEUE_PROPERTIES.of(queue).is_some_and(|how| how & vendor::OUT_OF_ORDER == 0);
    queue_hooks::launch(real, queue, || blocking != 0 && in_order())
}

/// Markers and barriers are no work and are never held, but what comes after them waits for what they wait for.
fn order(real: impl FnOnce() -> Code, queue: Queue, count: c_uint, list: Events, _new: *mut Event) -> Code {
    // SAFETY: as above.
    unsafe { event_wait_lists::record_dependencies::<OpenCl>(queue, count, list) };
    real()
}

/// Whether a name is looked up on behalf of a library that has such a function itself: it looks into its drivers, and
/// each of them has its own.
fn is_asked_of_a_driver(name: &CStr, caller: *const c_void) -> bool {
    name == c"clGetExtensionFunctionAddress" && loaded_libraries::defines(caller, name)
}

/// For the C interface: what a queue is known by, and how to take control of it.
fn find(queue: *mut c_void) -> Option<ApiQueue> {
    ApiQueue::from_handle(&LIBRARY, "libOpenCL.so", queue, take)
}
