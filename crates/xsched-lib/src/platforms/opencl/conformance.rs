//! The conformance suite of the core, on the first OpenCL device of this machine. A command is a native kernel that sleeps
//! and then increments a counter.

use std::collections::HashMap;
use std::ffi::{c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use xsched_core::conformance::Subject;
use xsched_core::{HwQueue as _, Nanos};

use super::queue::{OpenCl, new_queue};
use super::vendor::{Code, Event, Handle, OUT_OF_ORDER, Queue};
use crate::event_queue::EventQueue;
use crate::hooks::functions;

const SUCCESS: Code = 0;
/// `CL_QUEUE_PROFILING_ENABLE`.
const PROFILED: u64 = 2;

functions! {
    library super::LIBRARY;

    fn clGetPlatformIDs(c_uint, *mut Handle, *mut c_uint) -> Code = PLATFORMS;
    fn clGetDeviceIDs(Handle, u64, c_uint, *mut Handle, *mut c_uint) -> Code = DEVICES;
    fn clCreateContext(*const isize, c_uint, *const Handle, Handle, *mut c_void, *mut Code) -> Handle = CONTEXT;
    fn clCreateCommandQueue(Handle, Handle, u64, *mut Code) -> Queue = QUEUE;
    fn clEnqueueNativeKernel(Queue, Work, *const Command, usize, c_uint, *const Handle, *const *const c_void, c_uint, *const Event, *mut Event) -> Code = WORK;
}

type Work = unsafe extern "C" fn(*mut Command);

/// The arguments of a command. The vendor copies them.
#[repr(C)]
pub(crate) struct Command {
    length: Duration,
    finished: *const AtomicU64,
}

unsafe extern "C" fn work(command: *mut Command) {
    // SAFETY: the vendor passes its copy of the arguments; the counter is never freed.
    let Command { length, finished } = unsafe { command.read() };
    std::thread::sleep(length);
    // SAFETY: as above.
    unsafe { (*finished).fetch_add(1, Ordering::SeqCst) };
}

/// A device, and its queues by address: each queue's handle, and its count of finished commands.
struct Device {
    handle: Handle,
    context: Handle,
    properties: u64,
    queues: Mutex<HashMap<usize, (Handle, &'static AtomicU64)>>,
}

impl Device {
    /// None, with a message, if the machine has no OpenCL.
    fn open(properties: u64) -> Option<Self> {
        // Serialized, because PoCL returns no devices to a second thread while the first initializes it.
        static OPENING: Mutex<()> = Mutex::new(());
        let _opening = OPENING.lock().unwrap();
        // SAFETY: loading runs the library's constructors only.
        let library = unsafe { libc::dlopen(c"libOpenCL.so.1".as_ptr(), libc::RTLD_NOW) };
        let hook = &super::LIBRARY.hooks()[0];
        if !library.is_null() {
            // SAFETY: the handle is valid, and the name is a C string.
            hook.install(unsafe { crate::loader::real_dlsym()(library, hook.name.as_ptr()) });
        }
        let (mut platform, mut device, mut code) = (Handle::NONE, Handle::NONE, SUCCESS);
        // SAFETY: each variable has room for a handle, and the handles were just returned.
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

    fn handle_and_count(&self, queue: &EventQueue<OpenCl>) -> (Handle, &'static AtomicU64) {
        self.queues.lock().unwrap()[&std::ptr::from_ref(queue).addr()]
    }
}

impl Subject for Device {
    type Queue = EventQueue<OpenCl>;

    fn queue(&self) -> Arc<Self::Queue> {
        let mut code = SUCCESS;
        let make = QUEUE.get().unwrap();
        // SAFETY: a context and its device; `code` has room for the result.
        let queue = unsafe { make(self.context, self.handle, self.properties, &raw mut code) };
        assert_eq!(code, SUCCESS);
        let hw = Arc::new(new_queue(queue).expect("the queue was just created"));
        let state = (queue, &*Box::leak(Box::default()));
        self.queues.lock().unwrap().insert(Arc::as_ptr(&hw).addr(), state);
        hw
    }

    fn launch(&self, queue: &Self::Queue, length: Duration) {
        let (queue, finished) = self.handle_and_count(queue);
        let command = Command { length, finished };
        // SAFETY: the queue is never released; the vendor copies the command, whose size is passed.
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
        self.handle_and_count(queue).1.load(Ordering::SeqCst)
    }
}

#[test]
fn profiled_queue_reports_when_a_marker_completed() {
    const LENGTH: Nanos = Nanos::from_millis(100);
    // The tolerance for two different clocks, and for this thread being descheduled between reading them.
    const TOLERANCE: Nanos = Nanos::from_millis(50);
    let Some(device) = Device::open(PROFILED) else { return };
    let queue = device.queue();
    let before = Nanos::now();
    device.launch(&queue, LENGTH.into());
    queue.mark().unwrap();
    // The progress is read long after the marker completed.
    queue.synchronize().unwrap();
    std::thread::sleep(LENGTH.into());
    let read_at = Nanos::now();
    let at = queue.progress().at.expect("the queue has profiling");
    assert!(at + TOLERANCE >= before + LENGTH, "reported before it can have completed");
    assert!(at + TOLERANCE <= read_at, "reported the time of the read");

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
