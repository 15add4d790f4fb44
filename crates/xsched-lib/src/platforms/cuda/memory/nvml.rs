//! The management library in the program's own process, which frameworks ask for the size of a GPU: it reports the limit too.

use std::ffi::{c_char, c_int, c_uint, c_void};

use xsched_core::DeviceId;
use xsched_interpose::run_isolated;

use super::{Device, reserves};
use crate::allocations::Capacity;
use crate::hooks::{functions, hooks};
use crate::loader::VendorIdentity;
use crate::platforms::cuda::resource_manager::pci_device;

/// `nvmlReturn_t`.
type Code = c_int;
const SUCCESS: Code = 0;
/// `NVML_ERROR_FUNCTION_NOT_FOUND`.
const FUNCTION_NOT_FOUND: Code = 13;

static VENDOR: VendorIdentity = VendorIdentity {
    exports: &[c"nvmlInit_v2", c"nvmlDeviceGetHandleByIndex_v2"],
    files: &["libnvidia-ml.so"],
};

/// `nvmlMemory_t`.
#[repr(C)]
pub(crate) struct MemoryInfo {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
pub(crate) struct MemoryInfo2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// `nvmlPciInfo_t`.
#[repr(C)]
pub(crate) struct PciInfo {
    old_address: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_id: c_uint,
    subsystem_id: c_uint,
    address: [c_char; 32],
}

const _: () = assert!(size_of::<PciInfo>() == 68 && size_of::<MemoryInfo2>() == 40);

hooks! {
    prefix "nvml";
    if missing return FUNCTION_NOT_FOUND;

    fn nvmlDeviceGetMemoryInfo(device: *mut c_void, info: *mut MemoryInfo) -> Code = memory_info;
    fn nvmlDeviceGetMemoryInfo_v2(device: *mut c_void, info: *mut MemoryInfo2) -> Code = memory_info_2;
}

functions! {
    library LIBRARY;

    fn nvmlDeviceGetPciInfo_v3(*mut c_void, *mut PciInfo) -> Code = PCI_INFO;
}

/// Calls `real`, which reports the memory of a GPU.
fn memory_info(real: impl FnOnce() -> Code, device: *mut c_void, info: *mut MemoryInfo) -> Code {
    let code = real();
    run_isolated(|| {
        // SAFETY: null, or the management library has written it.
        if let Some(info) = unsafe { info.as_mut() }.filter(|_| code == SUCCESS)
            && let Some(capacity) = capacity(device, info.total)
        {
            info.total = info.total.min(capacity.limit);
            info.free = info.free.min(capacity.left());
            info.used = capacity.used;
        }
    });
    code
}

/// The same with what the driver has reserved for itself, which does not count against the limit.
fn memory_info_2(real: impl FnOnce() -> Code, device: *mut c_void, info: *mut MemoryInfo2) -> Code {
    let code = real();
    run_isolated(|| {
        // SAFETY: as above.
        if let Some(info) = unsafe { info.as_mut() }.filter(|_| code == SUCCESS)
            && let Some(capacity) = capacity(device, info.total)
        {
            info.total = info.total.min(capacity.limit);
            info.reserved = 0;
            info.free = info.free.min(capacity.left());
            info.used = capacity.used;
        }
    });
    code
}

/// The limit on a GPU of which the management library reports `total` bytes. The driver reports a little less, which counts if it is
/// known: both report the same percentage of it.
fn capacity(device: *mut c_void, total: u64) -> Option<Capacity> {
    let id = device_id(device)?;
    reserves::refresh(id);
    Capacity::of(id, Device::with_id(id).map_or(total, |device| device.total))
}

fn device_id(device: *mut c_void) -> Option<DeviceId> {
    let mut info = std::mem::MaybeUninit::<PciInfo>::zeroed();
    // SAFETY: `info` has room for the result.
    let code = unsafe { PCI_INFO.get()?(device, info.as_mut_ptr()) };
    // SAFETY: all zero is a valid value, and the management library has written the rest.
    let info = unsafe { info.assume_init() };
    (code == SUCCESS).then(|| pci_device(info.domain, info.bus, info.device))
}
