//! What the runtime reports about a device: an MI250's half (gfx90a), or a part of it.

use std::ffi::{c_char, c_int};

use crate::device::{Device, at, write_out};
use crate::device_memory;
use crate::error::{Code, INVALID_VALUE, to_code};

const COMPUTE_UNITS: c_int = 104;
const WAVE: c_int = 64;
const THREADS_PER_BLOCK: c_int = 1024;
const THREADS_PER_UNIT: c_int = 2048;
const SHARED_MEMORY: c_int = 65_536;
const REGISTERS: c_int = 65_536;
const CLOCK_KHZ: c_int = 1_700_000;
const L2_CACHE: c_int = 8 << 20;

/// The value of a `hipDeviceAttribute_t`; none for one that is not modelled.
fn value(which: c_int, device: &Device) -> Option<c_int> {
    let (domain, bus, slot, _) = device.pci();
    let units = COMPUTE_UNITS / c_int::try_from(device.partitions()).ok()?;
    Some(match which {
        // ECC, mapped host memory, concurrent and cooperative kernels, managed memory, priorities, one address space,
        // pools, virtual memory, registered memory, large BAR, waits for memory, fine-grained memory.
        0 | 3 | 8 | 10 | 24 | 78 | 85 | 88 | 89 | 90 | 10_011 | 10_013 | 10_016 => 1,
        // Compute mode, integrated, minor version, revision, images.
        6 | 16 | 61 | 10_012 | 10_014 => 0,
        // Engines that copy.
        2 => 2,
        5 => CLOCK_KHZ,
        19 => L2_CACHE,
        23 => 9,
        // The largest block and grid in each dimension, and the constant memory.
        26..=28 | 56 => THREADS_PER_BLOCK,
        29..=31 | 83 => c_int::MAX,
        57 => THREADS_PER_UNIT,
        // Width and clock of the memory.
        59 => 4096,
        60 => 1_600_000,
        63 | 10_015 => units,
        67 => bus,
        68 => slot,
        69 => domain,
        71 | 72 => REGISTERS,
        74..=76 | 10_002 => SHARED_MEMORY,
        81 => 256,
        87 => WAVE,
        10_017 => 100_000,
        _ => return None,
    })
}

pub(crate) extern "C" fn attribute(out: *mut c_int, which: c_int, device: c_int) -> Code {
    to_code(at(device).and_then(|device| write_out(out, value(which, device).ok_or(INVALID_VALUE)?)))
}

pub(crate) extern "C" fn pci_bus_id(name: *mut c_char, room: c_int, device: c_int) -> Code {
    to_code(at(device).and_then(|device| {
        let (domain, bus, slot, function) = device.pci();
        write_text(name, room, &format!("{domain:04x}:{bus:02x}:{slot:02x}.{function}"))
    }))
}

pub(crate) extern "C" fn name(name: *mut c_char, room: c_int, device: c_int) -> Code {
    to_code(at(device).and_then(|_| write_text(name, room, "HIP stand-in")))
}

fn write_text(to: *mut c_char, room: c_int, text: &str) -> Result<(), Code> {
    if to.is_null() || usize::try_from(room).unwrap_or(0) <= text.len() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller guarantees room for the text and a zero byte.
    unsafe {
        to.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

pub(crate) extern "C" fn priority_range(least: *mut c_int, greatest: *mut c_int) -> Code {
    to_code(write_out(least, 1).and(write_out(greatest, -1)))
}

pub(crate) extern "C" fn runtime_version(version: *mut c_int) -> Code {
    to_code(write_out(version, 60_443_482))
}

/// `hipDeviceProp_t` of version 6: 1472 bytes, with the fields that libraries use.
pub(crate) extern "C" fn properties(out: *mut u8, device: c_int) -> Code {
    to_code(at(device).and_then(|device| {
        let mut bytes = vec![0_u8; 1472];
        let mut write = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        let (domain, bus, slot, _) = device.pci();
        write(0, b"Stand-in");
        write(288, &device_memory::total().to_ne_bytes());
        write(296, &u64::from(SHARED_MEMORY.unsigned_abs()).to_ne_bytes());
        // Registers and threads per block, wave, compute units, clock, version, address, cache, threads per unit.
        let units = value(63, device).unwrap_or(0);
        let fields = [
            (304, REGISTERS),
            (308, WAVE),
            (320, THREADS_PER_BLOCK),
            (348, CLOCK_KHZ),
            (360, 9),
            (388, units),
            (584, bus),
            (588, slot),
            (592, domain),
            (616, L2_CACHE),
            (624, THREADS_PER_UNIT),
        ];
        for (at, value) in fields {
            write(at, &value.to_ne_bytes());
        }
        // The largest block, then the largest grid, in each dimension.
        for n in 0..3 {
            write(324 + 4 * n, &THREADS_PER_BLOCK.to_ne_bytes());
            write(336 + 4 * n, &c_int::MAX.to_ne_bytes());
        }
        write(1160, b"gfx90a:sramecc+:xnack-");
        if out.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller has room for the structure of this version.
        unsafe { out.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }))
}

/// `hipDeviceProp_t` before version 6: 792 bytes, with the name and the size of the memory.
pub(crate) extern "C" fn properties_of_version_5(out: *mut u8, device: c_int) -> Code {
    to_code(at(device).and_then(|_| {
        let mut bytes = [0_u8; 792];
        bytes[..8].copy_from_slice(b"Stand-in");
        bytes[256..264].copy_from_slice(&device_memory::total().to_ne_bytes());
        write_out(out.cast(), bytes)
    }))
}
