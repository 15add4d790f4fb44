//! The AMD platform: `libamdhip64.so`.
//!
//! Three rules, each learnt from programs that failed without it (`docs/amd.md`):
//! 1. This library never opens a runtime. A call always goes to the copy of the runtime that its caller uses
//!    ([`runtime_copies`]).
//! 2. A launch happens at once, on the launching thread.
//! 3. The last error of a thread belongs to the program. On a program's thread only calls that succeed are made, and only
//!    before the program's own call or after that has succeeded. All other calls are made on [`runtime_thread`].
//!
//! * [`hook_macro`]: how hooks are declared. [`look_up`]: hooks by name. [`vendor`]: the runtime's functions and types.
//! * [`memory_operations`]: copies and fills. [`memory`]: device memory, which is counted and limited.
//! * [`api_table`]: interception through the runtime's API table. [`hsa`]: `ROCr`, for programs that use it without HIP.
//! * [`stream`]: a stream as a hardware queue. [`event_markers`]: the markers placed in it.
//! * [`preemption`], [`device_queues`]: the streams of a device, which are preempted together: by the kernel driver
//!   ([`kfd`]) or at [`stall_points`]. [`compute_unit_mask`]: compute units that they leave unused.

mod api;
mod api_table;
mod compute_unit_mask;
#[cfg(test)]
mod conformance;
mod device_queues;
mod event_markers;
mod hook_macro;
mod hsa;
mod kfd;
mod look_up;
mod marked_stream;
mod memory;
mod memory_operations;
mod preemption;
mod runtime_copies;
mod runtime_thread;
mod stall_points;
mod stream;
mod vendor;

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use xsched_interpose::{HookDomain, forward_once, run_isolated};
use xsched_ipc::report::{Severity, report};
use xsched_ipc::{KernelName, ScheduledQueue};

use crate::ioctl::IoctlObserver;
use crate::loader::VendorIdentity;
use crate::platforms::Platform;
use crate::queue_hooks::{forward_kernel, pass_gates};
use crate::runtime::{Runtime, existing_runtime, runtime};
use crate::tracked_queue::ApiQueue;
use event_markers::CAPTURES;
use look_up::{HipHooks, get_proc_address};
use runtime_copies::Hook;
use stream::{HipStream, StreamId, StreamKind};
use vendor::{Code, Dim3, Event, FunctionLaunchParams, LaunchConfig, LaunchParams, Stream};

/// AMD's runtime. `chipStar` exports HIP's functions, too, and implements them with OpenCL.
static VENDOR: VendorIdentity = VendorIdentity {
    exports: &[c"__hipRegisterFatBinary", c"hipApiName", c"hipKernelNameRef", c"hipGetDeviceCount"],
    files: &["libamdhip64.so"],
};

/// The hooks of HIP and of `ROCr` below it: a launch through both passes one gate.
const DOMAIN: HookDomain = crate::platforms::hook_domain(module_path!());

/// The platform, for the registry.
pub(crate) static PLATFORM: Platform = Platform {
    vendor: &VENDOR,
    hooks: &[&HipHooks],
    bypasses_hook: None,
    observe_ioctl: Some(&IoctlObserver { before: Some(kfd::before_ioctl), after: kfd::after_ioctl }),
    at_exit: Some(at_exit),
    #[cfg(test)]
    header: &api::HEADER,
};

/// The default stream that a null stream denotes in a function.
#[derive(Clone, Copy)]
enum NullStream {
    /// The device's legacy default stream, which waits for all other streams of the device.
    Legacy,
    /// The calling thread's own default stream.
    PerThread,
}
use NullStream::{Legacy, PerThread};

/// A call of a hooked function.
struct Call<'a> {
    /// The copy of the runtime that the caller uses.
    copy: usize,
    /// The real function with the caller's arguments.
    real: &'a mut dyn FnMut() -> Code,
}

impl Call<'_> {
    /// Calls the real function and nothing else.
    fn forward(self) -> Code {
        (self.real)()
    }
}

hook_macro::hooks! {
    [214] fn hipLaunchKernel(f: *const c_void, grid: Dim3, block: Dim3, args: *mut c_void, shared: usize, stream: Stream)
        = |call, f, _, _, _, _, stream| launch(call, Kernel::Host(f), stream, Legacy);
    [419] fn hipLaunchKernel_spt(f: *const c_void, grid: Dim3, block: Dim3, args: *mut c_void, shared: usize, stream: Stream)
        = |call, f, _, _, _, _, stream| launch(call, Kernel::Host(f), stream, PerThread);
    [84] fn hipExtLaunchKernel(f: *const c_void, grid: Dim3, block: Dim3, args: *mut c_void, shared: usize, stream: Stream, start: Event, stop: Event, flags: c_int)
        = |call, f, _, _, _, _, stream, _, _, _| launch(call, Kernel::Host(f), stream, Legacy);
    [474] fn hipLaunchKernelExC(config: *const LaunchConfig, f: *const c_void, args: *mut c_void)
        = |call, config, f, _| launch(call, Kernel::Host(f), config_stream(config), Legacy);
    [475] fn hipDrvLaunchKernelEx(config: *const LaunchConfig, f: *mut c_void, args: *mut c_void, extra: *mut c_void)
        = |call, config, f, _, _| launch(call, Kernel::Function(f), config_stream(config), Legacy);
    [308] fn hipModuleLaunchKernel(f: *mut c_void, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Stream, args: *mut c_void, extra: *mut c_void)
        = |call, f, _, _, _, _, _, _, _, stream, _, _| launch(call, Kernel::Function(f), stream, Legacy);
    [388] fn hipExtModuleLaunchKernel(f: *mut c_void, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: usize, stream: Stream, args: *mut c_void, extra: *mut c_void, start: Event, stop: Event, flags: u32)
        = |call, f, _, _, _, _, _, _, _, stream, _, _, _, _, _| launch(call, Kernel::Function(f), stream, Legacy);
    [none] fn _Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_j(f: *mut c_void, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: usize, stream: Stream, args: *mut c_void, extra: *mut c_void, start: Event, stop: Event, flags: u32)
        = |call, f, _, _, _, _, _, _, _, stream, _, _, _, _, _| launch(call, Kernel::Function(f), stream, Legacy);
    [389] fn hipHccModuleLaunchKernel(f: *mut c_void, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: usize, stream: Stream, args: *mut c_void, extra: *mut c_void, start: Event, stop: Event)
        = |call, f, _, _, _, _, _, _, _, stream, _, _, _, _| launch(call, Kernel::Function(f), stream, Legacy);
    [none] fn _Z24hipHccModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_(f: *mut c_void, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: usize, stream: Stream, args: *mut c_void, extra: *mut c_void, start: Event, stop: Event)
        = |call, f, _, _, _, _, _, _, _, stream, _, _, _, _| launch(call, Kernel::Function(f), stream, Legacy);
    [211] fn hipLaunchCooperativeKernel(f: *const c_void, grid: Dim3, block: Dim3, args: *mut c_void, shared: c_uint, stream: Stream)
        = |call, f, _, _, _, _, stream| launch(call, Kernel::Host(f), stream, Legacy);
    [418] fn hipLaunchCooperativeKernel_spt(f: *const c_void, grid: Dim3, block: Dim3, args: *mut c_void, shared: u32, stream: Stream)
        = |call, f, _, _, _, _, stream| launch(call, Kernel::Host(f), stream, PerThread);
    [306] fn hipModuleLaunchCooperativeKernel(f: *mut c_void, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Stream, args: *mut c_void)
        = |call, f, _, _, _, _, _, _, _, stream, _| launch(call, Kernel::Function(f), stream, Legacy);
    [212] fn hipLaunchCooperativeKernelMultiDevice(list: *const LaunchParams, count: c_int, flags: c_uint)
        = |call, list, count: c_int, _| launch_all(call, list, count.cast_unsigned(), |one: &LaunchParams| one.stream);
    [85] fn hipExtLaunchMultiKernelMultiDevice(list: *const LaunchParams, count: c_int, flags: c_uint)
        = |call, list, count: c_int, _| launch_all(call, list, count.cast_unsigned(), |one: &LaunchParams| one.stream);
    [307] fn hipModuleLaunchCooperativeKernelMultiDevice(list: *const FunctionLaunchParams, count: c_uint, flags: c_uint)
        = |call, list, count, _| launch_all(call, list, count, |one: &FunctionLaunchParams| one.stream);
    [166] fn hipGraphLaunch(graph: *mut c_void, stream: Stream) = |call, _, stream| launch_graph(call, stream, Legacy);
    [420] fn hipGraphLaunch_spt(graph: *mut c_void, stream: Stream) = |call, _, stream| launch_graph(call, stream, PerThread);

    // The oldest form of a launch names its stream in a separate call.
    [13] fn hipConfigureCall(grid: Dim3, block: Dim3, shared: usize, stream: Stream)
        = |call: Call, _, _, _, stream| { CONFIGURED.set(stream); call.forward() };
    [210] fn hipLaunchByPtr(f: *const c_void) = |call, f| launch(call, Kernel::Host(f), CONFIGURED.get(), Legacy);

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
        = |call, symbol, found, _, flags, _| get_proc_address(call, symbol, found, flags & PER_THREAD_FUNCTIONS != 0);
    [506] fn hipGetProcAddress_spt(symbol: *const c_char, found: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int)
        = |call, symbol, found, _, _, _| get_proc_address(call, symbol, found, true);
    [491] fn hipGetDriverEntryPoint(symbol: *const c_char, found: *mut *mut c_void, flags: u64, status: *mut c_int)
        = |call, symbol, found, flags, _| get_proc_address(call, symbol, found, flags & PER_THREAD_FUNCTIONS != 0);
    [492] fn hipGetDriverEntryPoint_spt(symbol: *const c_char, found: *mut *mut c_void, flags: u64, status: *mut c_int)
        = |call, symbol, found, _, _| get_proc_address(call, symbol, found, true);
}

/// All hooks.
fn hooks() -> impl Iterator<Item = &'static Hook> {
    HOOKS.iter().chain(memory_operations::HOOKS).chain(memory::HOOKS).copied()
}

/// The flag that selects functions for which a null stream is the calling thread's default stream.
const PER_THREAD_FUNCTIONS: u64 = 2;

thread_local! {
    /// The stream of the next [`hipLaunchByPtr`] of this thread.
    static CONFIGURED: Cell<Stream> = const { Cell::new(std::ptr::null_mut()) };
}

/// Called by the exports if the process has no runtime.
extern "C" fn missing() -> Code {
    vendor::NOT_INITIALIZED
}

/// How long an exiting process waits for a thread that places a marker.
const MARKER_EXIT_TIMEOUT: Duration = Duration::from_millis(100);

/// Resumes the process's queues, because exit handlers may wait for them. Makes no more calls, neither on the watcher's thread
/// nor on the runtime thread: the runtime's own exit handlers free what they would use.
fn at_exit() {
    device_queues::release_all();
    CAPTURES.stop_placing(MARKER_EXIT_TIMEOUT);
    runtime_thread::shut_down();
}

fn config_stream(config: *const LaunchConfig) -> Stream {
    // SAFETY: the program passes the same pointer to the runtime, which reads a launch configuration there.
    if config.is_null() { std::ptr::null_mut() } else { unsafe { (*config).stream } }
}

/// Whether a copy of the runtime has a device. Determined once, on the runtime thread, because the call may fail.
fn has_device(copy: usize) -> bool {
    const YES: u8 = 1;
    const NO: u8 = 2;
    static KNOWN: [AtomicU8; runtime_copies::MAX_COPIES] =
        [const { AtomicU8::new(0) }; runtime_copies::MAX_COPIES];
    match KNOWN[copy].load(Ordering::Acquire) {
        YES => true,
        NO => false,
        _ => {
            runtime_copies::keep_loaded(copy);
            if let Some(name) = vendor::missing_function(copy) {
                KNOWN[copy].store(NO, Ordering::Release);
                let name = name.to_string_lossy();
                let line =
                    format_args!("HIP runs unscheduled: the runtime lacks {name} (is ROCm older than 5.2?)");
                report(Severity::Warning, line);
                return false;
            }
            let answer = runtime_thread::call(move || {
                let mut count = 0;
                // SAFETY: `count` has room for the result.
                let code = unsafe { vendor::DEVICE_COUNT.of(copy)?(&raw mut count) };
                (code == vendor::SUCCESS && count > 0).then_some(count)
            });
            // Without an answer the next launch tries again.
            let Some(count) = answer else { return false };
            let has_device = count.is_some();
            KNOWN[copy].store(if has_device { YES } else { NO }, Ordering::Release);
            report_interception(has_device);
            has_device
        }
    }
}

/// Reports how HIP is intercepted, once for each number of copies.
fn report_interception(has_device: bool) {
    static REPORTED_COPIES: AtomicU8 = AtomicU8::new(0);
    let (copies, by_table) = runtime_copies::count();
    let reported = REPORTED_COPIES.fetch_max(u8::try_from(copies).unwrap_or(u8::MAX), Ordering::AcqRel);
    if usize::from(reported) >= copies {
        return;
    }
    if !has_device {
        let why = "the runtime sees no device (is HIP_VISIBLE_DEVICES right?)";
        report(Severity::Warning, format_args!("HIP runs unscheduled: {why}"));
        return;
    }
    let way = if by_table { "the runtime's own table" } else { "the names of its functions" };
    report(Severity::Info, format_args!("HIP is scheduled by {way}"));
    if copies > 1 {
        let line = format_args!("{copies} HIP runtimes in one process: each call goes to its caller's own");
        report(Severity::Warning, line);
    }
}

fn stream_kind(stream: Stream, null: NullStream) -> StreamKind {
    match (stream.addr(), null) {
        (0, Legacy) | (1, _) => StreamKind::Legacy,
        (0, PerThread) | (2, _) => StreamKind::PerThread,
        _ => StreamKind::Created(stream),
    }
}

/// Whether launches on a stream are recorded into a graph. They are never held, because they do not run.
fn is_captured(copy: usize, kind: StreamKind) -> bool {
    if !CAPTURES.is_capturing() {
        return false;
    }
    // The legacy stream cannot be captured, and querying it during a capture is an error.
    let Some(stream) = kind.capturable() else { return false };
    let mut status = 0;
    let code = vendor::STREAM_IS_CAPTURING.of(copy).map(|is_capturing| {
        // SAFETY: `status` has room for the result; the stream is the one that the program passed to the runtime.
        unsafe { is_capturing(stream, &raw mut status) }
    });
    code != Some(vendor::SUCCESS) || status != 0
}

/// What a launch names the kernel by.
#[derive(Clone, Copy)]
enum Kernel {
    /// The address of the program's host function.
    Host(*const c_void),
    /// A function of a module.
    Function(*mut c_void),
}

impl Kernel {
    /// The name of a kernel that was launched. The two functions of the runtime return a pointer and set no error.
    #[cold]
    fn name(self, copy: usize, stream: Stream) -> Option<KernelName> {
        // SAFETY: the runtime has just accepted the kernel and the stream.
        let name = unsafe {
            match self {
                Self::Host(function) => vendor::NAME_BY_POINTER.of(copy)?(function, stream),
                Self::Function(function) => vendor::NAME_OF_FUNCTION.of(copy)?(function),
            }
        };
        // SAFETY: the runtime returns null, or a C string that lives as long as the kernel.
        (!name.is_null()).then(|| KernelName::new(unsafe { CStr::from_ptr(name) }.to_bytes()))
    }
}

fn launch(call: Call, kernel: Kernel, stream: Stream, null: NullStream) -> Code {
    let copy = call.copy;
    let name = || kernel.name(copy, stream);
    launch_on(call, stream, null, name, |queue, call, name| queue.launch_kernel(call, name))
}

/// The runtime writes the packets of a graph one by one.
fn launch_graph(call: Call, stream: Stream, null: NullStream) -> Code {
    launch_on(call, stream, null, || None, |queue, call, _| queue.launch_path().launch_large(call))
}

fn launch_on(
    call: Call,
    stream: Stream,
    null: NullStream,
    name: impl FnOnce() -> Option<KernelName>,
    pass_gate: impl FnOnce(&ScheduledQueue, &mut dyn FnMut(), &mut dyn FnMut() -> Option<KernelName>),
) -> Code {
    let Some(runtime) = runtime() else { return call.forward() };
    let Call { copy, real } = call;
    let kind = stream_kind(stream, null);
    forward_kernel(
        || event_markers::recording_failure(real),
        name,
        |call, name| {
            if is_captured(copy, kind) || !has_device(copy) {
                return;
            }
            let Some(stream) = StreamId::resolve(copy, kind) else { return };
            let queue = runtime.queue_or_track(stream.key, || track(runtime, stream));
            if let Some(queue) = queue.as_ref().and_then(|queue| queue.scheduled()) {
                pass_gate(queue, call, name);
            }
        },
    )
}

/// A launch on several streams passes the gates of all of them.
fn launch_all<T>(call: Call, list: *const T, count: c_uint, stream: fn(&T) -> Stream) -> Code {
    let Some(runtime) = runtime() else { return call.forward() };
    let Call { copy, real } = call;
    forward_once(
        || event_markers::recording_failure(real),
        |call| {
            if list.is_null() || !has_device(copy) || CAPTURES.is_capturing() {
                return;
            }
            let count = usize::try_from(count).unwrap_or(0);
            // SAFETY: the program passes the same list to the runtime, which reads `count` elements there.
            let list = unsafe { std::slice::from_raw_parts(list, count) };
            let streams =
                list.iter().filter_map(|one| StreamId::resolve(copy, stream_kind(stream(one), Legacy)));
            let mut streams: Vec<StreamId> = streams.collect();
            streams.sort_unstable_by_key(|stream| stream.key);
            streams.dedup_by_key(|stream| stream.key);
            let queue = |stream: &StreamId| runtime.scheduled_queue(stream.key);
            let queues = streams.iter().filter_map(|stream| {
                queue(stream).or_else(|| track(runtime, *stream).then(|| queue(stream)).flatten())
            });
            pass_gates(&queues.collect::<Vec<_>>(), call);
        },
    )
}

fn synchronize(call: Call, stream: Stream, null: NullStream) -> Code {
    let Some(runtime) = runtime() else { return call.forward() };
    let Call { copy, real } = call;
    let kind = stream_kind(stream, null);
    forward_once(real, |call| {
        let can_resolve = matches!(kind, StreamKind::Created(_)) || has_device(copy);
        if let Some(stream) = can_resolve.then(|| StreamId::resolve(copy, kind)).flatten() {
            let queue = runtime.queue(stream.key);
            if let Some(path) = queue.as_ref().and_then(|queue| queue.launch_path()) {
                path.synchronized(call);
            }
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

/// `hipDeviceReset` destroys the streams of the calling thread's device and frees its memory.
fn reset(call: Call) -> Code {
    let Call { copy, real } = call;
    let device = Cell::new(None);
    let code = forward_once(real, |_| {
        let runtime = existing_runtime();
        if runtime.is_none() && !memory::has_counted() {
            return;
        }
        if let Some(stream) = legacy_stream(copy) {
            // The key of the legacy stream also identifies the device.
            device.set(Some(stream.key));
            if let Some(runtime) = runtime {
                runtime.untrack_all_owned_by(stream.key);
            }
            stream.ordinal().into_iter().for_each(|ordinal| stall_points::forget_word(copy, ordinal));
        }
    });
    if code == vendor::SUCCESS {
        run_isolated(|| device.get().into_iter().for_each(memory::release_owned_by));
    }
    code
}

/// The legacy default stream of the calling thread's device.
fn legacy_stream(copy: usize) -> Option<StreamId> {
    has_device(copy).then(|| StreamId::resolve(copy, StreamKind::Legacy)).flatten()
}

fn begin_capture(call: Call) -> Code {
    // Counted first: no marker may be placed in the stream once it is captured.
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

/// A stream that the program passes to the C interface.
fn api_queue(stream: Stream) -> Option<ApiQueue> {
    let kind = stream_kind(stream, Legacy);
    let stream = StreamId::resolve(copy_of(kind)?, kind)?;
    Some(ApiQueue::new(stream.key, move || HipStream::new(stream)))
}

/// The copy of the runtime that knows a stream. None for a default stream if there are several copies.
fn copy_of(kind: StreamKind) -> Option<usize> {
    let copies = runtime_copies::all(&hook::hipLaunchKernel);
    match (copies.as_slice(), kind) {
        ([only], _) => Some(*only),
        (several, StreamKind::Created(handle)) => {
            let mut several = several.iter().copied();
            several.find(|copy| stream::device_of_stream(*copy, handle).is_some())
        }
        _ => None,
    }
}

#[cold]
fn track(runtime: &Runtime, stream: StreamId) -> bool {
    runtime.track(stream.key, || HipStream::new(stream))
}
