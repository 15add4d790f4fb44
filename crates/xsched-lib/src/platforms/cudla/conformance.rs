//! The conformance suite of the core, on the stand-ins for cuDLA and CUDA. A command is a task that runs for a given time and then adds 1 to
//! its only output.

use std::collections::HashMap;
use std::ffi::c_uint;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use xsched_core::conformance::Subject;
use xsched_interpose::Handle;

use super::queue::{self, CuDla};
use super::vendor::{Code, HYBRID, SUCCESS};
use crate::event_queue::EventQueue;
use crate::hooks::functions;
use crate::platforms::cuda::conformance::{Pointer, context_and_kernel};
use crate::platforms::cuda::{self, vendor::Context, vendor::Stream};
use crate::platforms::test_support::{ExclusiveDevice, load_standin};

functions! {
    library super::LIBRARY;

    fn cudlaCreateDevice(u64, *mut Handle, c_uint) -> Code = CREATE_DEVICE;
    fn cudlaMemRegister(Handle, *mut u64, usize, *mut *mut u64, c_uint) -> Code = REGISTER;
    fn cudlaModuleLoadFromMemory(Handle, *const u8, usize, *mut Handle, c_uint) -> Code = LOAD_MODULE;
    fn cudlaSubmitTask(Handle, *const Task, c_uint, Stream, c_uint) -> Code = SUBMIT;
}

mod cuda_functions {
    use super::*;

    functions! {
        library cuda::LIBRARY;

        fn cuCtxSetCurrent(Context) -> Code = SET_CURRENT;
        fn cuStreamCreate(*mut Stream, c_uint) -> Code = CREATE_STREAM;
    }
}

/// `cudlaTask`.
#[repr(C)]
pub(crate) struct Task {
    module: Handle,
    outputs: *const *mut u64,
    output_count: u32,
    input_count: u32,
    inputs: *const *mut u64,
    wait_events: *const u8,
    signal_events: *mut u8,
}

/// Calls a function of the vendor, which must succeed.
macro_rules! must {
    ($function:path, $($argument:expr),*) => {
        // SAFETY: handles that the vendor returned, and pointers to variables of the types that the function expects.
        assert_eq!(unsafe { $function.get().expect("the stand-in has the function")($($argument),*) }, SUCCESS)
    };
}

/// The streams by the addresses of their queues, each with its count of finished tasks.
struct Device {
    queues: Mutex<HashMap<usize, (Pointer, &'static AtomicU64)>>,
    _exclusive: ExclusiveDevice,
}

impl Device {
    fn open() -> Self {
        let exclusive = ExclusiveDevice::acquire();
        must!(cuda_functions::SET_CURRENT, context_and_kernel().0.0);
        let mut device = Handle::NONE;
        load_standin("cudla", &super::LIBRARY, || must!(CREATE_DEVICE, 0, &raw mut device, HYBRID));
        Self { queues: Mutex::default(), _exclusive: exclusive }
    }

    fn state_of(&self, queue: &EventQueue<CuDla>) -> (Pointer, &'static AtomicU64) {
        self.queues.lock().unwrap()[&std::ptr::from_ref(queue).addr()]
    }
}

impl Subject for Device {
    type Queue = EventQueue<CuDla>;

    fn queue(&self) -> Arc<Self::Queue> {
        let mut stream = null_mut();
        must!(cuda_functions::SET_CURRENT, context_and_kernel().0.0);
        must!(cuda_functions::CREATE_STREAM, &raw mut stream, 1);
        let key = queue::key(stream, 0).expect("the stream was just created");
        let queue = Arc::new(queue::open(key, stream, 0).expect("the stream was just created"));
        let finished = Box::leak(Box::default());
        self.queues.lock().unwrap().insert(Arc::as_ptr(&queue).addr(), (Pointer(stream), finished));
        queue
    }

    fn launch(&self, queue: &Self::Queue, length: Duration) {
        let (stream, finished) = self.state_of(queue);
        let us = u32::try_from(length.as_micros()).unwrap().to_ne_bytes();
        let (mut device, mut module, mut registered) = (Handle::NONE, Handle::NONE, null_mut());
        // The suite launches on threads of its own.
        must!(cuda_functions::SET_CURRENT, context_and_kernel().0.0);
        // Not destroyed: a device handle has one module.
        must!(CREATE_DEVICE, 0, &raw mut device, HYBRID);
        must!(LOAD_MODULE, device, us.as_ptr(), us.len(), &raw mut module, 0);
        must!(REGISTER, device, finished.as_ptr(), 8, &raw mut registered, 0);
        let tensors = &raw const registered;
        let task = Task {
            module,
            outputs: tensors,
            output_count: 1,
            input_count: 1,
            inputs: tensors,
            wait_events: null(),
            signal_events: null_mut(),
        };
        must!(SUBMIT, device, &raw const task, 1, stream.0, 0);
    }

    fn finished(&self, queue: &Self::Queue) -> u64 {
        self.state_of(queue).1.load(Ordering::SeqCst)
    }
}

xsched_core::conformance!(Device::open());
