//! The NVIDIA platform: `libcuda.so.1`.
//!
//! Programs find the driver's functions in three ways, and all three lead here: by linking (our exports come first), by
//! `dlsym` ([`crate::loader`]), and by the driver's own `cuGetProcAddress`.

mod board;
mod capture;
#[cfg(test)]
mod conformance;
mod contexts;
mod device;
mod hardware;
mod marks;
mod rm;
mod vendor;

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use xsched_interpose::{forward_once, run_isolated};

use crate::hooks::hooks;
use crate::loader::Hook;
use crate::runtime::{Runtime, runtime};
use crate::tracked_queue::{Found, TrackedQueue, VendorQueue};
use hardware::{CudaStream, current_device};
pub(crate) use rm::watch_ioctl;
use vendor::{Code, Context, LEGACY, LaunchConfig, PER_THREAD, Stream};

hooks! {
    names begin with "cu";
    unless found answer vendor::NOT_INITIALIZED;

    fn cuLaunchKernel(f: *mut c_void, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Stream, parameters: *mut c_void, extra: *mut c_void) -> Code
        = |real, _, _, _, _, _, _, _, _, stream, _, _| launch(real, stream, LEGACY);
    fn cuLaunchKernel_ptsz(f: *mut c_void, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Stream, parameters: *mut c_void, extra: *mut c_void) -> Code
        = |real, _, _, _, _, _, _, _, _, stream, _, _| launch(real, stream, PER_THREAD);
    fn cuLaunchKernelEx(config: *const LaunchConfig, f: *mut c_void, parameters: *mut c_void, extra: *mut c_void) -> Code
        = |real, config, _, _, _| launch(real, stream_of(config), LEGACY);
    fn cuLaunchKernelEx_ptsz(config: *const LaunchConfig, f: *mut c_void, parameters: *mut c_void, extra: *mut c_void) -> Code
        = |real, config, _, _, _| launch(real, stream_of(config), PER_THREAD);
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
    fn cuEventSynchronize(event: *mut c_void) -> Code = |real, _| after_waiting(real);
    fn cuMemcpy(to: usize, from: usize, size: usize) -> Code = |real, _, _, _| after_waiting(real);
    fn cuMemcpy_ptds(to: usize, from: usize, size: usize) -> Code = |real, _, _, _| after_waiting(real);
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: usize, size: usize) -> Code = |real, _, _, _| after_waiting(real);
    fn cuMemcpyDtoH_v2_ptds(to: *mut c_void, from: usize, size: usize) -> Code = |real, _, _, _| after_waiting(real);
    fn cuStreamWaitEvent(stream: Stream, event: *mut c_void, flags: c_uint) -> Code
        = |real, stream, _, _| wait_for_event(real, stream, LEGACY);
    fn cuStreamWaitEvent_ptsz(stream: Stream, event: *mut c_void, flags: c_uint) -> Code
        = |real, stream, _, _| wait_for_event(real, stream, PER_THREAD);
    fn cuStreamDestroy(stream: Stream) -> Code = destroy;
    fn cuStreamDestroy_v2(stream: Stream) -> Code = destroy;
    fn cuCtxDestroy(context: Context) -> Code = contexts::destroyed;
    fn cuCtxDestroy_v2(context: Context) -> Code = contexts::destroyed;
    fn cuDevicePrimaryCtxRelease(device: c_int) -> Code = contexts::released;
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> Code = contexts::released;
    fn cuDevicePrimaryCtxReset(device: c_int) -> Code = contexts::reset;
    fn cuDevicePrimaryCtxReset_v2(device: c_int) -> Code = contexts::reset;
    fn cuStreamBeginCapture_v2(stream: Stream, mode: c_int) -> Code = |real, _, _| capture::begin(real);
    fn cuStreamBeginCapture_v2_ptsz(stream: Stream, mode: c_int) -> Code = |real, _, _| capture::begin(real);
    fn cuStreamBeginCaptureToGraph(stream: Stream, graph: *mut c_void, dependencies: *const c_void, data: *const c_void, count: usize, mode: c_int) -> Code
        = |real, _, _, _, _, _, _| capture::begin(real);
    fn cuStreamBeginCaptureToGraph_ptsz(stream: Stream, graph: *mut c_void, dependencies: *const c_void, data: *const c_void, count: usize, mode: c_int) -> Code
        = |real, _, _, _, _, _, _| capture::begin(real);
    fn cuStreamEndCapture(stream: Stream, graph: *mut *mut c_void) -> Code = |real, _, _| capture::end(real);
    fn cuStreamEndCapture_ptsz(stream: Stream, graph: *mut *mut c_void) -> Code = |real, _, _| capture::end(real);
    fn cuGetProcAddress(symbol: *const c_char, found: *mut *mut c_void, version: c_int, flags: u64) -> Code
        = answer_with_hook;
    fn cuGetProcAddress_v2(symbol: *const c_char, found: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int) -> Code
        = |real, symbol, found, version, flags, _| answer_with_hook(real, symbol, found, version, flags);
}

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD_FUNCTIONS: u64 = 2;
/// From this version on, some names stand for the second form of their function.
const CUDA_12: c_int = 12_000;

/// The driver's own look-up: what it finds is remembered, and our hook given out in its place.
fn answer_with_hook(
    real: impl FnOnce() -> Code,
    symbol: *const c_char,
    found: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> Code {
    let code = real();
    // SAFETY: whoever asks for a name passes a C string.
    let name = unsafe { vendor::name(symbol) };
    if code != vendor::SUCCESS || found.is_null() {
        return code;
    }
    // SAFETY: the driver has just written its answer there.
    let address = unsafe { *found };
    let hook = name.filter(|_| !address.is_null()).and_then(|name| hook_for(name, version, flags));
    if let Some(hook) = hook.filter(|hook| is_the_form(hook, address)) {
        // SAFETY: as above.
        unsafe { *found = hook.put_before(address) };
    }
    code
}

/// The driver is asked for a plain name and answers with one of several forms: which one follows from version and flags.
fn hook_for(name: &CStr, version: c_int, flags: u64) -> Option<&'static Hook> {
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
    let is = |hook: &&Hook, suffix: &str| {
        hook.name
            .to_str()
            .is_ok_and(|own| own.strip_suffix(suffix) == Some(form) || (suffix.is_empty() && own == form))
    };
    let per_thread = flags & PER_THREAD_FUNCTIONS != 0;
    let hooks = LIBRARY.hooks();
    let of_thread = |hook: &&Hook| is(hook, "_ptsz") || is(hook, "_ptds");
    let by_thread = per_thread.then(|| hooks.iter().find(of_thread)).flatten();
    by_thread.or_else(|| hooks.iter().find(|hook| is(hook, "")))
}

/// Newer drivers answer to this plain name with a function that takes a context: that one is not hooked.
fn is_the_form(hook: &Hook, address: *mut c_void) -> bool {
    hook.name != c"cuCtxSynchronize" || LIBRARY.find(hook.name) == address
}

fn stream_of(config: *const LaunchConfig) -> Stream {
    // SAFETY: the driver is about to read the same place.
    if config.is_null() { std::ptr::null_mut() } else { unsafe { (*config).stream } }
}

/// What tells streams apart: handles are unique, but the default stream is each context's own, and one kind of it each
/// thread's too.
fn key(stream: Stream, default: usize) -> Option<usize> {
    thread_local!(static HERE: u8 = const { 0 });
    let handle = if stream.is_null() { default } else { stream.addr() };
    let key = match handle {
        LEGACY => current_context()?.addr() + LEGACY,
        PER_THREAD => {
            HERE.with(|here| std::ptr::from_ref(here).addr()) ^ current_context()?.addr().rotate_left(20)
        }
        _ => handle,
    };
    Some(key)
}

fn current_context() -> Option<Context> {
    let mut context = std::ptr::null_mut();
    // SAFETY: the place has room for a handle.
    let code = unsafe { vendor::CTX_GET_CURRENT.get()?(&raw mut context) };
    (code == vendor::SUCCESS && !context.is_null()).then_some(context)
}

fn launch(real: impl FnOnce() -> Code, stream: Stream, default: usize) -> Code {
    launch_by(TrackedQueue::launch, real, stream, default)
}

fn launch_graph(real: impl FnOnce() -> Code, stream: Stream, default: usize) -> Code {
    launch_by(TrackedQueue::launch_large, real, stream, default)
}

#[inline]
fn launch_by(
    way: fn(&TrackedQueue, &mut dyn FnMut()),
    real: impl FnOnce() -> Code,
    stream: Stream,
    default: usize,
) -> Code {
    let Some(runtime) = runtime() else { return real() };
    forward_once(real, |call| {
        if capture::is_captured(stream) {
            return;
        }
        let Some(key) = key(stream, default) else { return };
        let known = runtime.with(key, |tracked| tracked.map(|tracked| way(tracked, call)).is_some());
        if !known && adopt(runtime, key, stream, default) {
            runtime.with(key, |tracked| tracked.map(|tracked| way(tracked, call)));
        }
    })
}

fn synchronize(real: impl FnOnce() -> Code, stream: Stream, default: usize) -> Code {
    let Some(runtime) = runtime() else { return real() };
    forward_once(real, |call| {
        if let Some(key) = key(stream, default) {
            runtime.with(key, |tracked| tracked.map(|tracked| tracked.synchronize(call)));
        }
    })
}

/// A stream that says it is done is idle, as after a wait.
fn query(real: impl FnOnce() -> Code, stream: Stream, default: usize) -> Code {
    let Some(runtime) = runtime() else { return real() };
    let mut real = Some(real);
    let mut code = None;
    let mut ask = || {
        code = real.take().map(|real| real());
        code == Some(vendor::SUCCESS)
    };
    run_isolated(|| {
        if let Some(key) = key(stream, default) {
            runtime.with(key, |tracked| tracked.map(|tracked| tracked.query(&mut ask)));
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

/// The stream waits for another, and nothing says which: a queue that a running one waits for must not be stopped.
fn wait_for_event(real: impl FnOnce() -> Code, stream: Stream, default: usize) -> Code {
    let code = real();
    run_isolated(|| {
        if let Some(runtime) =
            runtime().filter(|runtime| code == vendor::SUCCESS && runtime.tracks_dependencies())
            && let Some(key) = key(stream, default)
        {
            runtime.depends_on_any(key);
        }
    });
    code
}

/// What was waited for is done, an event or what was before a copy; whether that was all its stream had is to be found out.
fn after_waiting(real: impl FnOnce() -> Code) -> Code {
    let code = real();
    run_isolated(|| {
        if let Some(runtime) = runtime() {
            runtime.poll_soon();
        }
    });
    code
}

fn destroy(real: impl FnOnce() -> Code, stream: Stream) -> Code {
    // A capture ends with its stream.
    let captured = capture::is_captured(stream);
    let code = forward_once(real, |_| {
        if let Some(runtime) = runtime() {
            runtime.retire(stream.addr());
        }
    });
    if captured && code == vendor::SUCCESS {
        capture::over();
    }
    code
}

/// For the C interface: what a stream is known by, and how to take control of it. The context of a stream that is not a
/// default stream need not be current: whoever owns it, it is asked for and put back.
pub(crate) fn find(stream: Stream) -> Found<impl FnOnce() -> Option<Arc<dyn VendorQueue>>> {
    if !LIBRARY.meet("libcuda.so") {
        return None;
    }
    let its_own = (stream.addr() > PER_THREAD).then(|| context_of(stream)).flatten();
    let (key, context) = match its_own {
        Some(context) => (stream.addr(), context),
        None => (key(stream, LEGACY)?, current_context()?),
    };
    let stream = if stream.is_null() { std::ptr::without_provenance_mut(LEGACY) } else { stream };
    Some((key, move || {
        let taken = hardware::with_current(context, || CudaStream::new(stream, context)).flatten()?;
        if stream.addr() == PER_THREAD {
            OwnStreams::add(key);
        }
        Some(Arc::new(taken) as _)
    }))
}

fn context_of(stream: Stream) -> Option<Context> {
    let mut context = std::ptr::null_mut();
    // SAFETY: the place has room for a handle; a stream the program made up is as invalid to us as to the driver.
    let code = unsafe { vendor::STREAM_CONTEXT.get()?(stream, &raw mut context) };
    (code == vendor::SUCCESS && !context.is_null()).then_some(context)
}

#[cold]
fn adopt(runtime: &Runtime, key: usize, stream: Stream, default: usize) -> bool {
    let Some(context) = current_context() else { return false };
    let stream = if stream.is_null() { std::ptr::without_provenance_mut(default) } else { stream };
    let adopted = runtime.adopt(key, || CudaStream::new(stream, context));
    if adopted && stream.addr() == PER_THREAD {
        OwnStreams::add(key);
    }
    adopted
}

/// The default streams of one thread, in several contexts perhaps. They end with the thread.
#[derive(Default)]
struct OwnStreams(RefCell<Vec<usize>>);

impl OwnStreams {
    fn add(key: usize) {
        thread_local!(static OWN: OwnStreams = OwnStreams::default());
        // A thread that is about to end has none any more.
        let _ = OWN.try_with(|own| own.0.borrow_mut().push(key));
    }
}

impl Drop for OwnStreams {
    fn drop(&mut self) {
        run_isolated(|| {
            if let Some(runtime) = runtime() {
                self.0.borrow().iter().for_each(|key| runtime.retire(*key));
            }
        });
    }
}
