//! The conformance suite on libtoy, which the variable `TOY_LIBRARY` names. A kernel sleeps, and counts the kernels of its
//! queue that have finished.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use xsched_core::conformance::Subject;
use xsched_interpose::Handle;

use super::queue::{self, Toy};
use super::vendor::{Code, Queue, SUCCESS};
use crate::event_queue::EventQueue;
use crate::hooks::functions;

functions! {
    library super::LIBRARY;

    fn toy_queue_create(*mut Queue) -> Code = QUEUE_CREATE;
    fn toy_launch(Queue, unsafe extern "C" fn(*mut c_void), *mut c_void) -> Code = LAUNCH;
}

struct Kernel {
    length: Duration,
    finished: &'static AtomicU64,
}

unsafe extern "C" fn kernel(argument: *mut c_void) {
    // SAFETY: `launch` allocated it, and libtoy calls a kernel once.
    let kernel = unsafe { Box::from_raw(argument.cast::<Kernel>()) };
    std::thread::sleep(kernel.length);
    kernel.finished.fetch_add(1, Ordering::SeqCst);
}

/// The queues by address, each with its handle and the number of kernels that have finished.
#[derive(Default)]
struct Device(Mutex<HashMap<usize, (Handle, &'static AtomicU64)>>);

impl Device {
    fn open() -> Self {
        let path = std::env::var("TOY_LIBRARY").expect("TOY_LIBRARY names libtoy.so");
        let path = CString::new(path).unwrap();
        // SAFETY: loading libtoy runs no code.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "{path:?} cannot be loaded");
        let hook = &super::LIBRARY.hooks()[0];
        // SAFETY: the handle is valid, and the name is a C string.
        hook.install(unsafe { crate::loader::real_dlsym()(library, hook.name.as_ptr()) });
        Self::default()
    }

    fn state(&self, queue: &EventQueue<Toy>) -> (Handle, &'static AtomicU64) {
        self.0.lock().unwrap()[&std::ptr::from_ref(queue).addr()]
    }
}

impl Subject for Device {
    type Queue = EventQueue<Toy>;

    fn queue(&self) -> Arc<Self::Queue> {
        let mut handle = Handle::NONE;
        // SAFETY: `handle` has room for a handle.
        assert_eq!(unsafe { QUEUE_CREATE.get().unwrap()(&raw mut handle) }, SUCCESS);
        let queue = Arc::new(queue::open(handle).unwrap());
        let state = (handle, &*Box::leak(Box::default()));
        self.0.lock().unwrap().insert(Arc::as_ptr(&queue).addr(), state);
        queue
    }

    fn launch(&self, queue: &Self::Queue, length: Duration) {
        let (queue, finished) = self.state(queue);
        let argument = Box::into_raw(Box::new(Kernel { length, finished }));
        // SAFETY: the queue is never destroyed, and the kernel frees its argument.
        assert_eq!(unsafe { LAUNCH.get().unwrap()(queue, kernel, argument.cast()) }, SUCCESS);
    }

    fn finished(&self, queue: &Self::Queue) -> u64 {
        self.state(queue).1.load(Ordering::SeqCst)
    }
}

xsched_core::conformance!(Device::open());
