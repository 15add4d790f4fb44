//! Functions that the original C++ XSched lacks.

use std::ffi::c_char;

use super::failure;

/// Returns the reason of the last error of XSched on this thread as text; empty if there was none.
///
/// The text is valid until the next error on this thread.
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
        "Returns the reason of the last error of XSched on this thread as text; empty if there was none.",
        "The text is valid until the next error on this thread.",
    ],
}];
