//! The devices, and what can be asked about them.

use std::ffi::{c_char, c_int, c_uint};

use crate::code::{Code, Outcome, put};
use crate::settings::{self, Settings};
use crate::world::{begin, world};

/// The version of CUDA that this driver speaks.
const VERSION: c_int = 13_000;
const OLD_VERSION: c_int = 11_060;

/// Where a device is: domain, bus and slot.
pub(crate) fn pci(device: usize) -> (u32, u16, u16) {
    (0, 0, 6 + u16::try_from(device).unwrap_or(0))
}

/// The device that a program has this number for.
pub(crate) fn index(device: c_int) -> Result<usize, Code> {
    let ordinal = usize::try_from(device).map_err(|_| Code::ERROR_INVALID_DEVICE)?;
    Settings::get().visible.get(ordinal).copied().ok_or(Code::ERROR_INVALID_DEVICE)
}

/// The number that programs have for a device.
pub(crate) fn ordinal(device: usize) -> c_int {
    let place = Settings::get().visible.iter().position(|visible| *visible == device);
    place.and_then(|place| c_int::try_from(place).ok()).unwrap_or(c_int::MAX)
}

pub(crate) unsafe fn init(flags: c_uint) -> Outcome {
    if flags != 0 {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    if Settings::get().visible.is_empty() {
        return Err(Code::ERROR_NO_DEVICE);
    }
    begin()
}

pub(crate) fn driver_version() -> c_int {
    if Settings::get().new_waits { VERSION } else { OLD_VERSION }
}

pub(crate) unsafe fn version(out: *mut c_int) -> Outcome {
    // SAFETY: the caller vouches for `out`.
    unsafe { put(out, driver_version()) }
}

pub(crate) unsafe fn count(out: *mut c_int) -> Outcome {
    world()?;
    // SAFETY: the caller vouches for `out`.
    unsafe { put(out, c_int::try_from(Settings::get().visible.len()).unwrap_or(0)) }
}

pub(crate) unsafe fn get(out: *mut c_int, device: c_int) -> Outcome {
    world()?;
    index(device)?;
    // SAFETY: the caller vouches for `out`.
    unsafe { put(out, device) }
}

pub(crate) unsafe fn name(out: *mut c_char, room: c_int, device: c_int) -> Outcome {
    world()?;
    let name = format!("Stand-in GPU {}", index(device)?);
    let room = usize::try_from(room).ok().filter(|room| *room > 0 && !out.is_null());
    let room = room.ok_or(Code::ERROR_INVALID_VALUE)?;
    let length = name.len().min(room - 1);
    // SAFETY: the caller vouches for `room` bytes, and no more than that are written.
    unsafe {
        std::ptr::copy_nonoverlapping(name.as_ptr().cast(), out, length);
        out.add(length).write(0);
    }
    Ok(())
}

pub(crate) unsafe fn uuid(out: *mut [u8; 16], device: c_int) -> Outcome {
    world()?;
    let uuid = settings::uuid(index(device)?);
    // SAFETY: the caller vouches for `out`.
    unsafe { put(out, uuid) }
}

pub(crate) unsafe fn total_memory(out: *mut usize, device: c_int) -> Outcome {
    world()?;
    index(device)?;
    // SAFETY: the caller vouches for `out`.
    unsafe { put(out, 16 << 30) }
}

pub(crate) unsafe fn attribute(out: *mut c_int, which: c_int, device: c_int) -> Outcome {
    world()?;
    let (domain, bus, slot) = pci(index(device)?);
    let settings = Settings::get();
    let waits = c_int::from(settings.memory_waits);
    let value = match which {
        // Threads in a block and two of its extents, then the third and the number of processors; blocks in a grid.
        1..=3 => 1024,
        4 | 16 => 64,
        5 => c_int::MAX,
        6 | 7 => 65_535,
        // Threads in a warp, clock in kHz, threads on a processor.
        10 => 32,
        13 => 1_000_000,
        39 => 2048,
        33 => bus.into(),
        34 => slot.into(),
        50 => c_int::try_from(domain).unwrap_or(0),
        // Copy engines.
        40 => 3,
        // Unified addressing, stream priorities, cooperative launches.
        41 | 78 | 95 => 1,
        75 => 9,
        // Stream memory operations: their first form, with 64 bits, with NOR; then the second form likewise.
        92 | 94 => waits,
        123 => c_int::from(settings.memory_waits && settings.new_waits),
        // Nothing of the kind, among them several kernels at a time.
        n if (1..=150).contains(&n) => 0,
        _ => return Err(Code::ERROR_INVALID_VALUE),
    };
    // SAFETY: the caller vouches for `out`.
    unsafe { put(out, value) }
}

pub(crate) unsafe fn bus_id(out: *mut c_char, room: c_int, device: c_int) -> Outcome {
    world()?;
    let (domain, bus, slot) = pci(index(device)?);
    let text = format!("{domain:04x}:{bus:02x}:{slot:02x}.0\0");
    let fits = usize::try_from(room).is_ok_and(|room| room >= text.len()) && !out.is_null();
    if !fits {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller vouches for `room` bytes, which was just seen to be enough.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), out, text.len()) };
    Ok(())
}
