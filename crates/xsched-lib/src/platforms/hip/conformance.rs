//! The suite that every backend passes, on a stand-in for AMD's runtime. A command is a kernel that takes its time, with an
//! event of the runtime's behind it, by which it is known to have finished.

use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use xsched_core::Level;
use xsched_core::conformance::Subject;

use super::copies;
use super::hardware::{HipStream, Place, Which};
use super::vendor::{Code, Dim3, Event, SUCCESS, Stream};

/// What the suite is run for once more, each in a process of its own: which machine this is.
const MACHINE: &str = "HIP_STANDIN_MACHINE";
/// The driver can be asked; or streams can wait for memory.
pub(super) const WITH_DRIVER: &str = "driver";
const WITH_STALLS: &str = "stalls";

pub(super) fn machine() -> String {
    std::env::var(MACHINE).unwrap_or_default()
}

/// Where this profile's libraries are.
fn built() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().and_then(Path::parent).expect("tests lie in a directory of the profile's").to_owned()
}

/// Builds the stand-ins, as nothing links them.
fn build() {
    static BUILT: std::sync::Once = std::sync::Once::new();
    BUILT.call_once(|| {
        let built = built();
        let profile = built.file_name().filter(|name| *name != "debug").unwrap_or("dev".as_ref());
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "-p", "hip-standin", "-p", "kfd-standin", "--profile"]).arg(profile);
        cargo.arg("--target-dir").arg(built.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR"));
        assert!(cargo.status().unwrap().success());
    });
}

/// Links a runtime for this process alone. Answers where it is.
pub(super) fn link_runtime(name: &str) -> PathBuf {
    build();
    let file = built().join(format!("conformance-{}-{name}", std::process::id()));
    let link = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../standins/hip/link.sh");
    let mut command = Command::new(link);
    command.arg(built().join("libhip_standin.a")).arg(&file).arg(name);
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

// SAFETY: the runtime's functions may be called from any thread, and the kernel's name is an address.
unsafe impl Send for Runtime {}
// SAFETY: as above.
unsafe impl Sync for Runtime {}

fn open() -> &'static Runtime {
    static OPENED: OnceLock<Runtime> = OnceLock::new();
    static KERNEL: u8 = 0;
    OPENED.get_or_init(|| {
        let file = link_runtime("libamdhip64.so.6");
        let path = CString::new(file.to_str().unwrap()).unwrap();
        // SAFETY: the library's own beginning is all that runs.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "cannot open {path:?}");
        // It is mapped, and nobody else is to find it.
        let _ = std::fs::remove_file(file);
        let find = |name: &CStr| {
            // SAFETY: the handle is good, and the name a C string.
            let found = unsafe { crate::loader::real_dlsym()(library, name.as_ptr()) };
            assert!(!found.is_null(), "{name:?}");
            found
        };
        // As a program that looks the function up has it known.
        let hook = super::hook(c"hipLaunchKernel").expect("it is hooked");
        copies::put_before(hook, find(hook.name));
        let kernel: *const c_void = (&raw const KERNEL).cast();
        // SAFETY: functions of the types that the vendor's header gives them; the arguments that follow are not looked at.
        unsafe {
            let register = std::mem::transmute::<*mut c_void, Register>(find(c"__hipRegisterFunction"));
            register(null_mut(), kernel, c"spin".as_ptr());
            Runtime {
                copy: *copies::all(hook).first().expect("the one that was just opened"),
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

/// The right to use the device alone: a process's streams are stopped together, or not at all.
pub(super) struct Alone;

static TAKEN: Mutex<bool> = Mutex::new(false);
static FREED: Condvar = Condvar::new();

impl Alone {
    pub(super) fn take() -> Self {
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

/// What is known of a queue: its stream, how many kernels have finished, and the events behind the others.
struct Known {
    stream: usize,
    finished: u64,
    events: VecDeque<usize>,
}

/// A device, and what is known of each queue, by where it lies.
struct Device {
    queues: Mutex<HashMap<usize, Known>>,
    _alone: Alone,
}

impl Device {
    fn open() -> Self {
        let alone = Alone::take();
        open();
        Self { queues: Mutex::default(), _alone: alone }
    }
}

impl Subject for Device {
    type Queue = HipStream;

    fn queue(&self) -> Arc<HipStream> {
        const NON_BLOCKING: c_uint = 1;
        let mut stream = null_mut();
        // SAFETY: a place for one handle.
        assert_eq!(unsafe { (open().create_stream)(&raw mut stream, NON_BLOCKING) }, SUCCESS);
        let place = Place::of(open().copy, Which::Made(stream)).expect("a stream has one");
        let queue = Arc::new(HipStream::new(place).expect("a stream that was just made"));
        let known = Known { stream: stream.expose_provenance(), finished: 0, events: VecDeque::default() };
        self.queues.lock().unwrap().insert(Arc::as_ptr(&queue).addr(), known);
        queue
    }

    fn launch(&self, queue: &HipStream, length: Duration) {
        const ONE: Dim3 = Dim3::ONE;
        let mut queues = self.queues.lock().unwrap();
        let known = queues.get_mut(&std::ptr::from_ref(queue).addr()).unwrap();
        let stream = std::ptr::with_exposed_provenance_mut(known.stream);
        let mut ns = u64::try_from(length.as_nanos()).unwrap();
        let mut arguments: [*mut c_void; 1] = [(&raw mut ns).cast()];
        let mut event = null_mut();
        // SAFETY: the kernel takes this argument, which the runtime copies; streams and events are never destroyed.
        unsafe {
            assert_eq!((open().launch)(open().kernel, ONE, ONE, arguments.as_mut_ptr(), 0, stream), SUCCESS);
            assert_eq!((open().create_event)(&raw mut event), SUCCESS);
            assert_eq!((open().record)(event, stream), SUCCESS);
        }
        known.events.push_back(event.expose_provenance());
    }

    fn finished(&self, queue: &HipStream) -> u64 {
        let mut queues = self.queues.lock().unwrap();
        let known = queues.get_mut(&std::ptr::from_ref(queue).addr()).unwrap();
        // SAFETY: an event that is never destroyed.
        let is_done = |event: &usize| unsafe { (open().query)(std::ptr::with_exposed_provenance_mut(*event)) } == SUCCESS;
        while known.events.front().is_some_and(is_done) {
            known.events.pop_front();
            known.finished += 1;
        }
        known.finished
    }
}

#[test]
fn the_levels_are_those_of_the_machine() {
    use xsched_core::HwQueue as _;
    let device = Device::open();
    let queue = device.queue();
    let offered = |level| queue.capabilities().cost(level).is_ok();
    let levels = (offered(Level::Deactivate), offered(Level::Interrupt));
    let expected = match machine().as_str() {
        WITH_DRIVER => (true, true),
        WITH_STALLS => (true, false),
        _ => (false, false),
    };
    assert_eq!(levels, expected, "{}", machine());
}

#[test]
fn the_suite_passes_on_machines_that_have_more() {
    if !machine().is_empty() {
        return;
    }
    build();
    // One after the other: the checks are sensitive to how busy the machine is.
    for machine in [WITH_DRIVER, WITH_STALLS] {
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["hip::conformance", "hip::hsa::conformance"]).env(MACHINE, machine);
        match machine {
            WITH_DRIVER => again.env("LD_PRELOAD", built().join("libkfd_standin.so")),
            _ => again.env("GPU_STREAMOPS_CP_WAIT", "1"),
        };
        let output = again.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{machine}: {said}");
        assert!(said.contains("a_storm_of_preemptions_loses_nothing ... ok"), "{said}");
    }
}

mod suite {
    use super::Device;
    xsched_core::conformance!(Device::open());
}
