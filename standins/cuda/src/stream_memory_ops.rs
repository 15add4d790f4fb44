//! Stream memory operations: a stream that waits for a word in memory, or writes one.

use std::ffi::c_uint;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::code::{Code, Outcome};
use crate::settings::Settings;
use crate::stream::{Form, Work, submit};
use crate::world::Handle;

/// What a wait compares, in the low bits of its flags.
const GEQ: c_uint = 0;
const EQ: c_uint = 1;
const AND: c_uint = 2;
const NOR: c_uint = 3;
/// `CU_STREAM_WAIT_VALUE_FLUSH`: makes remote writes visible, which they are here.
const FLUSH: c_uint = 1 << 30;

/// Whether what is waited for has come. Greater or equal is meant cyclically.
pub(crate) fn has_come(address: usize, value: u32, how: c_uint) -> bool {
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
    // SAFETY: whoever puts a wait or a write into a stream vouches for the word until it is done, and that others only
    // use it as a word; `checked` has seen to its alignment.
    unsafe { AtomicU32::from_ptr(address as *mut u32) }
}

fn checked(address: usize, new: bool) -> Outcome {
    let settings = Settings::get();
    if !settings.memory_waits || (new && !settings.new_waits) {
        return Err(Code::ERROR_NOT_SUPPORTED);
    }
    if address == 0 || !address.is_multiple_of(4) { Err(Code::ERROR_INVALID_VALUE) } else { Ok(()) }
}

fn wait(form: Form, stream: Handle, address: usize, value: u32, how: c_uint, new: bool) -> Outcome {
    checked(address, new)?;
    if how & !FLUSH > NOR {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    submit(form, stream, Work::WaitValue { address, value, how })
}

fn put(form: Form, stream: Handle, address: usize, value: u32, flags: c_uint, new: bool) -> Outcome {
    checked(address, new)?;
    // Writing without a barrier is refused by the devices that this one resembles.
    if flags != 0 {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    submit(form, stream, Work::WriteValue { address, value })
}

pub(crate) unsafe fn wait_value(
    form: Form,
    stream: Handle,
    address: usize,
    value: u32,
    how: c_uint,
) -> Outcome {
    wait(form, stream, address, value, how, false)
}

pub(crate) unsafe fn wait_value_new(
    form: Form,
    stream: Handle,
    address: usize,
    value: u32,
    how: c_uint,
) -> Outcome {
    wait(form, stream, address, value, how, true)
}

pub(crate) unsafe fn write_value(
    form: Form,
    stream: Handle,
    address: usize,
    value: u32,
    flags: c_uint,
) -> Outcome {
    put(form, stream, address, value, flags, false)
}

pub(crate) unsafe fn write_value_new(
    form: Form,
    stream: Handle,
    address: usize,
    value: u32,
    flags: c_uint,
) -> Outcome {
    put(form, stream, address, value, flags, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_to_compare_has_its_meaning() {
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
            assert_eq!(has_come(address, value, how), expected, "{is} {how:#x} {value}");
        }
        write(address, 9);
        assert_eq!(is, 9);
    }
}
