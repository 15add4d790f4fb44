//! The NVIDIA platform: `libcuda.so.1`.
//!
//! Programs find the driver's functions in three ways, and all three lead here: by linking (our exports come first), by
//! `dlsym` ([`crate::loader`]), and by the driver's own `cuGetProcAddress`.

mod hardware;
mod rm;
mod vendor;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

use xsched_interpose::forward_once;

use crate::hooks::hooks;
use crate::loader::Hook;
use crate::world::{World, world};
use hardware::{CAPTURES, CudaStream};
pub(crate) use rm::watch_ioctl;
use vendor::{Code, Context, LaunchConfig, Stream};

/// The default stream as each of the two kinds of functions understands it.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

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
    fn cuGraphLaunch(graph: *mut c_void, stream: Stream) -> Code = |real, _, stream| launch(real, stream, LEGACY);
    fn cuGraphLaunch_ptsz(graph: *mut c_void, stream: Stream) -> Code = |real, _, stream| launch(real, stream, PER_THREAD);
    fn cuStreamSynchronize(stream: Stream) -> Code = |real, stream| synchronize(real, stream, LEGACY);
    fn cuStreamSynchronize_ptsz(stream: Stream) -> Code = |real, stream| synchronize(real, stream, PER_THREAD);
    fn cuStreamDestroy_v2(stream: Stream) -> Code = destroy;
    fn cuStreamBeginCapture_v2(stream: Stream, mode: c_int) -> Code = |real, _, _| begin_capture(real);
    fn cuStreamBeginCapture_v2_ptsz(stream: Stream, mode: c_int) -> Code = |real, _, _| begin_capture(real);
    fn cuStreamBeginCaptureToGraph(stream: Stream, graph: *mut c_void, dependencies: *const c_void, data: *const c_void, count: usize, mode: c_int) -> Code
        = |real, _, _, _, _, _, _| begin_capture(real);
    fn cuStreamBeginCaptureToGraph_ptsz(stream: Stream, graph: *mut c_void, dependencies: *const c_void, data: *const c_void, count: usize, mode: c_int) -> Code
        = |real, _, _, _, _, _, _| begin_capture(real);
    fn cuStreamEndCapture(stream: Stream, graph: *mut *mut c_void) -> Code = |real, _, _| end_capture(real);
    fn cuStreamEndCapture_ptsz(stream: Stream, graph: *mut *mut c_void) -> Code = |real, _, _| end_capture(real);
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
    if let Some(hook) = name.filter(|_| !address.is_null()).and_then(|name| hook_for(name, version, flags)) {
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
    let by_thread = per_thread.then(|| hooks.iter().find(|hook| is(hook, "_ptsz"))).flatten();
    by_thread.or_else(|| hooks.iter().find(|hook| is(hook, "")))
}

fn stream_of(config: *const LaunchConfig) -> Stream {
    // SAFETY: the driver is about to read the same place.
    if config.is_null() { std::ptr::null_mut() } else { unsafe { (*config).stream } }
}

/// What tells streams apart: handles are unique, but the default stream is each context's own.
fn key(stream: Stream, default: usize) -> Option<(usize, Context)> {
    let mut context = std::ptr::null_mut();
    // SAFETY: the place has room for a handle.
    let code = unsafe { vendor::CTX_GET_CURRENT.get()?(&raw mut context) };
    if code != vendor::SUCCESS || context.is_null() {
        return None;
    }
    let which = if stream.is_null() { default } else { stream.addr() };
    Some((if which <= PER_THREAD { context.addr() + which } else { which }, context))
}

fn launch(real: impl FnOnce() -> Code, stream: Stream, default: usize) -> Code {
    let Some(world) = world() else { return real() };
    forward_once(real, |call| {
        if is_captured(stream) {
            return;
        }
        let Some((key, context)) = key(stream, default) else { return };
        let known = world.with(key, |station| station.map(|station| station.launch(call)).is_some());
        if !known && adopt(world, key, stream, default, context) {
            world.with(key, |station| station.map(|station| station.launch(call)));
        }
    })
}

fn synchronize(real: impl FnOnce() -> Code, stream: Stream, default: usize) -> Code {
    let Some(world) = world() else { return real() };
    forward_once(real, |call| {
        if let Some((key, _)) = key(stream, default) {
            world.with(key, |station| station.map(|station| station.synchronize(call)));
        }
    })
}

fn destroy(real: impl FnOnce() -> Code, stream: Stream) -> Code {
    forward_once(real, |_| {
        if let Some(world) = world() {
            world.retire(stream.addr());
        }
    })
}

/// A stream that is being captured is never held: what is launched there is recorded, not run.
fn is_captured(stream: Stream) -> bool {
    if CAPTURES.load(Ordering::SeqCst) == 0 {
        return false;
    }
    let mut status = 0;
    let code = vendor::STREAM_IS_CAPTURING.get().map(|ask| {
        // SAFETY: the place has room for the answer.
        unsafe { ask(stream, &raw mut status) }
    });
    code != Some(vendor::SUCCESS) || status != 0
}

fn begin_capture(real: impl FnOnce() -> Code) -> Code {
    // Counted first: nothing of ours may come into the stream once it is captured.
    CAPTURES.fetch_add(1, Ordering::SeqCst);
    let code = real();
    if code != vendor::SUCCESS {
        CAPTURES.fetch_sub(1, Ordering::SeqCst);
    }
    code
}

fn end_capture(real: impl FnOnce() -> Code) -> Code {
    let code = real();
    let _ = CAPTURES.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
    code
}

#[cold]
fn adopt(world: &World, key: usize, stream: Stream, default: usize, context: Context) -> bool {
    let stream = if stream.is_null() { std::ptr::without_provenance_mut(default) } else { stream };
    world.adopt(key, || CudaStream::new(stream, context))
}
