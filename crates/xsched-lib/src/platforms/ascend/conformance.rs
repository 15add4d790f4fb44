//! The conformance suite of the core, on the stand-in for AscendCL. A command is a kernel that runs for a given time and then increments a
//! counter.

use std::collections::HashMap;
use std::ffi::{c_char, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use xsched_core::conformance::Subject;
use xsched_interpose::Handle;

use super::queue::{self, AscendCl};
use super::vendor::{Code, SUCCESS, Stream};
use crate::event_queue::EventQueue;
use crate::hooks::functions;
use crate::platforms::test_support::load_standin;

functions! {
    library super::LIBRARY;

    fn aclInit(*const c_char) -> Code = INIT;
    fn aclrtSetDevice(i32) -> Code = SET_DEVICE;
    fn aclrtCreateStream(*mut Stream) -> Code = CREATE_STREAM;
    fn aclrtBinaryGetFunction(*mut c_void, *const c_char, *mut Handle) -> Code = GET_KERNEL;
    fn aclrtLaunchKernel(Handle, c_uint, *const [u64; 2], usize, Stream) -> Code = LAUNCH;
}

/// Calls a function of the vendor, which must succeed.
macro_rules! must {
    ($function:path, $($argument:expr),*) => {
        // SAFETY: handles that the vendor returned, and pointers to variables of the types that the function expects.
        assert_eq!(unsafe { $function.get().expect("the stand-in has the function")($($argument),*) }, SUCCESS)
    };
}

/// The kernel, loaded once.
fn kernel() -> Handle {
    static KERNEL: OnceLock<Handle> = OnceLock::new();
    *KERNEL.get_or_init(|| {
        load_standin("ascend", &super::LIBRARY, || must!(INIT, null()));
        let mut kernel = Handle::NONE;
        must!(GET_KERNEL, null_mut(), c"increment".as_ptr(), &raw mut kernel);
        kernel
    })
}

/// The streams by the addresses of their queues, each with its count of finished kernels.
#[derive(Default)]
struct Device(Mutex<HashMap<usize, (Stream, &'static AtomicU64)>>);

impl Device {
    fn open() -> Self {
        kernel();
        Self::default()
    }

    fn state_of(&self, queue: &EventQueue<AscendCl>) -> (Stream, &'static AtomicU64) {
        self.0.lock().unwrap()[&std::ptr::from_ref(queue).addr()]
    }
}

impl Subject for Device {
    type Queue = EventQueue<AscendCl>;

    fn queue(&self) -> Arc<Self::Queue> {
        let mut stream = Handle::NONE;
        must!(SET_DEVICE, 0);
        must!(CREATE_STREAM, &raw mut stream);
        let queue = Arc::new(queue::open(stream).expect("the stream was just created"));
        self.0.lock().unwrap().insert(Arc::as_ptr(&queue).addr(), (stream, Box::leak(Box::default())));
        queue
    }

    fn launch(&self, queue: &Self::Queue, length: Duration) {
        let (stream, finished) = self.state_of(queue);
        let counter = finished.as_ptr().expose_provenance() as u64;
        let arguments = [u64::try_from(length.as_nanos()).unwrap(), counter];
        // The suite launches on threads of its own.
        must!(SET_DEVICE, 0);
        must!(LAUNCH, kernel(), 1, &raw const arguments, size_of_val(&arguments), stream);
    }

    fn finished(&self, queue: &Self::Queue) -> u64 {
        self.state_of(queue).1.load(Ordering::SeqCst)
    }
}

xsched_core::conformance!(Device::open());
