//! OpenCL's functions and queries that this platform uses.

use std::ffi::{c_uint, c_void};

pub(crate) use xsched_interpose::Handle;

use crate::driver_callbacks::Callback;
use crate::hooks::functions;
use crate::info_query::{InfoQuery, Text};

pub(crate) type Code = i32;
pub(crate) type Queue = Handle;
pub(crate) type Event = Handle;

/// `CL_INVALID_OPERATION`: returned by a hook if the vendor's function cannot be found.
pub(crate) const INVALID_OPERATION: Code = -59;
/// `CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE` and `CL_QUEUE_ON_DEVICE`.
pub(crate) const OUT_OF_ORDER: u64 = 1;
pub(crate) const ON_DEVICE: u64 = 4;
/// `CL_DEVICE_TYPE_CPU` and `CL_DEVICE_TYPE_GPU`.
pub(crate) const CPU: u64 = 2;
pub(crate) const GPU: u64 = 4;

functions! {
    library super::LIBRARY;

    fn clGetCommandQueueInfo(Queue, c_uint, usize, *mut c_void, *mut usize) -> Code = OF_QUEUE;
    fn clGetEventInfo(Event, c_uint, usize, *mut c_void, *mut usize) -> Code = OF_EVENT;
    fn clGetEventProfilingInfo(Event, c_uint, usize, *mut c_void, *mut usize) -> Code = TIME_OF_EVENT;
    fn clGetKernelInfo(Handle, c_uint, usize, *mut c_void, *mut usize) -> Code = OF_KERNEL;
    fn clGetDeviceInfo(Handle, c_uint, usize, *mut c_void, *mut usize) -> Code = OF_DEVICE;
    fn clEnqueueMarkerWithWaitList(Queue, c_uint, *const Event, *mut Event) -> Code = MARK;
    fn clFlush(Queue) -> Code = FLUSH;
    fn clFinish(Queue) -> Code = FINISH;
    fn clReleaseEvent(Event) -> Code = RELEASE_EVENT;
    fn clSetEventCallback(Event, i32, Option<Callback>, *mut c_void) -> Code = SET_CALLBACK;
}

pub(crate) static QUEUE_DEVICE: InfoQuery<Handle> = InfoQuery::new(&OF_QUEUE, 0x1091);
pub(crate) static QUEUE_PROPERTIES: InfoQuery<u64> = InfoQuery::new(&OF_QUEUE, 0x1093);
/// An event's queue, null for a user event; and its status, which is above 0 until the command is complete.
pub(crate) static EVENT_QUEUE: InfoQuery<Queue> = InfoQuery::new(&OF_EVENT, 0x11d0);
pub(crate) static EVENT_STATUS: InfoQuery<i32> = InfoQuery::new(&OF_EVENT, 0x11d3);
/// When a command was enqueued and when it completed, in nanoseconds of the device's clock.
pub(crate) static TIME_QUEUED: InfoQuery<u64> = InfoQuery::new(&TIME_OF_EVENT, 0x1280);
pub(crate) static TIME_DONE: InfoQuery<u64> = InfoQuery::new(&TIME_OF_EVENT, 0x1283);
/// `CL_KERNEL_FUNCTION_NAME`.
pub(crate) static KERNEL_NAME: InfoQuery<Text> = InfoQuery::new(&OF_KERNEL, 0x1190);
pub(crate) static DEVICE_TYPE: InfoQuery<u64> = InfoQuery::new(&OF_DEVICE, 0x1000);
pub(crate) static DEVICE_NAME: InfoQuery<Text> = InfoQuery::new(&OF_DEVICE, 0x102b);
/// A device's PCI address, by extensions of Khronos (domain, bus, device, function), NVIDIA (device and function in one
/// number) and AMD (a type, 1 for `PCIe`; bus, device and function at the end).
pub(crate) static PCI: InfoQuery<[u32; 4]> = InfoQuery::new(&OF_DEVICE, 0x410f);
pub(crate) static PCI_BUS_NV: InfoQuery<u32> = InfoQuery::new(&OF_DEVICE, 0x4008);
pub(crate) static PCI_SLOT_NV: InfoQuery<u32> = InfoQuery::new(&OF_DEVICE, 0x4009);
pub(crate) static PCI_DOMAIN_NV: InfoQuery<u32> = InfoQuery::new(&OF_DEVICE, 0x400a);
pub(crate) static TOPOLOGY_AMD: InfoQuery<[u8; 24]> = InfoQuery::new(&OF_DEVICE, 0x4037);
