//! What the reference does not have.

use std::ffi::c_char;

use super::failure;

/// Why the last function of XSched that failed on this thread did, in words; empty if none has.
///
/// Valid until the next one fails on this thread.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn XSchedLastError() -> *const c_char {
    failure::last()
}

/// The functions above, for the headers.
#[cfg(test)]
pub(crate) const FUNCTIONS: &[super::header::Function] = &[super::header::Function {
    name: "XSchedLastError",
    arguments: &[],
    about: &[
        "Why the last function of XSched that failed on this thread did, in words; empty if none has.",
        "Valid until the next one fails on this thread.",
    ],
}];
