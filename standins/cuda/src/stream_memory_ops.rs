//! Stream memory operations: a stream waits for a word in memory, or writes one.

use std::ffi::c_uint;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::code::{Code, Outcome};
use crate::driver::Handle;
use crate::settings::Settings;
use crate::stream::{DefaultStream, Work, submit};

/// The comparison of a wait, in the low bits of its flags.
const GEQ: c_uint = 0;
const EQ: c_uint = 1;
const AND: c_uint = 2;
const NOR: c_uint = 3;
/// `CU_STREAM_WAIT_VALUE_FLUSH`: makes remote writes visible, which they always are here.
const FLUSH: c_uint = 1 << 30;

/// Whether the condition of a wait holds. Greater-or-equal compares cyclically.
pub(crate) fn is_satisfied(address: usize, value: u32, how: c_uint) -> bool {
    let is = word(address).load(Ordering::Acquire);
    match how & !FLUSH {
        GEQ => is.wrapping_sub(value) < 1 << 31,
        EQ => is == value,
        AND => is & value != 0,
        _ => !(is | value) != 0,
    }
}

/// Writes a word as the device does.
pub(crate) fn write(address: usize, value: u32) {
    word(address).store(value, Ordering::Release);
}

fn word<'a>(address: usize) -> &'a AtomicU32 {
    // SAFETY: the program that submitted the operation keeps the word valid until it completes, and accesses it as an
    // aligned word only; `check` verified the alignment.
    unsafe { AtomicU32::from_ptr(address as *mut u32) }
}

fn check(address: usize, v2: bool) -> Outcome {
    let settings = Settings::get();
    if !settings.has_memory_ops || (v2 && !settings.has_memory_ops_v2) {
        return Err(Code::ERROR_NOT_SUPPORTED);
    }
    if address == 0 || !address.is_multiple_of(4) { Err(Code::ERROR_INVALID_VALUE) } else { Ok(()) }
}

fn wait(
    default_stream: DefaultStream,
    stream: Handle,
    address: usize,
    value: u32,
    how: c_uint,
    v2: bool,
) -> Outcome {
    check(address, v2)?;
    if how & !FLUSH > NOR {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    submit(default_stream, stream, Work::WaitValue { address, value, how })
}

fn submit_write(
    default_stream: DefaultStream,
    stream: Handle,
    address: usize,
    value: u32,
    flags: c_uint,
    v2: bool,
) -> Outcome {
    check(address, v2)?;
    // Hardware like this device rejects writes without a memory barrier.
    if flags != 0 {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    submit(default_stream, stream, Work::WriteValue { address, value })
}

pub(crate) unsafe fn wait_value(
    default_stream: DefaultStream,
    stream: Handle,
    address: usize,
    value: u32,
    how: c_uint,
) -> Outcome {
    wait(default_stream, stream, address, value, how, false)
}

pub(crate) unsafe fn wait_value_v2(
    default_stream: DefaultStream,
    stream: Handle,
    address: usize,
    value: u32,
    how: c_uint,
) -> Outcome {
    wait(default_stream, stream, address, value, how, true)
}

pub(crate) unsafe fn write_value(
    default_stream: DefaultStream,
    stream: Handle,
    address: usize,
    value: u32,
    flags: c_uint,
) -> Outcome {
    submit_write(default_stream, stream, address, value, flags, false)
}

pub(crate) unsafe fn write_value_v2(
    default_stream: DefaultStream,
    stream: Handle,
    address: usize,
    value: u32,
    flags: c_uint,
) -> Outcome {
    submit_write(default_stream, stream, address, value, flags, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_comparison_follows_its_definition() {
        let mut is = 6u32;
        let address = &raw mut is as usize;
        for (value, how, expected) in [
            (6, GEQ, true),
            (7, GEQ, false),
            (u32::MAX, GEQ, true),
            (6, EQ | FLUSH, true),
            (5, EQ, false),
            (2, AND, true),
            (1, AND, false),
            (0, NOR, true),
            (!6, NOR, false),
        ] {
            assert_eq!(is_satisfied(address, value, how), expected, "{is} {how:#x} {value}");
        }
        write(address, 9);
        assert_eq!(is, 9);
    }
}
