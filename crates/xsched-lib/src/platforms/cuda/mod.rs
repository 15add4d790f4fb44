//! The NVIDIA platform: `libcuda.so.1`.
//!
//! Programs reach the driver's functions in three ways, and each is intercepted: by linking, because the exports of a preloaded
//! library come first; by `dlsym` ([`crate::loader`]); and by the driver's own `cuGetProcAddress`.
//!
//! * [`stream`]: a CUDA stream as a hardware queue. [`markers`]: the markers placed in it. [`stop_words`]: the memory through
//!   which the device reports progress and learns whether to continue.
//! * [`device`]: preemption of the process on one GPU, with the table of what each order does. [`resource_manager`]: the
//!   control calls for time slices and channels.
//! * [`contexts`]: destruction of contexts. [`capture`]: stream capture.
//! * [`vendor`]: the driver's functions and types.

mod api;
mod capture;
#[cfg(test)]
mod conformance;
mod contexts;
mod device;
mod markers;
mod resource_manager;
mod stop_words;
mod stream;
mod vendor;

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use xsched_interpose::{Guard, forward_once, run_isolated};

use crate::hooks::hooks;
use crate::loader::Hook;
use crate::platforms::Platform;
use crate::runtime::{Runtime, runtime};
use crate::tracked_queue::{ApiQueue, TrackedQueue};
use stream::{CudaStream, current_device};
use vendor::{Code, Context, LEGACY, LaunchConfig, PER_THREAD, Stream};

/// The platform, for the registry.
pub(crate) static PLATFORM: Platform = Platform {
    hooks: &[&LIBRARY],
    bypasses_hook: None,
    observe_ioctl: Some(resource_manager::watch_ioctl),
    at_exit: None,
    #[cfg(test)]
    header: &api::HEADER,
};

hooks! {
    prefix "cu";
    if missing return vendor::NOT_INITIALIZED;

    fn cuLaunchKernel(f: *mut c_void, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Stream, parameters: *mut c_void, extra: *mut c_void) -> Code
        = |real, _, _, _, _, _, _, _, _, stream, _, _| launch(real, stream, LEGACY);
    fn cuLaunchKernel_ptsz(f: *mut c_void, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Stream, parameters: *mut c_void, extra: *mut c_void) -> Code
        = |real, _, _, _, _, _, _, _, _, stream, _, _| launch(real, stream, PER_THREAD);
    fn cuLaunchKernelEx(config: *const LaunchConfig, f: *mut c_void, parameters: *mut c_void, extra: *mut c_void) -> Code
        = |real, config, _, _, _| launch(real, config_stream(config), LEGACY);
    fn cuLaunchKernelEx_ptsz(config: *const LaunchConfig, f: *mut c_void, parameters: *mut c_void, extra: *mut c_void) -> Code
        = |real, config, _, _, _| launch(real, config_stream(config), PER_THREAD);
    fn cuLaunchCooperativeKernel(f: *mut c_void, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Stream, parameters: *mut c_void) -> Code
        = |real, _, _, _, _, _, _, _, _, stream, _| launch(real, stream, LEGACY);
    fn cuLaunchCooperativeKernel_ptsz(f: *mut c_void, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Stream, parameters: *mut c_void) -> Code
        = |real, _, _, _, _, _, _, _, _, stream, _| launch(real, stream, PER_THREAD);
    fn cuGraphLaunch(graph: *mut c_void, stream: Stream) -> Code = |real, _, stream| launch_graph(real, stream, LEGACY);
    fn cuGraphLaunch_ptsz(graph: *mut c_void, stream: Stream) -> Code = |real, _, stream| launch_graph(real, stream, PER_THREAD);
    fn cuStreamSynchronize(stream: Stream) -> Code = |real, stream| synchronize(real, stream, LEGACY);
    fn cuStreamSynchronize_ptsz(stream: Stream) -> Code = |real, stream| synchronize(real, stream, PER_THREAD);
    fn cuStreamQuery(stream: Stream) -> Code = |real, stream| query(real, stream, LEGACY);
    fn cuStreamQuery_ptsz(stream: Stream) -> Code = |real, stream| query(real, stream, PER_THREAD);
    fn cuCtxSynchronize() -> Code = synchronize_device;
    fn cuEventSynchronize(event: *mut c_void) -> Code = |real, _| after_wait(real);
    fn cuMemcpy(to: usize, from: usize, size: usize) -> Code = |real, _, _, _| after_wait(real);
    fn cuMemcpy_ptds(to: usize, from: usize, size: usize) -> Code = |real, _, _, _| after_wait(real);
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: usize, size: usize) -> Code = |real, _, _, _| after_wait(real);
    fn cuMemcpyDtoH_v2_ptds(to: *mut c_void, from: usize, size: usize) -> Code = |real, _, _, _| after_wait(real);
    fn cuStreamWaitEvent(stream: Stream, event: *mut c_void, flags: c_uint) -> Code
        = |real, stream, _, _| wait_for_event(real, stream, LEGACY);
    fn cuStreamWaitEvent_ptsz(stream: Stream, event: *mut c_void, flags: c_uint) -> Code
        = |real, stream, _, _| wait_for_event(real, stream, PER_THREAD);
    fn cuStreamDestroy(stream: Stream) -> Code = destroy;
    fn cuStreamDestroy_v2(stream: Stream) -> Code = destroy;
    fn cuCtxDestroy(context: Context) -> Code = contexts::destroy;
    fn cuCtxDestroy_v2(context: Context) -> Code = contexts::destroy;
    fn cuDevicePrimaryCtxRelease(device: c_int) -> Code = contexts::release_primary;
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> Code = contexts::release_primary;
    fn cuDevicePrimaryCtxReset(device: c_int) -> Code = contexts::reset_primary;
    fn cuDevicePrimaryCtxReset_v2(device: c_int) -> Code = contexts::reset_primary;
    fn cuStreamBeginCapture_v2(stream: Stream, mode: c_int) -> Code = |real, _, _| capture::begin(real);
    fn cuStreamBeginCapture_v2_ptsz(stream: Stream, mode: c_int) -> Code = |real, _, _| capture::begin(real);
    fn cuStreamBeginCaptureToGraph(stream: Stream, graph: *mut c_void, dependencies: *const c_void, data: *const c_void, count: usize, mode: c_int) -> Code
        = |real, _, _, _, _, _, _| capture::begin(real);
    fn cuStreamBeginCaptureToGraph_ptsz(stream: Stream, graph: *mut c_void, dependencies: *const c_void, data: *const c_void, count: usize, mode: c_int) -> Code
        = |real, _, _, _, _, _, _| capture::begin(real);
    fn cuStreamEndCapture(stream: Stream, graph: *mut *mut c_void) -> Code = |real, _, _| capture::end(real);
    fn cuStreamEndCapture_ptsz(stream: Stream, graph: *mut *mut c_void) -> Code = |real, _, _| capture::end(real);
    fn cuGetProcAddress(symbol: *const c_char, found: *mut *mut c_void, version: c_int, flags: u64) -> Code
        = get_proc_address;
    fn cuGetProcAddress_v2(symbol: *const c_char, found: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int) -> Code
        = |real, symbol, found, version, flags, _| get_proc_address(real, symbol, found, version, flags);
}

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD_FUNCTIONS: u64 = 2;
/// From this version on, `cuGetProcAddress` denotes `cuGetProcAddress_v2`.
const CUDA_12: c_int = 12_000;

/// Calls `real`, the driver's own look-up function. If the function it found has a hook, stores its address for the hook and
/// returns the hook to the program.
fn get_proc_address(
    real: impl FnOnce() -> Code,
    symbol: *const c_char,
    found: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> Code {
    let code = real();
    // SAFETY: the program passes the same pointer to the driver, which reads a C string there.
    let name = unsafe { vendor::symbol_name(symbol) };
    if code != vendor::SUCCESS || found.is_null() {
        return code;
    }
    // SAFETY: the driver has just written the address there.
    let address = unsafe { *found };
    let hook = name.filter(|_| !address.is_null()).and_then(|name| find_hook(name, version, flags));
    if let Some(hook) = hook.filter(|hook| is_hooked_form(hook, address)) {
        // SAFETY: as above.
        unsafe { *found = hook.install(address) };
    }
    code
}

/// The hook for a name that is looked up. The driver has several forms of some functions, and returns one of them for the plain
/// name, depending on version and flags.
fn find_hook(name: &CStr, version: c_int, flags: u64) -> Option<&'static Hook> {
    let name = name.to_str().ok()?;
    let form = match name {
        "cuGetProcAddress" if version >= CUDA_12 => "cuGetProcAddress_v2",
        "cuCtxDestroy" => "cuCtxDestroy_v2",
        "cuDevicePrimaryCtxRelease" => "cuDevicePrimaryCtxRelease_v2",
        "cuDevicePrimaryCtxReset" => "cuDevicePrimaryCtxReset_v2",
        "cuMemcpyDtoH" => "cuMemcpyDtoH_v2",
        "cuStreamDestroy" => "cuStreamDestroy_v2",
        "cuStreamBeginCapture" => "cuStreamBeginCapture_v2",
        other => other,
    };
    let has_suffix = |hook: &&Hook, suffix: &str| {
        hook.name
            .to_str()
            .is_ok_and(|name| name.strip_suffix(suffix) == Some(form) || (suffix.is_empty() && name == form))
    };
    let hooks = LIBRARY.hooks();
    let is_per_thread = |hook: &&Hook| has_suffix(hook, "_ptsz") || has_suffix(hook, "_ptds");
    let wants_per_thread = flags & PER_THREAD_FUNCTIONS != 0;
    let per_thread = wants_per_thread.then(|| hooks.iter().find(is_per_thread)).flatten();
    per_thread.or_else(|| hooks.iter().find(|hook| has_suffix(hook, "")))
}

/// Newer drivers return a form of `cuCtxSynchronize` that takes a context, which is not hooked.
fn is_hooked_form(hook: &Hook, address: *mut c_void) -> bool {
    hook.name != c"cuCtxSynchronize" || LIBRARY.symbol(hook.name) == address
}

fn config_stream(config: *const LaunchConfig) -> Stream {
    // SAFETY: the program passes the same pointer to the driver, which reads a launch configuration there.
    if config.is_null() { std::ptr::null_mut() } else { unsafe { (*config).stream } }
}

/// The key under which a stream is known. Handles are unique except those of the default streams: each context has a legacy
/// default stream, and each thread has a default stream in each context.
fn stream_key(stream: Stream, default: usize) -> Option<usize> {
    // The address of this variable is unique among the living threads.
    thread_local!(static THREAD_ADDRESS: u8 = const { 0 });
    let handle = if stream.is_null() { default } else { stream.addr() };
    let key = match handle {
        LEGACY => current_context()?.addr() + LEGACY,
        PER_THREAD => {
            let thread = THREAD_ADDRESS.with(|address| std::ptr::from_ref(address).addr());
            thread ^ current_context()?.addr().rotate_left(20)
        }
        _ => handle,
    };
    Some(key)
}

fn current_context() -> Option<Context> {
    let mut context = std::ptr::null_mut();
    // SAFETY: `context` has room for a handle.
    let code = unsafe { vendor::CTX_GET_CURRENT.get()?(&raw mut context) };
    (code == vendor::SUCCESS && !context.is_null()).then_some(context)
}

fn launch(real: impl FnOnce() -> Code, stream: Stream, default: usize) -> Code {
    let Some(runtime) = runtime() else { return real() };
    forward_once(real, |call| {
        let queue = queue_to_launch_on(runtime, stream, default);
        if let Some(path) = queue.as_ref().and_then(|queue| queue.launch_path()) {
            path.launch(call);
        }
    })
}

fn launch_graph(real: impl FnOnce() -> Code, stream: Stream, default: usize) -> Code {
    let Some(runtime) = runtime() else { return real() };
    forward_once(real, |call| {
        let queue = queue_to_launch_on(runtime, stream, default);
        if let Some(path) = queue.as_ref().and_then(|queue| queue.launch_path()) {
            path.launch_large(call);
        }
    })
}

/// The tracked queue of a stream. None for a stream that is being captured: its work is recorded, not run.
#[inline]
fn queue_to_launch_on(runtime: &Runtime, stream: Stream, default: usize) -> Option<Guard<'_, TrackedQueue>> {
    if capture::is_captured(stream) {
        return None;
    }
    let key = stream_key(stream, default)?;
    runtime.queue_or_track(key, || track(runtime, key, stream, default))
}

fn synchronize(real: impl FnOnce() -> Code, stream: Stream, default: usize) -> Code {
    let Some(runtime) = runtime() else { return real() };
    forward_once(real, |call| {
        if let Some(queue) = stream_key(stream, default).and_then(|key| runtime.queue(key))
            && let Some(path) = queue.launch_path()
        {
            path.synchronized(call);
        }
    })
}

/// A query that returns success marks the stream idle, as a synchronization does.
fn query(real: impl FnOnce() -> Code, stream: Stream, default: usize) -> Code {
    let Some(runtime) = runtime() else { return real() };
    let mut real = Some(real);
    let mut code = None;
    let mut is_complete = || {
        code = real.take().map(|real| real());
        code == Some(vendor::SUCCESS)
    };
    run_isolated(|| {
        if let Some(queue) = stream_key(stream, default).and_then(|key| runtime.queue(key)) {
            queue.query(&mut is_complete);
        }
    });
    match (code, real) {
        (Some(code), _) => code,
        (None, Some(real)) => real(),
        (None, None) => vendor::NOT_INITIALIZED,
    }
}

fn synchronize_device(real: impl FnOnce() -> Code) -> Code {
    let Some(runtime) = runtime() else { return real() };
    forward_once(real, |call| {
        if let Some(device) = current_device() {
            runtime.synchronize(device, call);
        }
    })
}

/// The stream waits for another stream, and the event does not identify it. It therefore counts as waiting for every stream of
/// the program: a stream that a running stream waits for must not be stopped.
fn wait_for_event(real: impl FnOnce() -> Code, stream: Stream, default: usize) -> Code {
    let code = real();
    run_isolated(|| {
        if let Some(runtime) =
            runtime().filter(|runtime| code == vendor::SUCCESS && runtime.tracks_dependencies())
            && let Some(key) = stream_key(stream, default)
        {
            runtime.depends_on_any(key);
        }
    });
    code
}

/// Calls `real`, which waits for an event or for the work before a copy. That may have been the last work of its stream, so the
/// streams are polled.
fn after_wait(real: impl FnOnce() -> Code) -> Code {
    let code = real();
    run_isolated(|| {
        if let Some(runtime) = runtime() {
            runtime.poll_soon();
        }
    });
    code
}

fn destroy(real: impl FnOnce() -> Code, stream: Stream) -> Code {
    // Destroying a stream ends its capture.
    let is_captured = capture::is_captured(stream);
    let code = forward_once(real, |_| {
        if let Some(runtime) = runtime() {
            runtime.untrack(stream.addr());
        }
    });
    if is_captured && code == vendor::SUCCESS {
        capture::ended();
    }
    code
}

/// A stream that the program passes to the C interface. The context of a stream that is not a default stream need not be
/// current.
fn api_queue(stream: Stream) -> Option<ApiQueue> {
    if !LIBRARY.find_loaded("libcuda.so") {
        return None;
    }
    let own_context = (stream.addr() > PER_THREAD).then(|| context_of(stream)).flatten();
    let (key, context) = match own_context {
        Some(context) => (stream.addr(), context),
        None => (stream_key(stream, LEGACY)?, current_context()?),
    };
    let stream = if stream.is_null() { std::ptr::without_provenance_mut(LEGACY) } else { stream };
    Some(ApiQueue::new(key, move || {
        let queue = stream::with_current(context, || CudaStream::new(stream, context)).flatten()?;
        if stream.addr() == PER_THREAD {
            ThreadStreams::add(key);
        }
        Some(queue)
    }))
}

fn context_of(stream: Stream) -> Option<Context> {
    let mut context = std::ptr::null_mut();
    // SAFETY: `context` has room for a handle; the driver rejects an invalid stream.
    let code = unsafe { vendor::STREAM_CONTEXT.get()?(stream, &raw mut context) };
    (code == vendor::SUCCESS && !context.is_null()).then_some(context)
}

#[cold]
fn track(runtime: &Runtime, key: usize, stream: Stream, default: usize) -> bool {
    let Some(context) = current_context() else { return false };
    let stream = if stream.is_null() { std::ptr::without_provenance_mut(default) } else { stream };
    let is_tracked = runtime.track(key, || CudaStream::new(stream, context));
    if is_tracked && stream.addr() == PER_THREAD {
        ThreadStreams::add(key);
    }
    is_tracked
}

/// The keys of one thread's default streams, one for each context. The streams are untracked when the thread exits.
#[derive(Default)]
struct ThreadStreams(RefCell<Vec<usize>>);

impl ThreadStreams {
    fn add(key: usize) {
        thread_local!(static STREAMS: ThreadStreams = ThreadStreams::default());
        // Fails on a thread that is exiting, whose streams were untracked already.
        let _ = STREAMS.try_with(|streams| streams.0.borrow_mut().push(key));
    }
}

impl Drop for ThreadStreams {
    fn drop(&mut self) {
        run_isolated(|| {
            if let Some(runtime) = runtime() {
                self.0.borrow().iter().for_each(|key| runtime.untrack(*key));
            }
        });
    }
}
