//! The suite that every backend passes, on a stand-in for NVIDIA's driver. A command is a kernel that takes its time and
//! adds one to a word.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::process::Command;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use xsched_core::Level;
use xsched_core::conformance::Subject;

use super::hardware::CudaStream;
use super::vendor::{Code, Context, SUCCESS, Stream};
use crate::hooks::functions;

functions! {
    of super::LIBRARY;

    fn cuInit(c_uint) -> Code = INIT;
    fn cuDevicePrimaryCtxRetain(*mut Context, c_int) -> Code = CONTEXT;
    fn cuCtxSetCurrent(Context) -> Code = SET_CURRENT;
    fn cuModuleLoadData(*mut *mut c_void, *const c_char) -> Code = MODULE;
    fn cuModuleGetFunction(*mut *mut c_void, *mut c_void, *const c_char) -> Code = FUNCTION;
    fn cuMemHostAlloc(*mut *mut c_void, usize, c_uint) -> Code = MEMORY;
    fn cuStreamCreate(*mut Stream, c_uint) -> Code = STREAM;
    fn cuLaunchKernel(*mut c_void, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Stream, *mut *mut c_void, *mut *mut c_void) -> Code = LAUNCH;
}

/// What the vendor's functions answer with, from any thread.
#[derive(Clone, Copy)]
struct Pointer(*mut c_void);
// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Pointer {}
// SAFETY: as above.
unsafe impl Sync for Pointer {}

/// Builds the stand-in, as nothing links it, and opens it.
fn library() -> *mut c_void {
    let program = std::env::current_exe().unwrap();
    let built = program.parent().and_then(Path::parent).expect("tests lie in a directory of the profile's");
    let profile = built.file_name().filter(|name| *name != "debug").unwrap_or("dev".as_ref());
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "-p", "xsched-standin-cuda", "--profile"]).arg(profile);
    cargo.arg("--target-dir").arg(built.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR"));
    assert!(cargo.status().unwrap().success());
    let device = std::env::temp_dir().join(format!("xsched-conformance-{}", std::process::id()));
    // SAFETY: done once, before the library that reads it is there; nobody else here changes the environment.
    unsafe { std::env::set_var("XSCHED_STANDIN_CUDA", &device) };
    let path = std::ffi::CString::new(built.join("libstandin_cuda.so").to_str().unwrap()).unwrap();
    // SAFETY: the library's own beginning is all that runs.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null(), "cannot open {path:?}");
    library
}

/// The context and the kernel.
fn device() -> (Pointer, Pointer) {
    static DEVICE: OnceLock<(Pointer, Pointer)> = OnceLock::new();
    *DEVICE.get_or_init(|| {
        let library = library();
        let hook = &super::LIBRARY.hooks()[0];
        let (mut context, mut module, mut kernel) = (null_mut(), null_mut(), null_mut());
        // SAFETY: the handle is good and the names are C strings; places for one handle each.
        unsafe {
            hook.put_before(crate::loader::real_dlsym()(library, hook.name.as_ptr()));
            crate::ioctl::answer_with(crate::loader::real_dlsym()(library, c"ioctl".as_ptr()));
            assert_eq!(INIT.get().unwrap()(0), SUCCESS);
            assert_eq!(CONTEXT.get().unwrap()(&raw mut context, 0), SUCCESS);
            assert_eq!(SET_CURRENT.get().unwrap()(context), SUCCESS);
            assert_eq!(MODULE.get().unwrap()(&raw mut module, c"".as_ptr()), SUCCESS);
            assert_eq!(FUNCTION.get().unwrap()(&raw mut kernel, module, c"add".as_ptr()), SUCCESS);
        }
        let file = std::env::var_os("XSCHED_STANDIN_CUDA").unwrap();
        // It is open, and nobody else is to find it.
        let _ = std::fs::remove_file(file);
        (Pointer(context), Pointer(kernel))
    })
}

/// The right to use the device alone: what stops all of a process's streams tells nothing while others run.
struct Alone;

static TAKEN: Mutex<bool> = Mutex::new(false);
static FREED: Condvar = Condvar::new();

impl Alone {
    fn take() -> Self {
        *FREED.wait_while(TAKEN.lock().unwrap(), |taken| *taken).unwrap() = true;
        Self
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap() = false;
        FREED.notify_one();
    }
}

/// A device, and for each queue, by where it lies, its stream and how many kernels have finished.
struct Device {
    queues: Mutex<HashMap<usize, (Pointer, &'static AtomicU32)>>,
    _alone: Alone,
}

impl Device {
    fn open() -> Self {
        let alone = Alone::take();
        device();
        Self { queues: Mutex::default(), _alone: alone }
    }

    fn make_current() {
        // SAFETY: a context that is never released.
        assert_eq!(unsafe { SET_CURRENT.get().unwrap()(device().0.0) }, SUCCESS);
    }

    fn known(&self, queue: &CudaStream) -> (Pointer, &'static AtomicU32) {
        self.queues.lock().unwrap()[&std::ptr::from_ref(queue).addr()]
    }
}

impl Subject for Device {
    type Queue = CudaStream;

    fn queue(&self) -> Arc<CudaStream> {
        const NON_BLOCKING: c_uint = 1;
        Self::make_current();
        let (mut stream, mut memory) = (null_mut(), null_mut());
        // SAFETY: places for one handle and one address.
        unsafe {
            assert_eq!(STREAM.get().unwrap()(&raw mut stream, NON_BLOCKING), SUCCESS);
            assert_eq!(MEMORY.get().unwrap()(&raw mut memory, size_of::<AtomicU32>(), 0), SUCCESS);
        }
        // SAFETY: memory that is never freed, and that the device and we use as a word.
        let finished = unsafe { AtomicU32::from_ptr(memory.cast()) };
        finished.store(0, Ordering::SeqCst);
        let queue = Arc::new(CudaStream::new(stream, device().0.0).expect("a stream that was just made"));
        self.queues.lock().unwrap().insert(Arc::as_ptr(&queue).addr(), (Pointer(stream), finished));
        queue
    }

    fn launch(&self, queue: &CudaStream, length: Duration) {
        Self::make_current();
        let (stream, finished) = self.known(queue);
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
        // SAFETY: the kernel takes these parameters, which the driver copies; the stream and the word are never freed.
        let code = unsafe {
            let parameters = parameters.as_mut_ptr();
            LAUNCH.get().unwrap()(device().1.0, 1, 1, 1, 1, 1, 1, 0, stream.0, parameters, null_mut())
        };
        assert_eq!(code, SUCCESS);
    }

    fn finished(&self, queue: &CudaStream) -> u64 {
        self.known(queue).1.load(Ordering::SeqCst).into()
    }
}

/// A device and a queue of it, if running kernels can be interrupted on this machine.
fn with_interrupts() -> Option<(Device, Arc<CudaStream>)> {
    use xsched_core::HwQueue as _;
    let device = Device::open();
    let queue = device.queue();
    queue.capabilities().cost(Level::Interrupt).is_ok().then_some((device, queue))
}

#[test]
fn a_stream_that_comes_while_all_are_stopped_does_not_let_them_go_on() {
    use xsched_core::{HwQueue as _, Order};
    const LENGTH: Duration = Duration::from_millis(500);
    let Some((device, queue)) = with_interrupts() else { return };
    device.launch(&queue, LENGTH);
    std::thread::sleep(LENGTH / 10);
    queue.preempt(Level::Interrupt).unwrap();
    let late = device.queue();
    // As the core has it: first the order, then what comes of it.
    late.order_changed(Order::Drain);
    std::thread::sleep(2 * LENGTH);
    assert_eq!(device.finished(&queue), 0, "it went on");
    late.set_has_work(false);
    late.preempt(Level::Interrupt).unwrap();
    for one in [&late, &queue] {
        one.order_changed(Order::Free);
        one.restore().unwrap();
    }
    queue.synchronize().unwrap();
    assert_eq!(device.finished(&queue), 1);
}

#[test]
fn who_is_frozen_is_not_waited_for() {
    use xsched_core::{HwQueue as _, Order};
    const LENGTH: Duration = Duration::from_millis(300);
    let Some((device, queue)) = with_interrupts() else { return };
    let took = |order| {
        let finished = device.finished(&queue);
        queue.set_has_work(true);
        device.launch(&queue, LENGTH);
        std::thread::sleep(LENGTH / 10);
        let begun = Instant::now();
        queue.order_changed(order);
        queue.preempt(Level::Interrupt).unwrap();
        let took = begun.elapsed();
        std::thread::sleep(2 * LENGTH);
        assert_eq!(device.finished(&queue), finished, "{order:?}: it does not stand still");
        queue.order_changed(Order::Free);
        queue.restore().unwrap();
        queue.synchronize().unwrap();
        assert_eq!(device.finished(&queue), finished + 1);
        took
    };
    // On a busy machine either may take long once.
    let least = |order| (0..3).map(|_| took(order)).min().unwrap();
    let (freeze, stop) = (least(Order::Evict), least(Order::Drain));
    assert!(2 * freeze < stop, "frozen after {freeze:?}, stopped after {stop:?}");
}

#[test]
fn a_stream_that_has_nothing_to_do_stands_nowhere() {
    use xsched_core::HwQueue as _;
    let device = Device::open();
    let queue = device.queue();
    for level in [Level::Deactivate, Level::Interrupt] {
        if queue.capabilities().cost(level).is_err() {
            continue;
        }
        // One that was placed when the program has just waited for what was before it.
        queue.set_has_work(false);
        queue.preempt(level).unwrap();
        queue.mark().unwrap();
        queue.synchronize().unwrap();
        // Now there is something.
        let finished = device.finished(&queue);
        queue.set_has_work(true);
        queue.mark().unwrap();
        device.launch(&queue, Duration::ZERO);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(device.finished(&queue), finished, "it does not stand still at {level}");
        queue.restore().unwrap();
        queue.synchronize().unwrap();
        assert_eq!(device.finished(&queue), finished + 1);
    }
}

#[test]
fn channels_of_a_program_that_has_nothing_to_do_are_not_disabled() {
    use xsched_core::HwQueue as _;
    const LENGTH: Duration = Duration::from_millis(500);
    let Some((device, queue)) = with_interrupts() else { return };
    device.launch(&queue, LENGTH);
    queue.preempt(Level::Interrupt).unwrap();
    std::thread::sleep(2 * LENGTH);
    assert_eq!(device.finished(&queue), 0, "it does not stand still");
    // It came to its end at the very moment, so to speak.
    queue.set_has_work(false);
    queue.synchronize().unwrap();
    assert_eq!(device.finished(&queue), 1);
    queue.restore().unwrap();
}

/// What a machine lacks that the suite is run for once more, each in a process of its own.
const LACKING: &str = "XSCHED_STANDIN_CUDA_WITHOUT";

#[test]
fn the_levels_are_those_of_the_machine() {
    use xsched_core::HwQueue as _;
    let device = Device::open();
    let queue = device.queue();
    let offered = |level| queue.capabilities().cost(level).map(drop).map_err(str::to_owned);
    let lacking = std::env::var(LACKING).unwrap_or_default();
    assert_eq!(offered(Level::Deactivate).is_ok(), !lacking.contains("waits"), "{lacking}");
    assert_eq!(offered(Level::Interrupt).is_ok(), !lacking.contains("resource-manager"), "{lacking}");
}

#[test]
fn the_suite_passes_on_machines_that_lack_things() {
    if std::env::var_os(LACKING).is_some() {
        return;
    }
    // One after the other: the checks are sensitive to how busy the machine is.
    for lacking in ["memory-waits,resource-manager", "resource-manager"] {
        let mut again = Command::new(std::env::current_exe().unwrap());
        let output = again.arg("cuda::conformance").env(LACKING, lacking).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "without {lacking}: {said}");
        assert!(said.contains("a_storm_of_preemptions_loses_nothing ... ok"), "{said}");
    }
}

mod suite {
    use super::Device;
    xsched_core::conformance!(Device::open());
}
