//! The suite that every backend passes, on the first OpenCL device of this machine. A command is a function of the
//! test's own that sleeps and counts.

use std::collections::HashMap;
use std::ffi::{c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use xsched_core::conformance::Subject;
use xsched_core::{HwQueue as _, Nanos};

use super::hardware::{OpenCl, take};
use super::vendor::{Code, Event, Handle, OUT_OF_ORDER, Queue};
use crate::event_queue::EventQueue;
use crate::hooks::functions;

const SUCCESS: Code = 0;
const PROFILED: u64 = 2;

functions! {
    of super::LIBRARY;

    fn clGetPlatformIDs(c_uint, *mut Handle, *mut c_uint) -> Code = PLATFORMS;
    fn clGetDeviceIDs(Handle, u64, c_uint, *mut Handle, *mut c_uint) -> Code = DEVICES;
    fn clCreateContext(*const isize, c_uint, *const Handle, Handle, *mut c_void, *mut Code) -> Handle = CONTEXT;
    fn clCreateCommandQueue(Handle, Handle, u64, *mut Code) -> Queue = QUEUE;
    fn clEnqueueNativeKernel(Queue, Work, *const Command, usize, c_uint, *const Handle, *const *const c_void, c_uint, *const Event, *mut Event) -> Code = WORK;
}

type Work = unsafe extern "C" fn(*mut Command);

/// What a command is told. The vendor copies it.
#[repr(C)]
pub(crate) struct Command {
    length: Duration,
    finished: *const AtomicU64,
}

unsafe extern "C" fn work(command: *mut Command) {
    // SAFETY: the vendor passes its copy of what it was given; what that points at is never freed.
    let Command { length, finished } = unsafe { command.read() };
    std::thread::sleep(length);
    // SAFETY: as above.
    unsafe { (*finished).fetch_add(1, Ordering::SeqCst) };
}

/// A device, and for each queue, by where it lies, its handle and how many commands have finished.
struct Device {
    handle: Handle,
    context: Handle,
    properties: u64,
    queues: Mutex<HashMap<usize, (Handle, &'static AtomicU64)>>,
}

impl Device {
    /// None if there is nothing to test on, which is said.
    fn open(properties: u64) -> Option<Self> {
        // PoCL's devices are not there yet for a second thread that asks at the same time.
        static OPENING: Mutex<()> = Mutex::new(());
        let _one_at_a_time = OPENING.lock().unwrap();
        // SAFETY: the library's own beginning is all that runs; nothing of the test's process is in its way.
        let library = unsafe { libc::dlopen(c"libOpenCL.so.1".as_ptr(), libc::RTLD_NOW) };
        let hook = &super::LIBRARY.hooks()[0];
        if !library.is_null() {
            // SAFETY: the handle is good, and the name a C string.
            hook.install(unsafe { crate::loader::real_dlsym()(library, hook.name.as_ptr()) });
        }
        let (mut platform, mut device, mut code) = (Handle::NONE, Handle::NONE, SUCCESS);
        // SAFETY: places for one handle each, and handles that were just answered.
        let context = unsafe {
            let platforms = PLATFORMS.get().map(|ask| ask(1, &raw mut platform, null_mut()));
            if platforms != Some(SUCCESS) {
                assert!(std::env::var_os("CI").is_none(), "no OpenCL here: {platforms:?}");
                println!("skipped: no OpenCL here (Debian has it in pocl-opencl-icd)");
                return None;
            }
            assert_eq!(
                DEVICES.get()?(platform, u64::from(u32::MAX), 1, &raw mut device, null_mut()),
                SUCCESS
            );
            CONTEXT.get()?(null(), 1, &raw const device, Handle::NONE, null_mut(), &raw mut code)
        };
        assert_eq!(code, SUCCESS);
        let (handle, context) = (device, context);
        Some(Self { handle, context, properties, queues: Mutex::default() })
    }

    fn known(&self, queue: &EventQueue<OpenCl>) -> (Handle, &'static AtomicU64) {
        self.queues.lock().unwrap()[&std::ptr::from_ref(queue).addr()]
    }
}

impl Subject for Device {
    type Queue = EventQueue<OpenCl>;

    fn queue(&self) -> Arc<Self::Queue> {
        let mut code = SUCCESS;
        let make = QUEUE.get().unwrap();
        // SAFETY: a context and its device, and a place for the code.
        let queue = unsafe { make(self.context, self.handle, self.properties, &raw mut code) };
        assert_eq!(code, SUCCESS);
        let hw = Arc::new(take(queue).expect("a queue that was just made"));
        let known = (queue, &*Box::leak(Box::default()));
        self.queues.lock().unwrap().insert(Arc::as_ptr(&hw).addr(), known);
        hw
    }

    fn launch(&self, queue: &Self::Queue, length: Duration) {
        let (queue, finished) = self.known(queue);
        let command = Command { length, finished };
        // SAFETY: a queue that is never released; the vendor copies the command, which is as large as is said.
        let code = unsafe {
            WORK.get().unwrap()(
                queue,
                work,
                &raw const command,
                size_of::<Command>(),
                0,
                null(),
                null(),
                0,
                null(),
                null_mut(),
            )
        };
        assert_eq!(code, SUCCESS);
    }

    fn finished(&self, queue: &Self::Queue) -> u64 {
        self.known(queue).1.load(Ordering::SeqCst)
    }
}

#[test]
fn a_profiled_queue_tells_when_a_marker_was_done() {
    const LENGTH: Nanos = Nanos::from_millis(100);
    // The two clocks are not one, and this thread may be kept from looking at either: by less than this.
    const SLACK: Nanos = Nanos::from_millis(50);
    let Some(device) = Device::open(PROFILED) else { return };
    let queue = device.queue();
    let before = Nanos::now();
    device.launch(&queue, LENGTH.into());
    queue.mark().unwrap();
    // Looked at much later than it was done.
    queue.synchronize().unwrap();
    std::thread::sleep(LENGTH.into());
    let looked_at = Nanos::now();
    let at = queue.progress().at.expect("it has profiling");
    assert!(at + SLACK >= before + LENGTH, "before it can have been done");
    assert!(at + SLACK <= looked_at, "when it was looked at, not when it was done");

    let plain = Device::open(0).unwrap();
    let queue = plain.queue();
    queue.mark().unwrap();
    queue.synchronize().unwrap();
    assert_eq!(queue.progress().at, None);
}

mod in_order {
    use super::Device;
    xsched_core::conformance!(match Device::open(0) {
        Some(device) => device,
        None => return,
    });
}

mod out_of_order_and_profiled {
    use super::{Device, OUT_OF_ORDER, PROFILED};
    xsched_core::conformance!(match Device::open(OUT_OF_ORDER | PROFILED) {
        Some(device) => device,
        None => return,
    });
}
