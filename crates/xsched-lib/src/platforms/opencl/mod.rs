//! The OpenCL platform: `libOpenCL.so.1`, the loader in front of all vendors' implementations.
//!
//! Programs that are linked to it call the exports of this library. Programs that look functions up, by `dlsym` or by
//! OpenCL's own look-up functions, get the hooks. The loader calls the implementations through their tables, not by name,
//! so no launch passes a gate twice.
//!
//! The hooked functions are those that enqueue commands, that declare what commands wait for, and that wait.
//!
//! * [`queue`]: a command queue as a hardware queue. [`stop_points`]: where it can be stopped.
//! * [`command_buffers`]: commands that are recorded once and enqueued together.
//! * [`vendor`]: OpenCL's functions and queries.

mod api;
mod command_buffers;
#[cfg(test)]
mod conformance;
mod queue;
mod stop_points;
mod vendor;

use std::ffi::{CStr, c_char, c_uint, c_void};

use xsched_ipc::KernelName;

use crate::driver_callbacks::Callback;
use crate::hooks::hooks;
use crate::loader::VendorIdentity;
use crate::platforms::Platform;
use crate::tracked_queue::ApiQueue;
use crate::{driver_callbacks, event_wait_lists, loaded_libraries, queue_hooks};
use queue::{OpenCl, new_queue};
use vendor::{Code, Event, Handle, Queue};

/// The loader in front of all implementations, or one implementation that a program uses directly.
static VENDOR: VendorIdentity = VendorIdentity {
    exports: &[c"clGetPlatformIDs", c"clGetDeviceIDs", c"clCreateContext", c"clEnqueueNDRangeKernel"],
    files: &["libOpenCL.so"],
};

/// The platform, for the registry.
pub(crate) static PLATFORM: Platform = Platform {
    vendor: &VENDOR,
    hooks: &[&LIBRARY],
    bypasses_hook: Some(is_driver_lookup),
    observe_ioctl: None,
    at_exit: None,
    #[cfg(test)]
    header: &api::HEADER,
};

type Bool = c_uint;
type Sizes = *const usize;
type Memory = *mut c_void;
type Events = *const Event;

/// Hooks functions whose first argument is a queue and whose last arguments are a wait list and a place for a new event.
/// Functions that may wait for their own command have an argument for it, whose position the semicolon marks.
macro_rules! opencl {
    (
        commands { $( fn $command:ident($($a:ident: $at:ty),*); )* }
        commands that may block { $( fn $block:ident($($b:ident: $bt:ty),*; $($c:ident: $ct:ty),*); )* }
        $($rest:tt)*
    ) => { hooks! {
        prefix "cl";
        if missing return vendor::INVALID_OPERATION;
        $( fn $command(queue: Queue, $($a: $at,)* count: c_uint, list: Events, event: *mut Event) -> Code
            = |real, queue, $(_: $at,)* count, list, _: *mut Event| enqueue(real, queue, 0, count, list); )*
        $( fn $block(queue: Queue, $($b: $bt,)* blocking: Bool, $($c: $ct,)* count: c_uint, list: Events, event: *mut Event) -> Code
            = |real, queue, $(_: $bt,)* blocking, $(_: $ct,)* count, list, _: *mut Event| enqueue(real, queue, blocking, count, list); )*
        $($rest)*
    } };
}

opencl! {
    commands {
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
    commands that may block {
        fn clEnqueueReadBuffer(from: Handle; offset: usize, size: usize, to: Memory);
        fn clEnqueueReadBufferRect(from: Handle; origin: Sizes, host_origin: Sizes, region: Sizes, row: usize, slice: usize, host_row: usize, host_slice: usize, to: Memory);
        fn clEnqueueReadImage(from: Handle; origin: Sizes, region: Sizes, row: usize, slice: usize, to: Memory);
        fn clEnqueueWriteBuffer(to: Handle; offset: usize, size: usize, from: Memory);
        fn clEnqueueWriteBufferRect(to: Handle; origin: Sizes, host_origin: Sizes, region: Sizes, row: usize, slice: usize, host_row: usize, host_slice: usize, from: Memory);
        fn clEnqueueWriteImage(to: Handle; origin: Sizes, region: Sizes, row: usize, slice: usize, from: Memory);
        fn clEnqueueSVMMemcpy(; to: Memory, from: Memory, size: usize);
        fn clEnqueueSVMMap(; flags: u64, memory: Memory, size: usize);
    }
    fn clEnqueueNDRangeKernel(queue: Queue, kernel: Handle, dimensions: c_uint, offset: Sizes, global: Sizes, local: Sizes, count: c_uint, list: Events, event: *mut Event) -> Code
        = |real, queue, kernel, _, _, _, _, count, list, _| enqueue_kernel(real, queue, kernel, count, list);
    fn clEnqueueTask(queue: Queue, kernel: Handle, count: c_uint, list: Events, event: *mut Event) -> Code
        = |real, queue, kernel, count, list, _| enqueue_kernel(real, queue, kernel, count, list);
    fn clEnqueueMarkerWithWaitList(queue: Queue, count: c_uint, list: Events, event: *mut Event) -> Code = enqueue_wait;
    fn clEnqueueBarrierWithWaitList(queue: Queue, count: c_uint, list: Events, event: *mut Event) -> Code = enqueue_wait;
    fn clEnqueueWaitForEvents(queue: Queue, count: c_uint, list: Events) -> Code
        = |real, queue, count, list| enqueue_wait(real, queue, count, list, std::ptr::null_mut());
    fn clEnqueueMapBuffer(queue: Queue, mem: Handle, blocking: Bool, flags: u64, offset: usize, size: usize, count: c_uint, list: Events, event: *mut Event, error: *mut Code) -> Memory
        = |real, queue, _, blocking, _, _, _, count, list, _, _| enqueue(real, queue, blocking, count, list);
    fn clEnqueueMapImage(queue: Queue, image: Handle, blocking: Bool, flags: u64, origin: Sizes, region: Sizes, row: *mut usize, slice: *mut usize, count: c_uint, list: Events, event: *mut Event, error: *mut Code) -> Memory
        = |real, queue, _, blocking, _, _, _, _, _, count, list, _, _| enqueue(real, queue, blocking, count, list);
    fn clCreateCommandBufferKHR(count: c_uint, queues: *const Queue, properties: *const u64, error: *mut Code) -> Handle = command_buffers::create;
    fn clEnqueueCommandBufferKHR(count: c_uint, queues: *const Queue, buffer: Handle, events: c_uint, list: Events, event: *mut Event) -> Code = command_buffers::enqueue;
    fn clFinish(queue: Queue) -> Code = queue_hooks::synchronize;
    fn clWaitForEvents(count: c_uint, list: Events) -> Code
        // SAFETY: the program passes the same list to the vendor's function.
        = |real, count, list| unsafe { event_wait_lists::wait_for_events::<OpenCl>(real, count, list) };
    fn clCreateCommandQueue(context: Handle, device: Handle, properties: u64, error: *mut Code) -> Queue
        = |real, _, _, _, _| queue_hooks::create_queue(real, new_queue);
    fn clCreateCommandQueueWithProperties(context: Handle, device: Handle, properties: *const u64, error: *mut Code) -> Queue
        = |real, _, _, _, _| queue_hooks::create_queue(real, new_queue);
    fn clCreateCommandQueueWithPropertiesKHR(context: Handle, device: Handle, properties: *const u64, error: *mut Code) -> Queue
        = |real, _, _, _, _| queue_hooks::create_queue(real, new_queue);
    fn clRetainCommandQueue(queue: Queue) -> Code = queue_hooks::retain_queue;
    fn clReleaseCommandQueue(queue: Queue) -> Code = queue_hooks::release_queue;
    fn clSetEventCallback(event: Event, status: i32, function: Option<Callback>, data: Memory) -> Code
        = |real, event, status, function, data| driver_callbacks::wrap(real, function, data, |wrapper, data|
            // SAFETY: the caller's own arguments, except that `wrapper` calls the program's function.
            vendor::SET_CALLBACK.get().map(|set| unsafe { set(event, status, Some(wrapper), data) }));
    fn clGetExtensionFunctionAddress(name: *const c_char) -> Memory = |real, name| LIBRARY.intercept_lookup(real, name);
    fn clGetExtensionFunctionAddressForPlatform(platform: Handle, name: *const c_char) -> Memory
        = |real, _, name| LIBRARY.intercept_lookup(real, name);
}

fn enqueue<R>(real: impl FnOnce() -> R, queue: Queue, blocking: Bool, count: c_uint, list: Events) -> R {
    // SAFETY: the program passes the same list to the vendor's function.
    unsafe { event_wait_lists::record_dependencies::<OpenCl>(queue, count, list) };
    let is_in_order = || {
        vendor::QUEUE_PROPERTIES.of(queue).is_some_and(|properties| properties & vendor::OUT_OF_ORDER == 0)
    };
    queue_hooks::launch(real, queue, || blocking != 0 && is_in_order())
}

fn enqueue_kernel(
    real: impl FnOnce() -> Code,
    queue: Queue,
    kernel: Handle,
    count: c_uint,
    list: Events,
) -> Code {
    // SAFETY: as above.
    unsafe { event_wait_lists::record_dependencies::<OpenCl>(queue, count, list) };
    queue_hooks::launch_kernel(real, queue, || {
        vendor::KERNEL_NAME.of(kernel).map(|name| KernelName::new(&name))
    })
}

/// Markers and barriers are not work and are never held, but later commands wait for what they wait for.
fn enqueue_wait(
    real: impl FnOnce() -> Code,
    queue: Queue,
    count: c_uint,
    list: Events,
    _new: *mut Event,
) -> Code {
    // SAFETY: as above.
    unsafe { event_wait_lists::record_dependencies::<OpenCl>(queue, count, list) };
    real()
}

/// Whether the caller of a look-up is a library that has a function of this name itself. Then it is the OpenCL loader,
/// which looks the function up in each of its drivers and must get the driver's own.
fn is_driver_lookup(name: &CStr, caller: *const c_void) -> bool {
    name == c"clGetExtensionFunctionAddress" && loaded_libraries::defines(caller, name)
}

/// A queue that the program passes to the C interface.
fn api_queue(queue: *mut c_void) -> Option<ApiQueue> {
    ApiQueue::from_handle(&LIBRARY, "libOpenCL.so", queue, new_queue)
}
