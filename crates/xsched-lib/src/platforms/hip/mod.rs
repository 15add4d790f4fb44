//! The AMD platform: `libamdhip64.so`.
//!
//! Three rules, each learnt from programs that broke (`docs/amd.md`): we never open a runtime ourselves, a call always
//! goes on to the copy its caller uses ([`copies`]); a launch happens on the caller's thread, at once; and on a program's
//! thread we make only calls that succeed, before its own call or after that has succeeded, for the last error is the
//! program's. All other calls are made by a thread of ours ([`keeper`]).
//!
//! * [`stubs`]: how hooks are written. [`vendor`]: the runtime's functions and types.
//! * [`table`]: the runtime's own table of functions, which it hands to tools.
//! * [`hsa`]: the runtime below, for programs that use it without HIP.
//! * [`hardware`]: a stream. [`marks`]: what is placed in it.
//! * [`group`]: the streams that are stopped together: in the kernel's driver ([`kfd`]), or at stall points ([`stall`]).
//!   [`mask`]: compute units that they leave free.

mod api;
#[cfg(test)]
mod conformance;
mod copies;
mod group;
mod hardware;
mod hsa;
mod keeper;
mod kfd;
mod marks;
mod mask;
mod stall;
mod stubs;
mod table;
mod vendor;

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU8, Ordering};

use xsched_interpose::forward_once;
use xsched_ipc::report::{Severity, report};

use crate::loader::{HookTable, LookupHook, SymbolName};
use crate::platforms::Platform;
use crate::queue_hooks::pass_gates;
use crate::runtime::{Runtime, existing_runtime, runtime};
use crate::tracked_queue::ApiQueue;
use copies::Hook;
use hardware::{HipStream, Place, Which};
use marks::CAPTURES;
use vendor::{Code, Dim3, Event, FunctionLaunchParams, LaunchConfig, LaunchParams, Stream};

/// The platform, for the registry.
pub(crate) static PLATFORM: Platform = Platform {
    hooks: &[&HipHooks],
    bypasses_hook: None,
    observe_ioctl: Some(kfd::watch_ioctl),
    at_exit: Some(leave),
    #[cfg(test)]
    header: &api::HEADER,
};

/// What is meant by no stream at all.
#[derive(Clone, Copy)]
enum NoStream {
    /// The stream that waits for all others of its device.
    Legacy,
    /// The calling thread's own.
    PerThread,
}
use NoStream::{Legacy, PerThread};

/// A call that came to a hook.
struct Call<'a> {
    /// The copy of the runtime it is for.
    copy: usize,
    /// The real function with the caller's arguments.
    real: &'a mut dyn FnMut() -> Code,
}

impl Call<'_> {
    /// Goes on as if we were not there.
    fn forward(self) -> Code {
        (self.real)()
    }
}

stubs::hooks! {
    [214] fn hipLaunchKernel(f: *const c_void, grid: Dim3, block: Dim3, args: *mut c_void, shared: usize, stream: Stream)
        = |call, _, _, _, _, _, stream| launch(call, stream, Legacy);
    [419] fn hipLaunchKernel_spt(f: *const c_void, grid: Dim3, block: Dim3, args: *mut c_void, shared: usize, stream: Stream)
        = |call, _, _, _, _, _, stream| launch(call, stream, PerThread);
    [84] fn hipExtLaunchKernel(f: *const c_void, grid: Dim3, block: Dim3, args: *mut c_void, shared: usize, stream: Stream, start: Event, stop: Event, flags: c_int)
        = |call, _, _, _, _, _, stream, _, _, _| launch(call, stream, Legacy);
    [474] fn hipLaunchKernelExC(config: *const LaunchConfig, f: *const c_void, args: *mut c_void)
        = |call, config, _, _| launch(call, stream_of(config), Legacy);
    [475] fn hipDrvLaunchKernelEx(config: *const LaunchConfig, f: *mut c_void, args: *mut c_void, extra: *mut c_void)
        = |call, config, _, _, _| launch(call, stream_of(config), Legacy);
    [308] fn hipModuleLaunchKernel(f: *mut c_void, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Stream, args: *mut c_void, extra: *mut c_void)
        = |call, _, _, _, _, _, _, _, _, stream, _, _| launch(call, stream, Legacy);
    [388] fn hipExtModuleLaunchKernel(f: *mut c_void, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: usize, stream: Stream, args: *mut c_void, extra: *mut c_void, start: Event, stop: Event, flags: u32)
        = |call, _, _, _, _, _, _, _, _, stream, _, _, _, _, _| launch(call, stream, Legacy);
    [none] fn _Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_j(f: *mut c_void, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: usize, stream: Stream, args: *mut c_void, extra: *mut c_void, start: Event, stop: Event, flags: u32)
        = |call, _, _, _, _, _, _, _, _, stream, _, _, _, _, _| launch(call, stream, Legacy);
    [389] fn hipHccModuleLaunchKernel(f: *mut c_void, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: usize, stream: Stream, args: *mut c_void, extra: *mut c_void, start: Event, stop: Event)
        = |call, _, _, _, _, _, _, _, _, stream, _, _, _, _| launch(call, stream, Legacy);
    [none] fn _Z24hipHccModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_(f: *mut c_void, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: usize, stream: Stream, args: *mut c_void, extra: *mut c_void, start: Event, stop: Event)
        = |call, _, _, _, _, _, _, _, _, stream, _, _, _, _| launch(call, stream, Legacy);
    [211] fn hipLaunchCooperativeKernel(f: *const c_void, grid: Dim3, block: Dim3, args: *mut c_void, shared: c_uint, stream: Stream)
        = |call, _, _, _, _, _, stream| launch(call, stream, Legacy);
    [418] fn hipLaunchCooperativeKernel_spt(f: *const c_void, grid: Dim3, block: Dim3, args: *mut c_void, shared: u32, stream: Stream)
        = |call, _, _, _, _, _, stream| launch(call, stream, PerThread);
    [306] fn hipModuleLaunchCooperativeKernel(f: *mut c_void, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Stream, args: *mut c_void)
        = |call, _, _, _, _, _, _, _, _, stream, _| launch(call, stream, Legacy);
    [212] fn hipLaunchCooperativeKernelMultiDevice(list: *const LaunchParams, count: c_int, flags: c_uint)
        = |call, list, count: c_int, _| launch_all(call, list, count.cast_unsigned(), |one: &LaunchParams| one.stream);
    [85] fn hipExtLaunchMultiKernelMultiDevice(list: *const LaunchParams, count: c_int, flags: c_uint)
        = |call, list, count: c_int, _| launch_all(call, list, count.cast_unsigned(), |one: &LaunchParams| one.stream);
    [307] fn hipModuleLaunchCooperativeKernelMultiDevice(list: *const FunctionLaunchParams, count: c_uint, flags: c_uint)
        = |call, list, count, _| launch_all(call, list, count, |one: &FunctionLaunchParams| one.stream);
    [166] fn hipGraphLaunch(graph: *mut c_void, stream: Stream) = |call, _, stream| launch(call, stream, Legacy);
    [420] fn hipGraphLaunch_spt(graph: *mut c_void, stream: Stream) = |call, _, stream| launch(call, stream, PerThread);

    // The oldest form of a launch says where in a call of its own.
    [13] fn hipConfigureCall(grid: Dim3, block: Dim3, shared: usize, stream: Stream)
        = |call: Call, _, _, _, stream| { CONFIGURED.set(stream); call.forward() };
    [210] fn hipLaunchByPtr(f: *const c_void) = |call, _| launch(call, CONFIGURED.get(), Legacy);

    [346] fn hipStreamSynchronize(stream: Stream) = |call, stream| synchronize(call, stream, Legacy);
    [412] fn hipStreamSynchronize_spt(stream: Stream) = |call, stream| synchronize(call, stream, PerThread);
    [337] fn hipStreamDestroy(stream: Stream) = destroy;
    [60] fn hipDeviceReset() = reset;

    [333] fn hipStreamBeginCapture(stream: Stream, mode: c_int) = |call, _, _| begin_capture(call);
    [421] fn hipStreamBeginCapture_spt(stream: Stream, mode: c_int) = |call, _, _| begin_capture(call);
    [443] fn hipStreamBeginCaptureToGraph(stream: Stream, graph: *mut c_void, after: *const c_void, data: *const c_void, count: usize, mode: c_int)
        = |call, _, _, _, _, _, _| begin_capture(call);
    [338] fn hipStreamEndCapture(stream: Stream, graph: *mut c_void) = |call, _, _| end_capture(call);
    [422] fn hipStreamEndCapture_spt(stream: Stream, graph: *mut c_void) = |call, _, _| end_capture(call);

    // The runtime's own look-up functions.
    [442] fn hipGetProcAddress(symbol: *const c_char, found: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int)
        = |call, symbol, found, _, flags, _| answer_with_hook(call, symbol, found, flags & PER_THREAD_FUNCTIONS != 0);
    [506] fn hipGetProcAddress_spt(symbol: *const c_char, found: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int)
        = |call, symbol, found, _, _, _| answer_with_hook(call, symbol, found, true);
    [491] fn hipGetDriverEntryPoint(symbol: *const c_char, found: *mut *mut c_void, flags: u64, status: *mut c_int)
        = |call, symbol, found, flags, _| answer_with_hook(call, symbol, found, flags & PER_THREAD_FUNCTIONS != 0);
    [492] fn hipGetDriverEntryPoint_spt(symbol: *const c_char, found: *mut *mut c_void, flags: u64, status: *mut c_int)
        = |call, symbol, found, _, _| answer_with_hook(call, symbol, found, true);
}

/// Whoever looks this flag up wants functions that take no stream at all for the thread's own.
const PER_THREAD_FUNCTIONS: u64 = 2;

thread_local! {
    /// Where the next [`hipLaunchByPtr`] goes.
    static CONFIGURED: Cell<Stream> = const { Cell::new(std::ptr::null_mut()) };
}

/// Answers in place of a runtime that is not there.
extern "C" fn missing() -> Code {
    vendor::NOT_INITIALIZED
}

/// How the names of all hooks begin.
const NAMES_BEGIN: [&[u8]; 2] = [b"hip", b"_Z24hip"];

/// The hook for a name, if we have one.
fn hook(name: &CStr) -> Option<&'static Hook> {
    let ours = NAMES_BEGIN.into_iter().any(|start| name.to_bytes().starts_with(start));
    ours.then(|| HOOKS.iter().copied().find(|hook| hook.name == name)).flatten()
}

/// The program ends: its queues run, and no thread of ours calls the runtime any more.
fn leave() {
    group::release_all();
    keeper::end();
}

/// The hooks as the loader's look-up functions search them.
struct HipHooks;

impl HookTable for HipHooks {
    fn find_hook(&self, name: SymbolName) -> Option<&'static dyn LookupHook> {
        if !NAMES_BEGIN.into_iter().any(|start| name.starts_with(start)) {
            return None;
        }
        HOOKS.iter().copied().find(|hook| name.is(hook.name)).map(|hook| hook as _)
    }
}

impl LookupHook for Hook {
    fn name(&self) -> &'static CStr {
        self.name
    }

    fn replace(&'static self, found: *mut c_void) -> *mut c_void {
        copies::put_before(self, found)
    }
}

/// The runtime's own look-up: our hook is given out in place of what it finds.
fn answer_with_hook(call: Call, symbol: *const c_char, found: *mut *mut c_void, per_thread: bool) -> Code {
    let code = call.forward();
    if code != vendor::SUCCESS || found.is_null() || symbol.is_null() {
        return code;
    }
    // SAFETY: whoever asks for a name passes a C string; the runtime has just written its answer.
    let (name, address) = unsafe { (CStr::from_ptr(symbol), *found) };
    if address.is_null() {
        return code;
    }
    let own = || {
        HOOKS.iter().copied().find(|hook| hook.name.to_bytes().strip_suffix(b"_spt") == Some(name.to_bytes()))
    };
    let own = per_thread.then(own).flatten();
    if let Some(hook) = own.or_else(|| hook(name)) {
        // SAFETY: as above.
        unsafe { *found = copies::put_before(hook, address) };
    }
    code
}

fn stream_of(config: *const LaunchConfig) -> Stream {
    // SAFETY: the runtime is about to read the same place.
    if config.is_null() { std::ptr::null_mut() } else { unsafe { (*config).stream } }
}

/// Whether a copy has a device at all. Asked once, by a thread of ours: the question itself may fail.
fn has_device(copy: usize) -> bool {
    const YES: u8 = 1;
    const NO: u8 = 2;
    static KNOWN: [AtomicU8; copies::MOST] = [const { AtomicU8::new(0) }; copies::MOST];
    match KNOWN[copy].load(Ordering::Acquire) {
        YES => true,
        NO => false,
        _ => {
            let count = keeper::ask(move || {
                let mut count = 0;
                // SAFETY: the place has room for a number.
                let code = unsafe { vendor::DEVICE_COUNT.of(copy)?(&raw mut count) };
                (code == vendor::SUCCESS && count > 0).then_some(count)
            });
            let has = count.flatten().is_some();
            KNOWN[copy].store(if has { YES } else { NO }, Ordering::Release);
            tell(has);
            has
        }
    }
}

/// One line about what was found, and one more if it is out of the ordinary.
fn tell(has_device: bool) {
    static TOLD: AtomicU8 = AtomicU8::new(0);
    let (copies, tabled) = copies::count();
    if usize::from(TOLD.fetch_max(u8::try_from(copies).unwrap_or(u8::MAX), Ordering::AcqRel)) >= copies {
        return;
    }
    if !has_device {
        let why = "the runtime sees no device (is HIP_VISIBLE_DEVICES right?)";
        report(Severity::Warning, format_args!("HIP runs unscheduled: {why}"));
        return;
    }
    let way = if tabled { "the runtime's own table" } else { "the names of its functions" };
    report(Severity::Info, format_args!("HIP is scheduled by {way}"));
    if copies > 1 {
        let what = format_args!("{copies} HIP runtimes in one process: each call goes to its caller's own");
        report(Severity::Warning, what);
    }
}

fn which(stream: Stream, default: NoStream) -> Which {
    match (stream.addr(), default) {
        (0, Legacy) | (1, _) => Which::Legacy,
        (0, PerThread) | (2, _) => Which::PerThread,
        _ => Which::Made(stream),
    }
}

/// A stream that is being captured is never held: what is launched there is recorded, not run.
fn is_captured(copy: usize, which: Which) -> bool {
    if !CAPTURES.is_capturing() {
        return false;
    }
    // The legacy stream cannot be captured, and to ask about it meanwhile is an error.
    let Some(stream) = which.capturable() else { return false };
    let mut status = 0;
    let code = vendor::STREAM_IS_CAPTURING.of(copy).map(|ask| {
        // SAFETY: the place has room for the answer.
        unsafe { ask(stream, &raw mut status) }
    });
    code != Some(vendor::SUCCESS) || status != 0
}

fn launch(call: Call, stream: Stream, default: NoStream) -> Code {
    let Some(runtime) = runtime() else { return call.forward() };
    let Call { copy, real } = call;
    let which = which(stream, default);
    forward_once(
        || marks::noting_failure(real),
        |go| {
            if is_captured(copy, which) || !has_device(copy) {
                return;
            }
            let Some(place) = Place::of(copy, which) else { return };
            let known =
                runtime.with(place.key, |tracked| tracked.map(|tracked| tracked.launch(go)).is_some());
            if !known && adopt(runtime, place) {
                runtime.with(place.key, |tracked| tracked.map(|tracked| tracked.launch(go)));
            }
        },
    )
}

/// A launch on several streams at once passes all their gates.
fn launch_all<T>(call: Call, list: *const T, count: c_uint, stream: fn(&T) -> Stream) -> Code {
    let Some(runtime) = runtime() else { return call.forward() };
    let Call { copy, real } = call;
    forward_once(
        || marks::noting_failure(real),
        |go| {
            if list.is_null() || !has_device(copy) || CAPTURES.is_capturing() {
                return;
            }
            let count = usize::try_from(count).unwrap_or(0);
            // SAFETY: the runtime is about to read the same list.
            let list = unsafe { std::slice::from_raw_parts(list, count) };
            let places = list.iter().filter_map(|one| Place::of(copy, which(stream(one), Legacy)));
            let mut places: Vec<Place> = places.collect();
            places.sort_unstable_by_key(|place| place.key);
            places.dedup_by_key(|place| place.key);
            let queue = |place: &Place| {
                runtime.with(place.key, |tracked| tracked.and_then(crate::tracked_queue::TrackedQueue::queue))
            };
            let queues = places.iter().filter_map(|place| {
                queue(place).or_else(|| adopt(runtime, *place).then(|| queue(place)).flatten())
            });
            pass_gates(&queues.collect::<Vec<_>>(), go);
        },
    )
}

fn synchronize(call: Call, stream: Stream, default: NoStream) -> Code {
    let Some(runtime) = runtime() else { return call.forward() };
    let Call { copy, real } = call;
    let which = which(stream, default);
    forward_once(real, |go| {
        let ready = matches!(which, Which::Made(_)) || has_device(copy);
        if let Some(place) = ready.then(|| Place::of(copy, which)).flatten() {
            runtime.with(place.key, |tracked| tracked.map(|tracked| tracked.synchronize(go)));
        }
    })
}

fn destroy(call: Call, stream: Stream) -> Code {
    forward_once(call.real, |_| {
        if let Some(runtime) = runtime() {
            runtime.untrack(stream.addr());
        }
    })
}

/// The streams of the thread's device end, and what was allocated there.
fn reset(call: Call) -> Code {
    let Call { copy, real } = call;
    forward_once(real, |_| {
        let Some(runtime) = existing_runtime() else { return };
        if let Some(device) = has_device(copy).then(|| Place::of(copy, Which::Legacy)).flatten() {
            // Its default stream has the name that is the device's.
            runtime.untrack_all_owned_by(device.key);
            device.number().into_iter().for_each(|number| stall::forget(copy, number));
        }
    })
}

fn begin_capture(call: Call) -> Code {
    // Counted first: nothing of ours may come into the stream once it is captured.
    CAPTURES.begin();
    let code = call.forward();
    if code != vendor::SUCCESS {
        CAPTURES.end();
    }
    code
}

fn end_capture(call: Call) -> Code {
    let code = call.forward();
    CAPTURES.end();
    code
}

/// For the C interface: what a stream is known by, and how to take control of it.
fn find(stream: Stream) -> Option<ApiQueue> {
    let which = match stream.addr() {
        0 | 1 => Which::Legacy,
        2 => Which::PerThread,
        _ => Which::Made(stream),
    };
    let place = Place::of(copy_of(which)?, which)?;
    Some(ApiQueue::new(place.key, move || HipStream::new(place)))
}

/// The copy that a stream belongs to: it alone knows it. A default stream says nothing about whose it is.
fn copy_of(which: Which) -> Option<usize> {
    let copies = copies::all(&hook::hipLaunchKernel);
    match (copies.as_slice(), which) {
        ([only], _) => Some(*only),
        (several, Which::Made(stream)) => {
            let mut several = several.iter().copied();
            several.find(|copy| hardware::device_of_stream(*copy, stream).is_some())
        }
        _ => None,
    }
}

#[cold]
fn adopt(runtime: &Runtime, place: Place) -> bool {
    runtime.track(place.key, || HipStream::new(place))
}
