//! The C interface: that of the original C++ XSched, so that programs written for it run with this library.
//!
//! * [`types`]: the types, values and limits of the headers.
//! * [`handles`]: the handles of queues and commands, checked in every call.
//! * [`xqueue`], [`hwqueue`], [`command`], [`hint`]: the functions. The functions of a platform are in its directory.
//! * [`failure`]: error codes and texts.
//! * [`extra`]: functions that the original lacks.
//! * `header`: prints the headers in `include/xsched`; a test compares them.
//!
//! No function ends the program: a null pointer, an invalid handle, a value out of range and a panic are returned as a code.
//! Every function may be called from any thread, with the library preloaded or linked.

#![allow(non_upper_case_globals, reason = "names of C")]

mod command;
mod extra;
pub(crate) mod failure;
mod handles;
#[cfg(test)]
pub(crate) mod header;
mod hint;
mod hwqueue;
#[cfg(test)]
mod original;
pub(crate) mod types;
mod xqueue;

pub(crate) use handles::Handles;
#[cfg(test)]
pub(crate) use header::PlatformHeader;
pub(crate) use hwqueue::{create_hw_queue, find_hw_queue};
pub(crate) use types::HwQueueHandle;

/// Exports functions of the C interface, and lists them for the headers.
///
/// ```text
/// api! {
///     /// The comment in the header.
///     fn XQueueDestroy(xq: XQueueHandle) = destroy;
/// }
/// ```
/// Each returns the `XResult` of its implementation, which returns nothing or a [`failure::Failure`]. A panic becomes an error.
macro_rules! api {
    ( $( $(#[doc = $doc:literal])* fn $name:ident($($argument:ident: $kind:ty),*) = $implementation:expr; )* ) => {
        $(
            $(#[doc = $doc])*
            #[allow(clippy::doc_markdown, reason = "the headers have the same text")]
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name($($argument: $kind),*) -> crate::api::types::XResult {
                #[allow(clippy::redundant_closure_call, reason = "the implementation may be a closure")]
                crate::api::failure::to_code(stringify!($name), || ($implementation)($($argument),*))
            }
        )*

        /// The functions above, for the headers.
        #[cfg(test)]
        pub(crate) const FUNCTIONS: &[crate::api::header::Function] = &[ $(
            crate::api::header::Function {
                name: stringify!($name),
                arguments: &[ $( (stringify!($argument), stringify!($kind)) ),* ],
                about: &[ $($doc),* ],
            }
        ),* ];
    };
}
pub(crate) use api;
