//! The conformance suite of the core, on a stand-in for NVIDIA's driver. A command is a kernel that runs for a given time and
//! then increments a word.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::process::Command;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use xsched_core::conformance::Subject;
use xsched_core::{HwQueue as _, Level, Order};

use super::stream::CudaStream;
use super::vendor::{Code, Context, SUCCESS, Stream};
use crate::hooks::functions;
use crate::platforms::test_support::{ExclusiveDevice, build_standins, target_directory};

functions! {
    library super::LIBRARY;

    fn cuInit(c_uint) -> Code = INIT;
    fn cuDevicePrimaryCtxRetain(*mut Context, c_int) -> Code = RETAIN_CONTEXT;
    fn cuCtxSetCurrent(Context) -> Code = SET_CURRENT;
    fn cuModuleLoadData(*mut *mut c_void, *const c_char) -> Code = LOAD_MODULE;
    fn cuModuleGetFunction(*mut *mut c_void, *mut c_void, *const c_char) -> Code = GET_FUNCTION;
    fn cuMemHostAlloc(*mut *mut c_void, usize, c_uint) -> Code = ALLOCATE_HOST_MEMORY;
    fn cuStreamCreate(*mut Stream, c_uint) -> Code = CREATE_STREAM;
    fn cuLaunchKernel(*mut c_void, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Stream, *mut *mut c_void, *mut *mut c_void) -> Code = LAUNCH;
}

/// A pointer that the driver returned.
#[derive(Clone, Copy)]
pub(crate) struct Pointer(pub(crate) *mut c_void);
// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Pointer {}
// SAFETY: as above.
unsafe impl Sync for Pointer {}

/// Builds the stand-in and opens it.
fn open_library() -> *mut c_void {
    build_standins(&["xsched-standin-cuda"]);
    let device = std::env::temp_dir().join(format!("xsched-conformance-{}", std::process::id()));
    // SAFETY: called once, before the library that reads the variable is loaded; no other test changes the environment.
    unsafe { std::env::set_var("XSCHED_STANDIN_CUDA", &device) };
    let file = target_directory().join("libstandin_cuda.so");
    let path = std::ffi::CString::new(file.to_str().unwrap()).unwrap();
    // SAFETY: loading runs the stand-in's constructors only.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null(), "cannot open {path:?}");
    library
}

/// The context and the kernel, created once.
pub(crate) fn context_and_kernel() -> (Pointer, Pointer) {
    static CREATED: OnceLock<(Pointer, Pointer)> = OnceLock::new();
    *CREATED.get_or_init(|| {
        let library = open_library();
        let hook = &super::LIBRARY.hooks()[0];
        let (mut context, mut module, mut kernel) = (null_mut(), null_mut(), null_mut());
        // SAFETY: the handle is valid, the names are C strings, and each variable has room for a handle.
        unsafe {
            hook.install(crate::loader::real_dlsym()(library, hook.name.as_ptr()));
            crate::ioctl::replace_real(crate::loader::real_dlsym()(library, c"ioctl".as_ptr()));
            assert_eq!(INIT.get().unwrap()(0), SUCCESS);
            assert_eq!(RETAIN_CONTEXT.get().unwrap()(&raw mut context, 0), SUCCESS);
            assert_eq!(SET_CURRENT.get().unwrap()(context), SUCCESS);
            assert_eq!(LOAD_MODULE.get().unwrap()(&raw mut module, c"".as_ptr()), SUCCESS);
            assert_eq!(GET_FUNCTION.get().unwrap()(&raw mut kernel, module, c"add".as_ptr()), SUCCESS);
        }
        let file = std::env::var_os("XSCHED_STANDIN_CUDA").unwrap();
        // The stand-in has it open; other processes must not find it.
        let _ = std::fs::remove_file(file);
        (Pointer(context), Pointer(kernel))
    })
}

/// A device, and its queues by address: each queue's stream, and its count of finished kernels.
struct Device {
    queues: Mutex<HashMap<usize, (Pointer, &'static AtomicU32)>>,
    _exclusive: ExclusiveDevice,
}

impl Device {
    fn open() -> Self {
        let exclusive = ExclusiveDevice::acquire();
        context_and_kernel();
        Self { queues: Mutex::default(), _exclusive: exclusive }
    }

    fn make_current() {
        // SAFETY: the context is never released.
        assert_eq!(unsafe { SET_CURRENT.get().unwrap()(context_and_kernel().0.0) }, SUCCESS);
    }

    fn stream_of(&self, queue: &CudaStream) -> (Pointer, &'static AtomicU32) {
        self.queues.lock().unwrap()[&std::ptr::from_ref(queue).addr()]
    }
}

impl Subject for Device {
    type Queue = CudaStream;

    fn queue(&self) -> Arc<CudaStream> {
        const NON_BLOCKING: c_uint = 1;
        Self::make_current();
        let (mut stream, mut memory) = (null_mut(), null_mut());
        // SAFETY: `stream` and `memory` have room for a handle and an address.
        unsafe {
            assert_eq!(CREATE_STREAM.get().unwrap()(&raw mut stream, NON_BLOCKING), SUCCESS);
            let allocate = ALLOCATE_HOST_MEMORY.get().unwrap();
            assert_eq!(allocate(&raw mut memory, size_of::<AtomicU32>(), 0), SUCCESS);
        }
        // SAFETY: the memory is never freed; the device and this test access it as a word.
        let finished = unsafe { AtomicU32::from_ptr(memory.cast()) };
        finished.store(0, Ordering::SeqCst);
        let queue = CudaStream::new(stream, context_and_kernel().0.0).expect("the stream was just created");
        let queue = Arc::new(queue);
        self.queues.lock().unwrap().insert(Arc::as_ptr(&queue).addr(), (Pointer(stream), finished));
        queue
    }

    fn launch(&self, queue: &CudaStream, length: Duration) {
        Self::make_current();
        let (stream, finished) = self.stream_of(queue);
        let mut ns = u64::try_from(length.as_nanos()).unwrap();
        let (mut to, mut from) = (finished.as_ptr(), finished.as_ptr());
        let (mut delta, mut count) = (1_u32, 1_u64);
        let mut parameters: [*mut c_void; 5] = [
            (&raw mut ns).cast(),
            (&raw mut to).cast(),
            (&raw mut from).cast(),
            (&raw mut delta).cast(),
            (&raw mut count).cast(),
        ];
        // SAFETY: the kernel takes these parameters, which the driver copies; stream and word are never freed.
        let code = unsafe {
            let (kernel, parameters) = (context_and_kernel().1.0, parameters.as_mut_ptr());
            LAUNCH.get().unwrap()(kernel, 1, 1, 1, 1, 1, 1, 0, stream.0, parameters, null_mut())
        };
        assert_eq!(code, SUCCESS);
    }

    fn finished(&self, queue: &CudaStream) -> u64 {
        self.stream_of(queue).1.load(Ordering::SeqCst).into()
    }
}

/// A device and one of its queues; none if the machine does not offer level 3.
fn open_with_level_3() -> Option<(Device, Arc<CudaStream>)> {
    let device = Device::open();
    let queue = device.queue();
    queue.capabilities().cost(Level::Interrupt).is_ok().then_some((device, queue))
}

#[test]
fn new_stream_with_drain_order_does_not_resume_stopped_streams() {
    const LENGTH: Duration = Duration::from_millis(500);
    let Some((device, queue)) = open_with_level_3() else { return };
    device.launch(&queue, LENGTH);
    std::thread::sleep(LENGTH / 10);
    queue.preempt(Level::Interrupt).unwrap();
    let new = device.queue();
    // The core changes the order first and preempts afterwards.
    new.order_changed(Order::Drain);
    std::thread::sleep(2 * LENGTH);
    assert_eq!(device.finished(&queue), 0, "the stopped stream resumed");
    new.set_has_work(false);
    new.preempt(Level::Interrupt).unwrap();
    for stream in [&new, &queue] {
        stream.order_changed(Order::Free);
        stream.restore().unwrap();
    }
    queue.synchronize().unwrap();
    assert_eq!(device.finished(&queue), 1);
}

#[test]
fn evicted_stream_is_stopped_without_waiting_for_a_stop_point() {
    const LENGTH: Duration = Duration::from_millis(300);
    let Some((device, queue)) = open_with_level_3() else { return };
    let stop_time = |order| {
        let finished = device.finished(&queue);
        queue.set_has_work(true);
        device.launch(&queue, LENGTH);
        std::thread::sleep(LENGTH / 10);
        let begun = Instant::now();
        queue.order_changed(order);
        queue.preempt(Level::Interrupt).unwrap();
        let took = begun.elapsed();
        std::thread::sleep(2 * LENGTH);
        assert_eq!(device.finished(&queue), finished, "{order:?}: the kernel was not stopped");
        queue.order_changed(Order::Free);
        queue.restore().unwrap();
        queue.synchronize().unwrap();
        assert_eq!(device.finished(&queue), finished + 1);
        took
    };
    // The shortest of three attempts counts, as the machine may be busy.
    let shortest = |order| (0..3).map(|_| stop_time(order)).min().unwrap();
    let (evict, drain) = (shortest(Order::Evict), shortest(Order::Drain));
    assert!(2 * evict < drain, "evicted after {evict:?}, drained after {drain:?}");
}

#[test]
fn idle_stream_does_not_stall() {
    let device = Device::open();
    let queue = device.queue();
    for level in [Level::Deactivate, Level::Interrupt] {
        if queue.capabilities().cost(level).is_err() {
            continue;
        }
        // A marker that is placed after the program has waited for all work before it.
        queue.set_has_work(false);
        queue.preempt(level).unwrap();
        queue.mark().unwrap();
        queue.synchronize().unwrap();
        // With work, the stream stalls.
        let finished = device.finished(&queue);
        queue.set_has_work(true);
        queue.mark().unwrap();
        device.launch(&queue, Duration::ZERO);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(device.finished(&queue), finished, "the stream did not stall at {level}");
        queue.restore().unwrap();
        queue.synchronize().unwrap();
        assert_eq!(device.finished(&queue), finished + 1);
    }
}

#[test]
fn channels_of_an_idle_program_are_enabled_again() {
    const LENGTH: Duration = Duration::from_millis(500);
    let Some((device, queue)) = open_with_level_3() else { return };
    device.launch(&queue, LENGTH);
    queue.preempt(Level::Interrupt).unwrap();
    std::thread::sleep(2 * LENGTH);
    assert_eq!(device.finished(&queue), 0, "the kernel was not stopped");
    // As if the last kernel had completed just before its channels were disabled.
    queue.set_has_work(false);
    queue.synchronize().unwrap();
    assert_eq!(device.finished(&queue), 1);
    queue.restore().unwrap();
}

/// What the stand-in's machine lacks. The suite runs once more for each such machine, in a process of its own.
const LACKING: &str = "XSCHED_STANDIN_CUDA_WITHOUT";

#[test]
fn levels_match_the_machine() {
    let device = Device::open();
    let queue = device.queue();
    let offered = |level| queue.capabilities().cost(level).map(drop).map_err(str::to_owned);
    let lacking = std::env::var(LACKING).unwrap_or_default();
    assert_eq!(offered(Level::Deactivate).is_ok(), !lacking.contains("waits"), "{lacking}");
    assert_eq!(offered(Level::Interrupt).is_ok(), !lacking.contains("resource-manager"), "{lacking}");
}

#[test]
fn suite_passes_on_machines_with_fewer_levels() {
    if std::env::var_os(LACKING).is_some() {
        return;
    }
    // One after the other, because the checks are sensitive to load.
    for lacking in ["memory-waits,resource-manager", "resource-manager"] {
        let mut again = Command::new(std::env::current_exe().unwrap());
        let output = again.arg("cuda::conformance").env(LACKING, lacking).output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "without {lacking}: {stdout}");
        let is_check = |line: &str| line.contains("::suite::") && line.ends_with("... ok");
        assert!(stdout.lines().any(is_check), "the suite did not run: {stdout}");
    }
}

mod suite {
    use super::Device;
    xsched_core::conformance!(Device::open());
}
