//! The Ascend platform: `libascendcl.so`, AscendCL, the interface of Ascend NPUs.
//!
//! * [`queue`]: a stream as a hardware queue. [`capture`]: streams whose work is recorded.
//! * [`vendor`]: AscendCL's functions and types.
#![allow(clippy::doc_markdown, reason = "the name of an interface")]

mod api;
mod capture;
#[cfg(test)]
mod conformance;
mod queue;
mod vendor;

use std::ffi::{c_char, c_int, c_uint, c_void};

use xsched_interpose::{forward_once, run_isolated};

use crate::event_wait_lists;
use crate::hooks::hooks;
use crate::loader::VendorIdentity;
use crate::platforms::Platform;
use crate::queue_hooks;
use crate::runtime::runtime;
use crate::tracked_queue::ApiQueue;
use queue::{AscendCl, Place};
use vendor::{Code, Context, Event, SUCCESS, Stream};

/// Newer versions consist of several libraries, so that no list of exports identifies all of them.
static VENDOR: VendorIdentity = VendorIdentity { exports: &[], files: &["libascendcl.so", "libacl_rt.so"] };

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

type Pointer = *mut c_void;

hooks! {
    prefix "acl";
    if missing return vendor::UNINITIALIZED;

    fn aclrtLaunchKernel(kernel: Pointer, blocks: c_uint, arguments: Pointer, size: usize, stream: Stream) -> Code
        = |real, _, _, _, _, stream| launch(real, stream);
    fn aclrtLaunchKernelV2(kernel: Pointer, blocks: c_uint, arguments: Pointer, size: usize, configuration: Pointer, stream: Stream) -> Code
        = |real, _, _, _, _, _, stream| launch(real, stream);
    fn aclrtLaunchKernelWithConfig(kernel: Pointer, blocks: c_uint, stream: Stream, configuration: Pointer, arguments: Pointer, reserved: Pointer) -> Code
        = |real, _, _, stream, _, _, _| launch(real, stream);
    fn aclrtLaunchKernelWithHostArgs(kernel: Pointer, blocks: c_uint, stream: Stream, configuration: Pointer, arguments: Pointer, size: usize, holders: Pointer, count: usize) -> Code
        = |real, _, _, stream, _, _, _, _, _| launch(real, stream);
    fn aclrtMemcpyAsync(to: Pointer, room: usize, from: Pointer, size: usize, kind: c_int, stream: Stream) -> Code
        = |real, _, _, _, _, _, stream| launch(real, stream);
    fn aclrtMemcpyAsyncWithCondition(to: Pointer, room: usize, from: Pointer, size: usize, kind: c_int, stream: Stream) -> Code
        = |real, _, _, _, _, _, stream| launch(real, stream);
    fn aclrtMemcpyAsyncWithDesc(description: Pointer, kind: c_int, stream: Stream) -> Code
        = |real, _, _, stream| launch(real, stream);
    fn aclrtMemcpyAsyncWithOffset(to: Pointer, room: usize, to_offset: u64, from: Pointer, size: usize, from_offset: usize, kind: c_int, stream: Stream) -> Code
        = |real, _, _, _, _, _, _, _, stream| launch(real, stream);
    fn aclrtMemcpy2dAsync(to: Pointer, to_pitch: usize, from: Pointer, from_pitch: usize, width: usize, height: usize, kind: c_int, stream: Stream) -> Code
        = |real, _, _, _, _, _, _, _, stream| launch(real, stream);
    fn aclrtMemcpyBatchAsync(to: Pointer, rooms: Pointer, from: Pointer, sizes: Pointer, batches: usize, attributes: Pointer, indices: Pointer, count: usize, failed: Pointer, stream: Stream) -> Code
        = |real, _, _, _, _, _, _, _, _, _, stream| launch(real, stream);
    fn aclrtMemsetAsync(to: Pointer, room: usize, value: i32, size: usize, stream: Stream) -> Code
        = |real, _, _, _, _, stream| launch(real, stream);
    fn aclrtReduceAsync(to: Pointer, from: Pointer, count: u64, kind: c_int, data_type: c_int, stream: Stream, reserved: Pointer) -> Code
        = |real, _, _, _, _, _, stream, _| launch(real, stream);
    fn aclopExecute(operator: *const c_char, inputs: c_int, input_types: Pointer, input: Pointer, outputs: c_int, output_types: Pointer, output: Pointer, attributes: Pointer, stream: Stream) -> Code
        = |real, _, _, _, _, _, _, _, _, stream| launch(real, stream);
    fn aclopExecuteV2(operator: *const c_char, inputs: c_int, input_types: Pointer, input: Pointer, outputs: c_int, output_types: Pointer, output: Pointer, attributes: Pointer, stream: Stream) -> Code
        = |real, _, _, _, _, _, _, _, _, stream| launch(real, stream);
    fn aclopExecWithHandle(operator: Pointer, inputs: c_int, input: Pointer, outputs: c_int, output: Pointer, stream: Stream) -> Code
        = |real, _, _, _, _, _, stream| launch(real, stream);
    fn aclopCompileAndExecute(operator: *const c_char, inputs: c_int, input_types: Pointer, input: Pointer, outputs: c_int, output_types: Pointer, output: Pointer, attributes: Pointer, engine: c_int, compile: c_int, path: *const c_char, stream: Stream) -> Code
        = |real, _, _, _, _, _, _, _, _, _, _, _, stream| launch(real, stream);
    fn aclopCompileAndExecuteV2(operator: *const c_char, inputs: c_int, input_types: Pointer, input: Pointer, outputs: c_int, output_types: Pointer, output: Pointer, attributes: Pointer, engine: c_int, compile: c_int, path: *const c_char, stream: Stream) -> Code
        = |real, _, _, _, _, _, _, _, _, _, _, _, stream| launch(real, stream);
    /// It has no stream: the default stream has the order of the context.
    fn aclmdlExecute(model: c_uint, input: Pointer, output: Pointer) -> Code = |real, _, _, _| launch(real, Stream::NONE);
    fn aclmdlExecuteV2(model: c_uint, input: Pointer, output: Pointer, stream: Stream, configuration: Pointer) -> Code
        = |real, _, _, _, stream, _| launch(real, stream);
    fn aclmdlExecuteAsync(model: c_uint, input: Pointer, output: Pointer, stream: Stream) -> Code
        = |real, _, _, _, stream| launch(real, stream);
    fn aclmdlExecuteAsyncV2(model: c_uint, input: Pointer, output: Pointer, stream: Stream, configuration: Pointer) -> Code
        = |real, _, _, _, stream, _| launch(real, stream);
    fn aclmdlRIExecuteAsync(model: Pointer, stream: Stream) -> Code = |real, _, stream| launch(real, stream);

    fn aclrtStreamWaitEvent(stream: Stream, event: Event) -> Code = |real, stream, _| wait(real, stream);
    fn aclrtStreamWaitEventWithTimeout(stream: Stream, event: Event, timeout: i32) -> Code
        = |real, stream, _, _| wait(real, stream);
    fn aclrtWaitAndResetNotify(notify: Pointer, stream: Stream, timeout: c_uint) -> Code = |real, _, stream, _| wait(real, stream);
    fn aclrtValueWait(address: Pointer, value: u64, flags: c_uint, stream: Stream) -> Code = |real, _, _, _, stream| wait(real, stream);
    fn aclrtLaunchCallback(function: Pointer, data: Pointer, blocks: c_int, stream: Stream) -> Code
        = |real, _, _, _, stream| wait(real, stream);
    fn aclrtLaunchHostFunc(stream: Stream, function: Pointer, data: Pointer) -> Code = |real, stream, _, _| wait(real, stream);

    fn aclrtCreateStream(stream: *mut Stream) -> Code = create;
    fn aclrtCreateStreamWithConfig(stream: *mut Stream, priority: c_uint, flags: c_uint) -> Code = |real, stream, _, _| create(real, stream);
    fn aclrtDestroyStream(stream: Stream) -> Code = destroy;
    fn aclrtDestroyStreamForce(stream: Stream) -> Code = destroy;
    fn aclrtDestroyContext(context: Context) -> Code
        = |real, context| destroy_all(real, |place| place.context == context);
    fn aclrtResetDevice(device: i32) -> Code = |real, device| destroy_all(real, |place| place.device == device);
    fn aclrtResetDeviceForce(device: i32) -> Code = |real, device| destroy_all(real, |place| place.device == device);
    fn aclFinalize() -> Code = |real| destroy_all(real, |_| true);
    fn aclFinalizeReference(count: Pointer) -> Code = |real, _| destroy_all(real, |_| true);
    fn aclmdlRICaptureBegin(stream: Stream, mode: c_int) -> Code = |real, _, _| capture::begin(real);
    fn aclmdlRICaptureEnd(stream: Stream, model: Pointer) -> Code = |real, stream, _| capture::end(real, stream);

    fn aclrtSynchronizeStream(stream: Stream) -> Code = |real, stream| synchronize(real, stream, -1);
    fn aclrtSynchronizeStreamWithTimeout(stream: Stream, timeout: i32) -> Code = synchronize;
    fn aclrtSynchronizeDevice() -> Code = synchronize_device;
    fn aclrtSynchronizeDeviceWithTimeout(timeout: i32) -> Code = |real, _| after_wait(real, || true);
    fn aclrtSynchronizeEvent(event: Event) -> Code = |real, _| after_wait(real, || true);
    fn aclrtSynchronizeEventWithTimeout(event: Event, timeout: i32) -> Code = |real, _, _| after_wait(real, || true);
    fn aclrtStreamQuery(stream: Stream, status: *mut c_int) -> Code = |real, _, status| after_query(real, status, vendor::COMPLETE);
    fn aclrtQueryEvent(event: Event, status: *mut c_int) -> Code = |real, _, status| after_query(real, status, vendor::COMPLETE);
    fn aclrtQueryEventStatus(event: Event, status: *mut c_int) -> Code = |real, _, status| after_query(real, status, vendor::RECORDED);
}

/// The key of a stream whose work runs when it is launched, in a program that is scheduled.
fn scheduled_key(stream: Stream) -> Option<Stream> {
    runtime()?;
    if capture::is_captured(stream) { None } else { queue::key(stream) }
}

fn launch(real: impl FnOnce() -> Code, stream: Stream) -> Code {
    let Some(stream) = scheduled_key(stream) else { return real() };
    queue_hooks::launch_and_track(real, stream.addr(), || queue::open(stream))
}

/// Calls `real`, after which the stream waits for another stream or for the program. A wait for an event may come before the event is
/// recorded, so the stream counts as waiting for the program in either case.
fn wait(real: impl FnOnce() -> Code, stream: Stream) -> Code {
    let tracked = |stream: &Stream| runtime().is_some_and(|runtime| runtime.is_tracked(stream.addr()));
    let Some(stream) = scheduled_key(stream).filter(tracked) else { return real() };
    // Releases the events of waits that are over.
    run_isolated(|| {
        event_wait_lists::waits_for_program(stream.addr());
    });
    event_wait_lists::launch_waiting_for_program::<AscendCl, _>(real, stream)
}

fn create(real: impl FnOnce() -> Code, stream: *mut Stream) -> Code {
    let code = real();
    // SAFETY: the vendor's function has written the handle, if it succeeded.
    if let (SUCCESS, Some(stream)) = (code, unsafe { stream.as_ref() }) {
        queue_hooks::queue_created(*stream, || queue::open(*stream));
    }
    code
}

fn destroy(real: impl FnOnce() -> Code, stream: Stream) -> Code {
    let destroy = || {
        run_isolated(|| queue::STREAMS.forget(stream.addr()));
        real()
    };
    // Destroying a stream ends its capture.
    capture::end(|| queue_hooks::release_queue(destroy, stream), stream)
}

/// Calls `real`, which may destroy these streams.
fn destroy_all(real: impl FnOnce() -> Code, is_destroyed: impl Fn(&Place) -> bool) -> Code {
    queue_hooks::destroy_all(real, || queue::STREAMS.take(is_destroyed))
}

/// A wait with a timeout may return before the stream is idle.
fn synchronize(real: impl FnOnce() -> Code, stream: Stream, timeout: i32) -> Code {
    match scheduled_key(stream) {
        Some(stream) if timeout < 0 => queue_hooks::synchronize(real, stream),
        stream => queue_hooks::query(real, stream.map(Stream::addr)),
    }
}

fn synchronize_device(real: impl FnOnce() -> Code) -> Code {
    let Some(runtime) = runtime() else { return real() };
    forward_once(real, |call| {
        if let Some(device) = queue::current_device_id() {
            runtime.synchronize(device, call);
        }
    })
}

/// Calls `real`, which waits for work or queries it. If it has completed and was the last work of a stream, the stream is idle.
fn after_wait(real: impl FnOnce() -> Code, is_complete: impl FnOnce() -> bool) -> Code {
    queue_hooks::after_wait(real, |code| *code == SUCCESS && is_complete())
}

fn after_query(real: impl FnOnce() -> Code, status: *const c_int, complete: c_int) -> Code {
    // SAFETY: the vendor's function has written the status, if it succeeded.
    after_wait(real, || unsafe { status.as_ref() } == Some(&complete))
}

/// A stream that the program passes to the C interface.
fn api_queue(stream: Pointer) -> Option<ApiQueue> {
    ApiQueue::from_handle(&LIBRARY, "libascendcl.so", stream, queue::open)
}
