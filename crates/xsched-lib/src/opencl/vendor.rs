//! OpenCL's functions that we call ourselves, and what they are asked.

use std::ffi::{c_uint, c_void};

use crate::callback::Callback;
use crate::hooks::functions;

pub(crate) type Code = i32;
pub(crate) type Handle = *mut c_void;
pub(crate) type Queue = Handle;
pub(crate) type Event = Handle;
/// `cl_bool`.
pub(crate) type Bool = c_uint;

pub(crate) const SUCCESS: Code = 0;

/// What to ask of a queue: its context, its device, and how it was made.
pub(crate) const QUEUE_CONTEXT: c_uint = 0x1090;
pub(crate) const QUEUE_DEVICE: c_uint = 0x1091;
pub(crate) const QUEUE_PROPERTIES: c_uint = 0x1093;
pub(crate) const OUT_OF_ORDER: u64 = 1;
pub(crate) const PROFILED: u64 = 2;
pub(crate) const ON_DEVICE: u64 = 4;
/// What to ask of an event: its queue, null if the program itself completes it, and its status, above 0 until done.
pub(crate) const EVENT_QUEUE: c_uint = 0x11d0;
pub(crate) const EVENT_STATUS: c_uint = 0x11d3;
/// When a command was enqueued and when it was done, in nanoseconds of one clock.
pub(crate) const TIME_QUEUED: c_uint = 0x1280;
pub(crate) const TIME_END: c_uint = 0x1283;
/// What to ask of a device, and of its platform.
pub(crate) const DEVICE_TYPE: c_uint = 0x1000;
pub(crate) const CPU: u64 = 2;
pub(crate) const GPU: u64 = 4;
pub(crate) const DEVICE_NAME: c_uint = 0x102b;
pub(crate) const DEVICE_PLATFORM: c_uint = 0x1031;
pub(crate) const PLATFORM_NAME: c_uint = 0x0902;
/// Where it is on the PCI bus, by extensions of Khronos (domain, bus, device and function in 16 bytes), NVIDIA (device
/// and function in one number) and AMD (24 bytes: 1 if it is there at all, bus, device and function at the end).
pub(crate) const PCI: c_uint = 0x410f;
pub(crate) const PCI_BUS_NV: c_uint = 0x4008;
pub(crate) const PCI_SLOT_NV: c_uint = 0x4009;
pub(crate) const PCI_DOMAIN_NV: c_uint = 0x400a;
pub(crate) const TOPOLOGY_AMD: c_uint = 0x4037;

functions! {
    of super::LIBRARY;

    fn clGetCommandQueueInfo(Queue, c_uint, usize, *mut c_void, *mut usize) -> Code = OF_QUEUE;
    fn clGetEventInfo(Event, c_uint, usize, *mut c_void, *mut usize) -> Code = OF_EVENT;
    fn clGetEventProfilingInfo(Event, c_uint, usize, *mut c_void, *mut usize) -> Code = TIME_OF_EVENT;
    fn clGetDeviceInfo(Handle, c_uint, usize, *mut c_void, *mut usize) -> Code = OF_DEVICE;
    fn clGetPlatformInfo(Handle, c_uint, usize, *mut c_void, *mut usize) -> Code = OF_PLATFORM;
    fn clEnqueueMarkerWithWaitList(Queue, c_uint, *const Event, *mut Event) -> Code = MARK;
    fn clFlush(Queue) -> Code = FLUSH;
    fn clFinish(Queue) -> Code = FINISH;
    fn clReleaseEvent(Event) -> Code = RELEASE_EVENT;
    fn clEnqueueBarrierWithWaitList(Queue, c_uint, *const Event, *mut Event) -> Code = BARRIER;
    fn clCreateUserEvent(Handle, *mut Code) -> Event = CREATE_USER_EVENT;
    fn clSetUserEventStatus(Event, i32) -> Code = COMPLETE_USER_EVENT;
    fn clSetEventCallback(Event, i32, Option<Callback>, *mut c_void) -> Code = SET_CALLBACK;
}

/// A function that tells about a thing of its kind.
type Asked =
    crate::loader::Function<unsafe extern "C" fn(Handle, c_uint, usize, *mut c_void, *mut usize) -> Code>;

/// Fills in what is known about a thing, as the vendor's bytes; answers no if there is no such thing, or no answer.
///
/// # Safety
/// `thing` is null, or of the kind that the function tells about.
pub(crate) unsafe fn fill(function: &Asked, thing: Handle, what: c_uint, answer: &mut [u8]) -> bool {
    let (Some(ask), false) = (function.get(), thing.is_null()) else { return false };
    // SAFETY: the caller vouches for the thing; the place has the size that is passed.
    unsafe { ask(thing, what, answer.len(), answer.as_mut_ptr().cast(), std::ptr::null_mut()) == SUCCESS }
}

/// The same for an answer of a known size.
///
/// # Safety
/// As for [`fill`].
pub(crate) unsafe fn ask<const N: usize>(function: &Asked, thing: Handle, what: c_uint) -> Option<[u8; N]> {
    let mut answer = [0; N];
    // SAFETY: the caller vouches for the thing.
    unsafe { fill(function, thing, what, &mut answer) }.then_some(answer)
}

/// A handle among the vendor's bytes; null if there is none.
pub(crate) fn handle(bytes: Option<[u8; 8]>) -> Handle {
    std::ptr::with_exposed_provenance_mut(bytes.map_or(0, usize::from_ne_bytes))
}

/// What a hook answers if its function cannot be found.
pub(crate) trait Missing {
    fn missing() -> Self;
}
impl Missing for Code {
    fn missing() -> Self {
        // `CL_INVALID_OPERATION`.
        -59
    }
}
impl Missing for Handle {
    fn missing() -> Self {
        std::ptr::null_mut()
    }
}
