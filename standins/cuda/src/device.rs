//! The devices and their attributes.

use std::ffi::{c_char, c_int, c_uint};

use crate::code::{Code, Outcome, write_out};
use crate::driver::{driver, initialize};
use crate::settings::{self, Settings};

/// The version of CUDA that this driver supports, and the one it reports without the second stream memory operations.
const VERSION: c_int = 13_000;
const OLD_VERSION: c_int = 11_060;

/// The PCI address of a device: domain, bus and slot.
pub(crate) fn pci(device: usize) -> (u32, u16, u16) {
    (0, 0, 6 + u16::try_from(device).unwrap_or(0))
}

/// The device with this ordinal.
pub(crate) fn index(device: c_int) -> Result<usize, Code> {
    let ordinal = usize::try_from(device).map_err(|_| Code::ERROR_INVALID_DEVICE)?;
    Settings::get().visible.get(ordinal).copied().ok_or(Code::ERROR_INVALID_DEVICE)
}

/// The ordinal of a device in this program.
pub(crate) fn ordinal(device: usize) -> c_int {
    let position = Settings::get().visible.iter().position(|visible| *visible == device);
    position.and_then(|position| c_int::try_from(position).ok()).unwrap_or(c_int::MAX)
}

pub(crate) unsafe fn init(flags: c_uint) -> Outcome {
    if flags != 0 {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    if Settings::get().visible.is_empty() {
        return Err(Code::ERROR_NO_DEVICE);
    }
    initialize()
}

pub(crate) fn driver_version() -> c_int {
    if Settings::get().has_memory_ops_v2 { VERSION } else { OLD_VERSION }
}

pub(crate) unsafe fn version(out: *mut c_int) -> Outcome {
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, driver_version()) }
}

pub(crate) unsafe fn count(out: *mut c_int) -> Outcome {
    driver()?;
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, c_int::try_from(Settings::get().visible.len()).unwrap_or(0)) }
}

pub(crate) unsafe fn get(out: *mut c_int, device: c_int) -> Outcome {
    driver()?;
    index(device)?;
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, device) }
}

pub(crate) unsafe fn name(out: *mut c_char, room: c_int, device: c_int) -> Outcome {
    driver()?;
    let name = format!("Stand-in GPU {}", index(device)?);
    let room = usize::try_from(room).ok().filter(|room| *room > 0 && !out.is_null());
    let room = room.ok_or(Code::ERROR_INVALID_VALUE)?;
    let length = name.len().min(room - 1);
    // SAFETY: the caller guarantees `room` bytes, and no more than that are written.
    unsafe {
        std::ptr::copy_nonoverlapping(name.as_ptr().cast(), out, length);
        out.add(length).write(0);
    }
    Ok(())
}

pub(crate) unsafe fn uuid(out: *mut [u8; 16], device: c_int) -> Outcome {
    driver()?;
    let uuid = settings::uuid(index(device)?);
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, uuid) }
}

pub(crate) unsafe fn total_memory(out: *mut usize, device: c_int) -> Outcome {
    driver()?;
    index(device)?;
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, usize::try_from(Settings::get().memory).unwrap_or(usize::MAX)) }
}

pub(crate) unsafe fn attribute(out: *mut c_int, which: c_int, device: c_int) -> Outcome {
    driver()?;
    let (domain, bus, slot) = pci(index(device)?);
    let settings = Settings::get();
    let memory_ops = c_int::from(settings.has_memory_ops);
    let value = match which {
        // Maximum threads per block and its first two dimensions; its third and the multiprocessors; grid dimensions.
        1..=3 => 1024,
        4 | 16 => 64,
        5 => c_int::MAX,
        6 | 7 => 65_535,
        // Warp size, clock in kHz, threads per multiprocessor.
        10 => 32,
        13 => 1_000_000,
        39 => 2048,
        33 => bus.into(),
        34 => slot.into(),
        50 => c_int::try_from(domain).unwrap_or(0),
        // Copy engines.
        40 => 3,
        // Unified addressing, stream priorities, managed memory, cooperative launches, virtual memory, pools.
        41 | 78 | 83 | 95 | 102 | 115 => 1,
        75 => 9,
        // Stream memory operations: 32 and 64 bits, wait for NOR; then the second interface.
        92 | 94 => memory_ops,
        123 => c_int::from(settings.has_memory_ops && settings.has_memory_ops_v2),
        // Other known attributes are 0, among them concurrent kernels.
        n if (1..=150).contains(&n) => 0,
        _ => return Err(Code::ERROR_INVALID_VALUE),
    };
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, value) }
}

pub(crate) unsafe fn bus_id(out: *mut c_char, room: c_int, device: c_int) -> Outcome {
    driver()?;
    let (domain, bus, slot) = pci(index(device)?);
    let text = format!("{domain:04x}:{bus:02x}:{slot:02x}.0\0");
    let fits = usize::try_from(room).is_ok_and(|room| room >= text.len()) && !out.is_null();
    if !fits {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller guarantees `room` bytes, which suffice as checked above.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), out, text.len()) };
    Ok(())
}
