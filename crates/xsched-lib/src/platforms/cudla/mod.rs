//! The cuDLA platform: `libcudla.so.1`, the interface of the DLAs (deep learning accelerators) of NVIDIA's Jetson and Drive.
//!
//! In its hybrid mode a task is submitted to a CUDA stream and waits for the work before it, on whichever engine that runs. The stream is a queue
//! of the GPU already ([`super::cuda`]). Here its tasks for a DLA are a queue of that DLA, so that each device has the tasks that use it.
//!
//! * [`queue`]: the DLA tasks of one stream as a hardware queue. [`vendor`]: the functions and types of cuDLA and CUDA.

mod api;
#[cfg(test)]
mod conformance;
mod queue;
mod vendor;

use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicU8, Ordering};

use xsched_interpose::{Handle, HookDomain, OutermostHook, run_isolated};

use crate::deferral::waits;
use crate::hooks::hooks;
use crate::loader::VendorIdentity;
use crate::object_table::ObjectTable;
use crate::platforms::cuda::vendor::{LEGACY, PER_THREAD, Stream};
use crate::platforms::cuda::{self, capture, stream_key};
use crate::platforms::{Platform, hook_domain};
use crate::queue_hooks;
use crate::runtime::runtime;
use crate::tracked_queue::ApiQueue;
use vendor::{Code, DRIVER_FAILED, HYBRID, SUCCESS};

/// No other library has these names.
static VENDOR: VendorIdentity = VendorIdentity { exports: &[], files: &["libcudla.so"] };

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
    prefix "cudla";
    if missing return DRIVER_FAILED;

    fn cudlaCreateDevice(dla: u64, device: *mut Handle, flags: c_uint) -> Code = create_device;
    fn cudlaDestroyDevice(device: Handle) -> Code = destroy_device;
    fn cudlaSubmitTask(device: Handle, tasks: *const c_void, count: c_uint, stream: Stream, flags: c_uint) -> Code
        = |real, device, _, _, stream, _| submit(real, device, stream);
}

/// The number of the DLA of each device handle of the hybrid mode.
static DEVICES: ObjectTable<u8> = ObjectTable::new();
/// The DLA of the last of them.
static LAST: AtomicU8 = AtomicU8::new(0);

fn create_device(real: impl FnOnce() -> Code, dla: u64, device: *mut Handle, flags: c_uint) -> Code {
    let code = real();
    // SAFETY: the vendor's function has written the handle, if it succeeded.
    let device = unsafe { device.as_ref() };
    if let (SUCCESS, HYBRID, Some(device), Ok(dla)) = (code, flags, device, u8::try_from(dla)) {
        run_isolated(|| DEVICES.record(device.addr(), dla));
        LAST.store(dla, Ordering::Relaxed);
    }
    code
}

fn destroy_device(real: impl FnOnce() -> Code, device: Handle) -> Code {
    run_isolated(|| DEVICES.forget(device.addr()));
    real()
}

/// Calls `real`, which submits tasks to a stream, once the scheduler allows it. A task without a stream is not held: only objects of the
/// program show when it has completed.
fn submit(real: impl FnOnce() -> Code, device: Handle, stream: Stream) -> Code {
    const CUDA: HookDomain = hook_domain("cuda");
    let Some(runtime) = runtime() else { return real() };
    let dla = DEVICES.get(device.addr()).filter(|_| !capture::is_captured(stream));
    let queue = dla.and_then(|dla| Some((dla, queue::key(stream, dla)?)));
    let Some((dla, key)) = queue else { return real() };
    let real = || {
        // The CUDA functions that the vendor's library calls are part of the task, not launches of the program.
        let _inside = OutermostHook::enter(CUDA);
        real()
    };
    // Work of the GPU that the task waits for must not be deferred.
    let real = || waits(real);
    let code = queue_hooks::launch_and_track(real, key, || queue::open(key, stream, dla));
    run_isolated(|| {
        if runtime.tracks_dependencies()
            && let Some(gpu) = stream_key(stream, LEGACY)
        {
            // The task waits for the work before it, and later work of the stream for the task.
            runtime.depends_on(key, gpu);
            runtime.depends_on(gpu, key);
        }
    });
    code
}

/// A stream that the program passes to the C interface. As in the original C++ XSched, not a default stream.
fn api_queue(stream: Stream) -> Option<ApiQueue> {
    let is_usable = stream.addr() > PER_THREAD && cuda::LIBRARY.find_loaded("libcuda.so");
    let dla = LAST.load(Ordering::Relaxed);
    let key = is_usable.then(|| queue::key(stream, dla)).flatten()?;
    Some(ApiQueue::new(key, move || queue::open(key, stream, dla)))
}
