//! The functions and structures of Level Zero that this platform uses.

use std::ffi::{c_char, c_uint, c_void};
use std::ptr;

pub(crate) use xsched_interpose::Handle;

use crate::hooks::functions;

pub(crate) type Code = i32;
pub(crate) type Queue = Handle;
pub(crate) type List = Handle;
pub(crate) type Event = Handle;

pub(crate) const SUCCESS: Code = 0;
/// `ZE_RESULT_NOT_READY`.
pub(crate) const NOT_READY: Code = 1;
/// `ZE_RESULT_ERROR_UNINITIALIZED`: returned by a hook if the vendor's function cannot be found.
pub(crate) const UNINITIALIZED: Code = 0x7800_0001;
/// `ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS`: every launch waits for its work.
pub(crate) const SYNCHRONOUS: u32 = 1;
/// `ZE_DEVICE_TYPE_GPU`, `ZE_DEVICE_TYPE_CPU` and `ZE_DEVICE_TYPE_VPU`.
pub(crate) const GPU: u32 = 1;
pub(crate) const CPU: u32 = 2;
pub(crate) const NPU: u32 = 5;

functions! {
    library super::LIBRARY;

    fn zeDeviceGetProperties(Handle, *mut DeviceProperties) -> Code = DEVICE_PROPERTIES;
    fn zeDevicePciGetPropertiesExt(Handle, *mut PciProperties) -> Code = PCI_PROPERTIES;
    fn zeCommandQueueExecuteCommandLists(Queue, c_uint, *const List, Handle) -> Code = EXECUTE;
    fn zeCommandListCreate(Handle, Handle, *const Description, *mut List) -> Code = CREATE_LIST;
    fn zeCommandListClose(List) -> Code = CLOSE_LIST;
    fn zeCommandListDestroy(List) -> Code = DESTROY_LIST;
    fn zeCommandListAppendBarrier(List, Event, c_uint, *const Event) -> Code = APPEND_BARRIER;
    fn zeFenceCreate(Queue, *const Description, *mut Handle) -> Code = CREATE_FENCE;
    fn zeFenceQueryStatus(Handle) -> Code = QUERY_FENCE;
    fn zeFenceHostSynchronize(Handle, u64) -> Code = WAIT_FOR_FENCE;
    fn zeFenceReset(Handle) -> Code = RESET_FENCE;
    fn zeFenceDestroy(Handle) -> Code = DESTROY_FENCE;
    fn zeEventPoolCreate(Handle, *const Description, c_uint, *const Handle, *mut Handle) -> Code = CREATE_POOL;
    fn zeEventPoolDestroy(Handle) -> Code = DESTROY_POOL;
    fn zeEventCreate(Handle, *const Description, *mut Event) -> Code = CREATE_EVENT;
    fn zeEventQueryStatus(Event) -> Code = QUERY_EVENT;
    fn zeEventHostSynchronize(Event, u64) -> Code = WAIT_FOR_EVENT;
    fn zeEventHostReset(Event) -> Code = RESET_EVENT;
    fn zeEventDestroy(Event) -> Code = DESTROY_EVENT;
}

/// `ze_command_queue_desc_t`, of the program.
#[repr(C)]
pub(crate) struct QueueDescription {
    structure: u32,
    next: *const c_void,
    pub(crate) ordinal: u32,
    pub(crate) index: u32,
    pub(crate) flags: u32,
    pub(crate) mode: u32,
}

#[cfg(test)]
impl QueueDescription {
    /// A queue whose launches do not wait.
    pub(crate) const fn asynchronous() -> Self {
        Self { structure: 0xe, next: ptr::null(), ordinal: 0, index: 0, flags: 0, mode: 2 }
    }
}

/// `ze_command_list_desc_t`, `ze_event_pool_desc_t`, `ze_event_desc_t` and `ze_fence_desc_t`: up to three numbers behind a common head.
#[repr(C)]
pub(crate) struct Description {
    structure: u32,
    next: *const c_void,
    numbers: [u32; 3],
}

impl Description {
    const fn new(structure: u32, numbers: [u32; 3]) -> Self {
        Self { structure, next: ptr::null(), numbers }
    }

    /// A list for the queues of a group.
    pub(crate) const fn list(ordinal: u32) -> Self {
        Self::new(0xf, [ordinal, 0, 0])
    }

    /// A pool of events that the host can query.
    pub(crate) const fn pool(count: u32) -> Self {
        Self::new(0x10, [1, count, 0])
    }

    /// An event whose signal the host sees.
    pub(crate) const fn event(index: u32) -> Self {
        const HOST: u32 = 4;
        Self::new(0x11, [index, HOST, HOST])
    }

    pub(crate) const fn fence() -> Self {
        Self::new(0x12, [0; 3])
    }
}

/// `ze_device_properties_t`.
#[repr(C)]
pub(crate) struct DeviceProperties {
    structure: u32,
    next: *mut c_void,
    pub(crate) kind: u32,
    ids_and_clock: [u32; 5],
    max_allocation: u64,
    numbers: [u32; 7],
    timer_resolution: u64,
    valid_bits: [u32; 2],
    uuid: [u8; 16],
    name: [c_char; 256],
}

impl DeviceProperties {
    pub(crate) fn new() -> Self {
        // SAFETY: every field is a number, an array of numbers, or a pointer that may be null.
        Self { structure: 0x3, ..unsafe { std::mem::zeroed() } }
    }

    pub(crate) fn name(&self) -> String {
        let bytes: Vec<_> = self.name.iter().map(|c| c.to_ne_bytes()[0]).take_while(|c| *c != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// `ze_pci_ext_properties_t`.
#[repr(C)]
pub(crate) struct PciProperties {
    structure: u32,
    next: *mut c_void,
    /// Domain, bus, device and function.
    pub(crate) address: [u32; 4],
    speed: [u64; 2],
}

impl PciProperties {
    pub(crate) const fn new() -> Self {
        Self { structure: 0x1_0008, next: ptr::null_mut(), address: [0; 4], speed: [0; 2] }
    }
}
