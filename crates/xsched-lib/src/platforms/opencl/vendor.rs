//! OpenCL's functions that we call ourselves, and what they are asked.

use std::ffi::{c_uint, c_void};

pub(crate) use xsched_interpose::Handle;

use crate::driver_callbacks::Callback;
use crate::hooks::functions;
use crate::info_query::{InfoQuery, Text};

pub(crate) type Code = i32;
pub(crate) type Queue = Handle;
pub(crate) type Event = Handle;

/// `CL_INVALID_OPERATION`, for functions that cannot be found.
pub(crate) const INVALID_OPERATION: Code = -59;
/// How a queue was made.
pub(crate) const OUT_OF_ORDER: u64 = 1;
pub(crate) const ON_DEVICE: u64 = 4;
/// What a device is.
pub(crate) const CPU: u64 = 2;
pub(crate) const GPU: u64 = 4;

functions! {
    of super::LIBRARY;

    fn clGetCommandQueueInfo(Queue, c_uint, usize, *mut c_void, *mut usize) -> Code = OF_QUEUE;
    fn clGetEventInfo(Event, c_uint, usize, *mut c_void, *mut usize) -> Code = OF_EVENT;
    fn clGetEventProfilingInfo(Event, c_uint, usize, *mut c_void, *mut usize) -> Code = TIME_OF_EVENT;
    fn clGetDeviceInfo(Handle, c_uint, usize, *mut c_void, *mut usize) -> Code = OF_DEVICE;
    fn clEnqueueMarkerWithWaitList(Queue, c_uint, *const Event, *mut Event) -> Code = MARK;
    fn clFlush(Queue) -> Code = FLUSH;
    fn clFinish(Queue) -> Code = FINISH;
    fn clReleaseEvent(Event) -> Code = RELEASE_EVENT;
    fn clSetEventCallback(Event, i32, Option<Callback>, *mut c_void) -> Code = SET_CALLBACK;
}

pub(crate) static QUEUE_DEVICE: InfoQuery<Handle> = InfoQuery::new(&OF_QUEUE, 0x1091);
pub(crate) static QUEUE_PROPERTIES: InfoQuery<u64> = InfoQuery::new(&OF_QUEUE, 0x1093);
/// Its queue, null if the program itself completes it; and its status, above 0 until it is done.
pub(crate) static EVENT_QUEUE: InfoQuery<Queue> = InfoQuery::new(&OF_EVENT, 0x11d0);
pub(crate) static EVENT_STATUS: InfoQuery<i32> = InfoQuery::new(&OF_EVENT, 0x11d3);
/// When a command was enqueued and when it was done, in nanoseconds of one clock.
pub(crate) static TIME_QUEUED: InfoQuery<u64> = InfoQuery::new(&TIME_OF_EVENT, 0x1280);
pub(crate) static TIME_DONE: InfoQuery<u64> = InfoQuery::new(&TIME_OF_EVENT, 0x1283);
pub(crate) static DEVICE_TYPE: InfoQuery<u64> = InfoQuery::new(&OF_DEVICE, 0x1000);
pub(crate) static DEVICE_NAME: InfoQuery<Text> = InfoQuery::new(&OF_DEVICE, 0x102b);
/// Where a device is on the PCI bus, by extensions of Khronos (domain, bus, device, function), NVIDIA (device and
/// function in one number) and AMD (1 if it is there at all; bus, device and function at the end).
pub(crate) static PCI: InfoQuery<[u32; 4]> = InfoQuery::new(&OF_DEVICE, 0x410f);
pub(crate) static PCI_BUS_NV: InfoQuery<u32> = InfoQuery::new(&OF_DEVICE, 0x4008);
pub(crate) static PCI_SLOT_NV: InfoQuery<u32> = InfoQuery::new(&OF_DEVICE, 0x4009);
pub(crate) static PCI_DOMAIN_NV: InfoQuery<u32> = InfoQuery::new(&OF_DEVICE, 0x400a);
pub(crate) static TOPOLOGY_AMD: InfoQuery<[u8; 24]> = InfoQuery::new(&OF_DEVICE, 0x4037);
