//! The conformance suite of the core, on a stand-in for AMD's runtime. A command is a kernel that runs for a given time,
//! followed by an event that reports its completion.

use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use xsched_core::conformance::Subject;
use xsched_core::{HwQueue as _, Level};

use super::runtime_copies;
use super::stream::{HipStream, StreamId, StreamKind};
use super::vendor::{Code, Dim3, Event, SUCCESS, Stream};
use crate::platforms::test_support::{ExclusiveDevice, build_standins, target_directory};

/// The variable that names the machine. The suite runs once more for each machine below, in a process of its own.
const MACHINE: &str = "HIP_STANDIN_MACHINE";
/// A machine with the kernel driver.
pub(super) const WITH_DRIVER: &str = "driver";
/// A machine whose streams can wait for memory.
const WITH_STALL_POINTS: &str = "stalls";

pub(super) fn machine() -> String {
    std::env::var(MACHINE).unwrap_or_default()
}

fn build() {
    static BUILT: std::sync::Once = std::sync::Once::new();
    BUILT.call_once(|| build_standins(&["hip-standin", "rocr-standin", "kfd-standin"]));
}

/// Links the stand-in for a runtime, `hip` or `rocr`, for this process. Returns its path.
pub(super) fn link_runtime(standin: &str) -> PathBuf {
    build();
    let file = target_directory().join(format!("conformance-{}-{standin}.so", std::process::id()));
    let link = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../standins").join(standin).join("link.sh");
    let mut command = Command::new(link);
    command.arg(target_directory().join(format!("lib{standin}_standin.a"))).arg(&file);
    assert!(command.status().unwrap().success());
    file
}

/// The runtime's functions that a program calls.
struct Runtime {
    copy: usize,
    kernel: *const c_void,
    launch: Launch,
    create_stream: CreateStream,
    create_event: CreateEvent,
    record: Record,
    query: Query,
}

type Launch = unsafe extern "C" fn(*const c_void, Dim3, Dim3, *mut *mut c_void, usize, Stream) -> Code;
type CreateStream = unsafe extern "C" fn(*mut Stream, c_uint) -> Code;
type CreateEvent = unsafe extern "C" fn(*mut Event) -> Code;
type Record = unsafe extern "C" fn(Event, Stream) -> Code;
type Query = unsafe extern "C" fn(Event) -> Code;
type Register = unsafe extern "C" fn(*mut c_void, *const c_void, *const c_char) -> c_int;

// SAFETY: the runtime's functions may be called from any thread, and the kernel is only an address.
unsafe impl Send for Runtime {}
// SAFETY: as above.
unsafe impl Sync for Runtime {}

fn open() -> &'static Runtime {
    static OPENED: OnceLock<Runtime> = OnceLock::new();
    static KERNEL: u8 = 0;
    OPENED.get_or_init(|| {
        let file = link_runtime("hip");
        let path = CString::new(file.to_str().unwrap()).unwrap();
        // SAFETY: loading runs the stand-in's constructors only.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "cannot open {path:?}");
        // The library is mapped; other processes must not find the file.
        let _ = std::fs::remove_file(file);
        let find = |name: &CStr| {
            // SAFETY: the handle is valid, and the name is a C string.
            let found = unsafe { crate::loader::real_dlsym()(library, name.as_ptr()) };
            assert!(!found.is_null(), "{name:?}");
            found
        };
        // Registers the copy, as a look-up by the program does.
        let hook = super::look_up::hook(c"hipLaunchKernel").expect("it is hooked");
        runtime_copies::put_before(hook, find(hook.name));
        let kernel: *const c_void = (&raw const KERNEL).cast();
        // SAFETY: the types are those of the vendor's header; the stand-in ignores the remaining arguments of `register`.
        unsafe {
            let register = std::mem::transmute::<*mut c_void, Register>(find(c"__hipRegisterFunction"));
            register(null_mut(), kernel, c"spin".as_ptr());
            Runtime {
                copy: *runtime_copies::all(hook).first().expect("a copy was just opened"),
                kernel,
                launch: std::mem::transmute::<*mut c_void, Launch>(find(c"hipLaunchKernel")),
                create_stream: std::mem::transmute::<*mut c_void, CreateStream>(find(
                    c"hipStreamCreateWithFlags",
                )),
                create_event: std::mem::transmute::<*mut c_void, CreateEvent>(find(c"hipEventCreate")),
                record: std::mem::transmute::<*mut c_void, Record>(find(c"hipEventRecord")),
                query: std::mem::transmute::<*mut c_void, Query>(find(c"hipEventQuery")),
            }
        }
    })
}

/// A queue's stream, its number of finished kernels, and the events after the others.
struct QueueState {
    stream: usize,
    finished: u64,
    events: VecDeque<usize>,
}

/// A device, and its queues by address.
struct Device {
    queues: Mutex<HashMap<usize, QueueState>>,
    _exclusive: ExclusiveDevice,
}

impl Device {
    fn open() -> Self {
        let exclusive = ExclusiveDevice::acquire();
        open();
        Self { queues: Mutex::default(), _exclusive: exclusive }
    }
}

impl Subject for Device {
    type Queue = HipStream;

    fn queue(&self) -> Arc<HipStream> {
        const NON_BLOCKING: c_uint = 1;
        let mut stream = null_mut();
        // SAFETY: `stream` has room for a handle.
        assert_eq!(unsafe { (open().create_stream)(&raw mut stream, NON_BLOCKING) }, SUCCESS);
        let id = StreamId::resolve(open().copy, StreamKind::Created(stream)).expect("the handle is the key");
        let queue = Arc::new(HipStream::new(id).expect("the stream was just created"));
        let (stream, events) = (stream.expose_provenance(), VecDeque::default());
        let state = QueueState { stream, finished: 0, events };
        self.queues.lock().unwrap().insert(Arc::as_ptr(&queue).addr(), state);
        queue
    }

    fn launch(&self, queue: &HipStream, length: Duration) {
        const ONE: Dim3 = Dim3::ONE;
        let mut queues = self.queues.lock().unwrap();
        let state = queues.get_mut(&std::ptr::from_ref(queue).addr()).unwrap();
        let stream = std::ptr::with_exposed_provenance_mut(state.stream);
        let mut ns = u64::try_from(length.as_nanos()).unwrap();
        let mut arguments: [*mut c_void; 1] = [(&raw mut ns).cast()];
        let mut event = null_mut();
        // SAFETY: the kernel takes this argument, which the runtime copies; streams and events are never destroyed.
        unsafe {
            assert_eq!((open().launch)(open().kernel, ONE, ONE, arguments.as_mut_ptr(), 0, stream), SUCCESS);
            assert_eq!((open().create_event)(&raw mut event), SUCCESS);
            assert_eq!((open().record)(event, stream), SUCCESS);
        }
        state.events.push_back(event.expose_provenance());
    }

    fn finished(&self, queue: &HipStream) -> u64 {
        let mut queues = self.queues.lock().unwrap();
        let state = queues.get_mut(&std::ptr::from_ref(queue).addr()).unwrap();
        // SAFETY: events are never destroyed.
        let is_complete = |event: &usize| unsafe { (open().query)(std::ptr::with_exposed_provenance_mut(*event)) } == SUCCESS;
        while state.events.front().is_some_and(is_complete) {
            state.events.pop_front();
            state.finished += 1;
        }
        state.finished
    }
}

#[test]
fn levels_match_the_machine() {
    let device = Device::open();
    let queue = device.queue();
    let is_offered = |level| queue.capabilities().cost(level).is_ok();
    let levels = (is_offered(Level::Deactivate), is_offered(Level::Interrupt));
    let expected = match machine().as_str() {
        WITH_DRIVER => (true, true),
        WITH_STALL_POINTS => (true, false),
        _ => (false, false),
    };
    assert_eq!(levels, expected, "{}", machine());
}

#[test]
fn suite_passes_on_machines_with_more_levels() {
    if !machine().is_empty() {
        return;
    }
    build();
    // One after the other, because the checks are sensitive to load.
    for machine in [WITH_DRIVER, WITH_STALL_POINTS] {
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["hip::conformance", "hip::hsa::conformance"]).env(MACHINE, machine);
        match machine {
            WITH_DRIVER => again.env("LD_PRELOAD", target_directory().join("libkfd_standin.so")),
            _ => again.env("GPU_STREAMOPS_CP_WAIT", "1"),
        };
        let output = again.output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{machine}: {stdout}");
        for module in ["hip::conformance::suite::", "hip::hsa::conformance::suite::"] {
            let is_check = |line: &str| line.contains(module) && line.ends_with("... ok");
            assert!(stdout.lines().any(is_check), "{module} did not run: {stdout}");
        }
    }
}

mod suite {
    use super::Device;
    xsched_core::conformance!(Device::open());
}
