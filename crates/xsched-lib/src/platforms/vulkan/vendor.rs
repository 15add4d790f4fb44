//! Vulkan's types that this platform uses, and those of the loader's interface to layers.

use std::ffi::{c_char, c_void};

pub(crate) use xsched_interpose::Handle;

/// `VkResult`.
pub(crate) type Code = i32;
pub(crate) const SUCCESS: Code = 0;
pub(crate) const NOT_READY: Code = 1;
pub(crate) const INITIALIZATION_FAILED: Code = -3;

/// A handle without a dispatch table, such as a fence.
pub(crate) type Object = u64;

/// The beginning of every extensible structure.
#[repr(C)]
pub(crate) struct Chained {
    pub(crate) kind: i32,
    pub(crate) next: *const Chained,
}

/// `VkStructureType`.
pub(crate) const FENCE_CREATE_INFO: i32 = 8;
pub(crate) const LOADER_INSTANCE_CREATE_INFO: i32 = 47;
pub(crate) const LOADER_DEVICE_CREATE_INFO: i32 = 48;
pub(crate) const PROPERTIES_2: i32 = 1_000_059_001;
pub(crate) const PCI_BUS_INFO: i32 = 1_000_212_000;
pub(crate) const TIMELINE_SEMAPHORE_SUBMIT_INFO: i32 = 1_000_207_003;

/// The structures of this kind in a chain, which null ends.
///
/// # Safety
/// The chain is valid while the iterator is used.
pub(crate) unsafe fn in_chain(first: *const Chained, kind: i32) -> impl Iterator<Item = *const Chained> {
    let unless_null = |at: *const Chained| (!at.is_null()).then_some(at);
    // SAFETY: guaranteed by the caller.
    std::iter::successors(unless_null(first), move |at| unless_null(unsafe { (**at).next }))
        // SAFETY: as above.
        .filter(move |at| unsafe { (**at).kind } == kind)
}

pub(crate) type GetProcAddr = unsafe extern "C" fn(Handle, *const c_char) -> *mut c_void;
pub(crate) type CreateInstance = unsafe extern "C" fn(*const Chained, *const c_void, *mut Handle) -> Code;
pub(crate) type CreateDevice =
    unsafe extern "C" fn(Handle, *const Chained, *const c_void, *mut Handle) -> Code;
pub(crate) type Destroy = unsafe extern "C" fn(Handle, *const c_void);
pub(crate) type GetProperties = unsafe extern "C" fn(Handle, *mut Properties);
pub(crate) type GetProperties2 = unsafe extern "C" fn(Handle, *mut Properties2);

/// `VkNegotiateLayerInterface`.
#[repr(C)]
pub(crate) struct LayerInterface {
    kind: i32,
    next: *mut c_void,
    pub(crate) version: u32,
    pub(crate) get_instance_proc_addr: Option<GetProcAddr>,
    pub(crate) get_device_proc_addr: Option<GetProcAddr>,
    pub(crate) get_physical_device_proc_addr: Option<GetProcAddr>,
}

/// `VkLayerInstanceCreateInfo` and `VkLayerDeviceCreateInfo`, which have the same layout.
#[repr(C)]
pub(crate) struct LinkInfo {
    head: Chained,
    /// Which member the union has: 0 for the link.
    pub(crate) function: i32,
    pub(crate) link: *mut Link,
}

/// The next layer of the chain, or the driver. The last member is unused for instances.
#[repr(C)]
pub(crate) struct Link {
    pub(crate) next: *mut Link,
    pub(crate) get_instance_proc_addr: GetProcAddr,
    pub(crate) get_device_proc_addr: Option<GetProcAddr>,
}

/// `VkFenceCreateInfo`.
#[repr(C)]
pub(crate) struct FenceCreateInfo {
    pub(crate) head: Chained,
    pub(crate) flags: u32,
}

/// `VkEventCreateInfo`. An event without [`DEVICE_ONLY`] can be set by the program.
#[repr(C)]
pub(crate) struct EventCreateInfo {
    head: Chained,
    pub(crate) flags: u32,
}

pub(crate) const DEVICE_ONLY: u32 = 1;

/// `VkPhysicalDeviceProperties`, as far as it is used.
#[repr(C)]
pub(crate) struct Properties {
    versions_and_ids: [u32; 4],
    pub(crate) kind: i32,
    pub(crate) name: [c_char; 256],
    /// More than the remaining members need.
    rest: [u64; 128],
}

/// `VkPhysicalDeviceProperties2`.
#[repr(C)]
pub(crate) struct Properties2 {
    pub(crate) head: Chained,
    pub(crate) properties: Properties,
}

impl Properties {
    pub(crate) const EMPTY: Self = Self { versions_and_ids: [0; 4], kind: 0, name: [0; 256], rest: [0; 128] };
}

/// `VkPhysicalDeviceType`.
pub(crate) const CPU: i32 = 4;
pub(crate) const GPUS: std::ops::RangeInclusive<i32> = 1..=3;

/// `VkPhysicalDevicePCIBusInfoPropertiesEXT`: domain, bus, device, function.
#[repr(C)]
pub(crate) struct PciBusInfo {
    pub(crate) head: Chained,
    pub(crate) address: [u32; 4],
}

/// `VkSubmitInfo`; a batch of `vkQueueSubmit`.
#[repr(C)]
pub(crate) struct SubmitInfo {
    pub(crate) head: Chained,
    rest: [u64; 7],
}

/// `VkBindSparseInfo`; a batch of `vkQueueBindSparse`.
#[repr(C)]
pub(crate) struct BindSparseInfo {
    pub(crate) head: Chained,
    rest: [u64; 10],
}

/// `VkSubmitInfo2`; a batch of `vkQueueSubmit2`.
#[repr(C)]
pub(crate) struct SubmitInfo2 {
    head: Chained,
    flags: u32,
    pub(crate) waits: u32,
    pub(crate) wait_list: *const SemaphoreSubmitInfo,
    rest: [u64; 4],
}

/// `VkSemaphoreSubmitInfo`.
#[repr(C)]
pub(crate) struct SemaphoreSubmitInfo {
    head: Chained,
    semaphore: Object,
    pub(crate) value: u64,
    rest: [u64; 2],
}

/// `VkTimelineSemaphoreSubmitInfo`.
#[repr(C)]
pub(crate) struct TimelineSubmitInfo {
    head: Chained,
    pub(crate) waits: u32,
    pub(crate) wait_values: *const u64,
}

const _: () = assert!(
    size_of::<SubmitInfo>() == 72
        && size_of::<BindSparseInfo>() == 96
        && size_of::<SubmitInfo2>() == 64
        && size_of::<SemaphoreSubmitInfo>() == 48
        && std::mem::offset_of!(Properties, name) == 20
        && size_of::<Properties>() >= 824
);
