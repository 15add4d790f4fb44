//! The C interface: that of the reference, so that programs written for it run with this library.
//!
//! * [`types`]: the types, values and limits, as the headers have them.
//! * [`handles`]: the numbers that programs know queues and commands by, checked whenever one comes back.
//! * [`xqueue`], [`hwqueue`], [`command`], [`hint`]: the functions, by what they are about.
//! * [`failure`]: what a function answers, and the words that go with it.
//! * [`extra`]: what the reference does not have.
//! * `header`: prints the headers in `include/xsched` from all of these; a test compares them.
//!
//! Nothing here ends the program: a null pointer, a handle that is none, a value out of range and a fault of ours are all
//! answered with a code. A program may call any of it from any thread, with the library preloaded or merely linked.

#![allow(non_upper_case_globals, reason = "C's names")]

mod command;
mod extra;
pub(crate) mod failure;
mod handles;
#[cfg(test)]
pub(crate) mod header;
mod hint;
mod hwqueue;
pub(crate) mod types;
mod xqueue;

pub(crate) use handles::Handles;
#[cfg(test)]
pub(crate) use header::PlatformHeader;
pub(crate) use hwqueue::{create_hw_queue, find_hw_queue};
pub(crate) use types::HwQueueHandle;

/// Exports functions of the C interface, and notes them for the headers.
///
/// ```text
/// api! {
///     /// What it does, as the header says it.
///     fn XQueueDestroy(xq: XQueueHandle) = destroy;
/// }
/// ```
/// Each answers with an `XResult` made of what the function of ours answers: nothing, or why not. A panic is answered with
/// an error.
macro_rules! api {
    ( $( $(#[doc = $doc:literal])* fn $name:ident($($argument:ident: $kind:ty),*) = $ours:expr; )* ) => {
        $(
            $(#[doc = $doc])*
            #[allow(clippy::doc_markdown, reason = "the headers have the same words")]
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name($($argument: $kind),*) -> crate::api::types::XResult {
                #[allow(clippy::redundant_closure_call, reason = "a function may be a closure over the arguments")]
                crate::api::failure::answer(stringify!($name), || ($ours)($($argument),*))
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
