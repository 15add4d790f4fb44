//! The conformance suite of the core, on the stand-in for VPI. A command is a conversion of an image, which runs for as many microseconds as
//! the image is wide, and a function of the host that counts it.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use xsched_core::conformance::Subject;
use xsched_interpose::Handle;

use super::queue::{self, Vpi};
use super::vendor::{Code, SUCCESS, Stream};
use crate::event_queue::EventQueue;
use crate::hooks::functions;
use crate::platforms::test_support::load_standin;

functions! {
    library super::LIBRARY;

    fn vpiStreamCreate(u64, *mut Stream) -> Code = CREATE_STREAM;
    fn vpiImageCreate(i32, i32, u64, u64, *mut Handle) -> Code = CREATE_IMAGE;
    fn vpiSubmitConvertImageFormat(Stream, u64, Handle, Handle, *const c_void) -> Code = CONVERT;
    fn vpiSubmitHostFunction(Stream, unsafe extern "C" fn(*mut c_void), *mut c_void) -> Code = HOST_FUNCTION;
}

/// Calls a function of the vendor, which must succeed.
macro_rules! must {
    ($function:path, $($argument:expr),*) => {
        // SAFETY: handles that the vendor returned, and pointers to variables of the types that the function expects.
        assert_eq!(unsafe { $function.get().expect("the stand-in has the function")($($argument),*) }, SUCCESS)
    };
}

unsafe extern "C" fn count(finished: *mut c_void) {
    // SAFETY: `launch` passes a counter that is never freed.
    unsafe { AtomicU64::from_ptr(finished.cast()) }.fetch_add(1, Ordering::SeqCst);
}

/// The streams by the addresses of their queues, each with its count of finished commands.
#[derive(Default)]
struct Device(Mutex<HashMap<usize, (Stream, &'static AtomicU64)>>);

impl Device {
    fn open() -> Self {
        let mut stream = Handle::NONE;
        load_standin("vpi", &super::LIBRARY, || must!(CREATE_STREAM, 0, &raw mut stream));
        Self::default()
    }

    fn state_of(&self, queue: &EventQueue<Vpi>) -> (Stream, &'static AtomicU64) {
        self.0.lock().unwrap()[&std::ptr::from_ref(queue).addr()]
    }
}

impl Subject for Device {
    type Queue = EventQueue<Vpi>;

    fn queue(&self) -> Arc<Self::Queue> {
        let mut stream = Handle::NONE;
        must!(CREATE_STREAM, 0, &raw mut stream);
        let queue = Arc::new(queue::open(stream).expect("the stream was just created"));
        self.0.lock().unwrap().insert(Arc::as_ptr(&queue).addr(), (stream, Box::leak(Box::default())));
        queue
    }

    fn launch(&self, queue: &Self::Queue, length: Duration) {
        let (stream, finished) = self.state_of(queue);
        let width = i32::try_from(length.as_micros()).unwrap().max(1);
        // Not destroyed: the conversion uses it.
        let mut image = Handle::NONE;
        must!(CREATE_IMAGE, width, 1, 0, 0, &raw mut image);
        must!(CONVERT, stream, 0, image, image, std::ptr::null());
        must!(HOST_FUNCTION, stream, count, finished.as_ptr().cast());
    }

    fn finished(&self, queue: &Self::Queue) -> u64 {
        self.state_of(queue).1.load(Ordering::SeqCst)
    }
}

xsched_core::conformance!(Device::open());
