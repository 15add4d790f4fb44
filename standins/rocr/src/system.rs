//! Properties of the system, and extensions.

use std::ffi::{c_char, c_void};

use xsched_core::Nanos;

use crate::status::{ERROR, INVALID_ARGUMENT, SUCCESS, Status, to_status, write_out};

/// The version of the interface, and that of AMD's extensions.
const VERSION: (u16, u16) = (1, 1);
const EXTENSIONS_VERSION: (u16, u16) = (1, 14);
/// Times are in nanoseconds.
const FREQUENCY: u64 = 1_000_000_000;

/// `hsa_system_get_info`.
pub(crate) extern "C" fn get_info(attribute: u32, out: *mut c_void) -> Status {
    to_status(match attribute {
        0 => write_out(out.cast(), VERSION.0),
        1 => write_out(out.cast(), VERSION.1),
        2 => write_out(out.cast(), Nanos::now().0),
        3 => write_out(out.cast(), FREQUENCY),
        // HSA_SYSTEM_INFO_SIGNAL_MAX_WAIT
        4 => write_out(out.cast(), u64::MAX),
        // Little endian, and the large machine model.
        5 => write_out(out.cast(), 0_u32),
        6 => write_out(out.cast(), 1_u32),
        7 => write_out(out.cast(), extensions()),
        0x200 => write_out(out.cast(), c"xsched-standin".as_ptr()),
        // Shared virtual memory by page faults, and mwaitx: not supported.
        0x201..=0x203 | 0x206 => write_out(out.cast(), false),
        // DMA buffers, and the virtual memory functions.
        0x204 | 0x205 => write_out(out.cast(), true),
        0x207 => write_out(out.cast(), EXTENSIONS_VERSION.0),
        0x208 => write_out(out.cast(), EXTENSIONS_VERSION.1),
        _ => Err(INVALID_ARGUMENT),
    })
}

/// `HSA_EXTENSION_IMAGES`. It is there on every GPU; on those without images, as this one, all its limits are 0.
const IMAGES: u16 = 1;

/// The extensions as a bit mask.
pub(crate) fn extensions() -> [u8; 128] {
    let mut mask = [0; 128];
    mask[0] = 1 << IMAGES;
    mask
}

/// `hsa_system_extension_supported`.
pub(crate) extern "C" fn extension_supported(
    extension: u16,
    _major: u16,
    _minor: u16,
    out: *mut bool,
) -> Status {
    to_status(write_out(out, extension == IMAGES))
}

/// `hsa_system_major_extension_supported`.
pub(crate) extern "C" fn major_extension_supported(
    extension: u16,
    _major: u16,
    minor: *mut u16,
    out: *mut bool,
) -> Status {
    to_status(write_out(minor, 0).and(write_out(out, extension == IMAGES)))
}

/// `hsa_system_get_extension_table`.
pub(crate) extern "C" fn extension_table(
    _extension: u16,
    _major: u16,
    _minor: u16,
    _table: *mut c_void,
) -> Status {
    ERROR
}

/// `hsa_system_get_major_extension_table`.
pub(crate) extern "C" fn major_extension_table(
    _extension: u16,
    _major: u16,
    _length: usize,
    _table: *mut c_void,
) -> Status {
    ERROR
}

/// `hsa_agent_extension_supported`.
pub(crate) extern "C" fn agent_extension_supported(
    extension: u16,
    _agent: u64,
    _major: u16,
    _minor: u16,
    out: *mut bool,
) -> Status {
    to_status(write_out(out, extension == IMAGES))
}

/// `hsa_agent_major_extension_supported`.
pub(crate) extern "C" fn agent_major_extension_supported(
    extension: u16,
    _agent: u64,
    _major: u16,
    minor: *mut u16,
    out: *mut bool,
) -> Status {
    to_status(write_out(minor, 0).and(write_out(out, extension == IMAGES)))
}

/// `hsa_amd_enable_logging`: accepted; nothing is logged.
pub(crate) extern "C" fn enable_logging(_flags: *mut u8, _file: *mut c_void) -> Status {
    SUCCESS
}

/// The list of loaded code that debuggers read: version 9 and an empty list.
#[repr(C)]
pub(crate) struct DebuggerList {
    version: i32,
    first: *const c_char,
    breakpoint: u64,
    state: i32,
    base: u64,
}

// SAFETY: constant, and the only address in it is null.
unsafe impl Sync for DebuggerList {}

/// Read by debuggers that attach to the process.
#[unsafe(no_mangle)]
static _amdgpu_r_debug: DebuggerList =
    DebuggerList { version: 9, first: std::ptr::null(), breakpoint: 0, state: 0, base: 0 };
