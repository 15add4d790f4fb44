//! The driver, its one device, and contexts.

use std::ffi::{c_char, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

use xsched_sim::{Config, SimDevice};

use crate::object::{self, Handle, Object, write};
use crate::{Code, DEVICE_LOST, INVALID_ARGUMENT, SUCCESS, to_code};

/// The simulated device of this process.
pub(crate) fn device() -> Result<&'static SimDevice, Code> {
    static DEVICE: OnceLock<Option<SimDevice>> = OnceLock::new();
    DEVICE.get_or_init(open).as_ref().ok_or(DEVICE_LOST)
}

fn open() -> Option<SimDevice> {
    let path = PathBuf::from(std::env::var_os("XSIM_DEVICE")?);
    if !path.exists() {
        // If another process creates it at the same time, opening it succeeds.
        if let Ok(created) = SimDevice::create_at(&path, &Config::default()) {
            return Some(created);
        }
    }
    SimDevice::open(&path).ok()
}

/// The driver and the device have no state: their handles are addresses of constants.
static DRIVER: u64 = 1;
static DEVICE: u64 = 2;

pub(crate) extern "C" fn init(_flags: u32) -> Code {
    to_code(device().map(drop))
}

/// Writes one handle as the functions that list objects do: a count of 0 asks for the number of objects.
unsafe fn list(count: *mut u32, out: *mut *const u64, handle: *const u64) -> Code {
    // SAFETY: the program passes a number.
    let Some(count) = (unsafe { count.as_mut() }) else { return INVALID_ARGUMENT };
    let room = std::mem::replace(count, 1);
    // SAFETY: the program passes room for as many handles as it says.
    if room > 0 && !out.is_null() { to_code(unsafe { write(out, handle) }) } else { SUCCESS }
}

pub(crate) unsafe extern "C" fn get_drivers(count: *mut u32, out: *mut *const u64) -> Code {
    // SAFETY: the caller's own arguments.
    unsafe { list(count, out, &raw const DRIVER) }
}

pub(crate) unsafe extern "C" fn get_devices(
    _driver: *const u64,
    count: *mut u32,
    out: *mut *const u64,
) -> Code {
    // SAFETY: the caller's own arguments.
    unsafe { list(count, out, &raw const DEVICE) }
}

pub(crate) unsafe extern "C" fn get_sub_devices(
    _device: *const u64,
    count: *mut u32,
    _out: *mut *const u64,
) -> Code {
    // SAFETY: the program passes room for a number.
    to_code(unsafe { write(count, 0) })
}

pub(crate) unsafe extern "C" fn get_extensions(
    _driver: *const u64,
    count: *mut u32,
    _out: *mut c_void,
) -> Code {
    // SAFETY: the program passes room for a number.
    to_code(unsafe { write(count, 0) })
}

pub(crate) unsafe extern "C" fn get_api_version(_driver: *const u64, out: *mut u32) -> Code {
    // SAFETY: the program passes room for a number. Version 1.4.
    to_code(unsafe { write(out, 0x1_0004) })
}

/// `ze_driver_properties_t`.
#[repr(C)]
pub(crate) struct DriverProperties {
    structure: u32,
    next: *mut c_void,
    uuid: [u8; 16],
    version: u32,
}

pub(crate) unsafe extern "C" fn get_driver_properties(
    _driver: *const u64,
    out: *mut DriverProperties,
) -> Code {
    // SAFETY: the program passes a structure of this type.
    let Some(properties) = (unsafe { out.as_mut() }) else { return INVALID_ARGUMENT };
    (properties.uuid, properties.version) = (*b"xsched stand-in ", 1);
    SUCCESS
}

const NAME_LENGTH: usize = 256;

/// `ze_device_properties_t`.
#[repr(C)]
pub(crate) struct Properties {
    structure: u32,
    next: *mut c_void,
    /// 1 is a GPU.
    kind: u32,
    vendor: u32,
    device: u32,
    flags: u32,
    sub_device: u32,
    clock_rate: u32,
    max_allocation: u64,
    numbers: [u32; 7],
    timer_resolution: u64,
    valid_bits: [u32; 2],
    uuid: [u8; 16],
    name: [c_char; NAME_LENGTH],
}

pub(crate) unsafe extern "C" fn get_properties(_device: *const u64, out: *mut Properties) -> Code {
    // SAFETY: the program passes a structure of this type.
    let Some(properties) = (unsafe { out.as_mut() }) else { return INVALID_ARGUMENT };
    let (structure, next) = (properties.structure, properties.next);
    // SAFETY: every field is a number or an array of numbers, or is set below.
    *properties = unsafe { std::mem::zeroed() };
    (properties.structure, properties.next) = (structure, next);
    (properties.kind, properties.vendor, properties.max_allocation) = (1, 0x8086, 1 << 32);
    (properties.timer_resolution, properties.valid_bits) = (1_000_000_000, [64, 64]);
    properties.uuid = *b"xsched stand-in ";
    for (to, from) in properties.name.iter_mut().zip(b"Level Zero stand-in") {
        *to = c_char::from_ne_bytes([*from]);
    }
    SUCCESS
}

/// `ze_command_queue_group_properties_t`.
#[repr(C)]
pub(crate) struct QueueGroup {
    structure: u32,
    next: *mut c_void,
    flags: u32,
    max_fill_pattern: usize,
    queues: u32,
}

pub(crate) unsafe extern "C" fn get_queue_groups(
    _device: *const u64,
    count: *mut u32,
    out: *mut QueueGroup,
) -> Code {
    // SAFETY: the program passes a number.
    let Some(count) = (unsafe { count.as_mut() }) else { return INVALID_ARGUMENT };
    let room = std::mem::replace(count, 1);
    // SAFETY: the program passes room for as many structures as it says.
    if let Some(group) = unsafe { out.as_mut() }.filter(|_| room > 0) {
        // Compute and copy.
        (group.flags, group.max_fill_pattern, group.queues) = (0b11, 16, 16);
    }
    SUCCESS
}

/// `ze_pci_ext_properties_t`, up to the fields that are set.
#[repr(C)]
pub(crate) struct PciProperties {
    structure: u32,
    next: *mut c_void,
    /// Domain, bus, device and function.
    address: [u32; 4],
}

pub(crate) unsafe extern "C" fn get_pci_properties(_device: *const u64, out: *mut PciProperties) -> Code {
    // SAFETY: the program passes a structure of this type.
    let Some(properties) = (unsafe { out.as_mut() }) else { return INVALID_ARGUMENT };
    properties.address = [0, 0, 2, 0];
    SUCCESS
}

struct Context;

impl Object for Context {
    const TAG: u64 = u64::from_le_bytes(*b"ze contx");
}

pub(crate) unsafe extern "C" fn create_context(
    _driver: *const u64,
    _description: *const c_void,
    out: *mut *const c_void,
) -> Code {
    // SAFETY: the program passes room for a handle.
    to_code(unsafe { object::create(out.cast::<*const Handle<Context>>(), Context) })
}

pub(crate) unsafe extern "C" fn destroy_context(context: *const c_void) -> Code {
    // SAFETY: the program passes a handle from `create_context`.
    to_code(unsafe { object::destroy(context.cast::<Handle<Context>>()) })
}
