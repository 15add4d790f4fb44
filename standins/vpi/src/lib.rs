//! `libstandin_vpi.so`: `VPI`, the library `libnvvpi.so`, for machines that are no Jetson.
//!
//! ```text
//!   program ──► functions of VPI ──► a thread per stream ──► simulated device
//! ```
//! Tests link it under the vendor's name in a directory of their own. `XSIM_DEVICE` names the file of the simulated device. Contexts, streams,
//! events, host functions and images work; the algorithms are those of `algorithms.rs`. As in the vendor's library, a stream collects commands
//! until it is flushed, each thread has a stack of contexts, and objects of different contexts cannot be used together.

mod algorithms;
mod context;
mod event;
mod image;
mod stream;

/// `VPIStatus`.
type Code = i32;

const SUCCESS: Code = 0;
/// `VPI_ERROR_INVALID_ARGUMENT`.
const INVALID_ARGUMENT: Code = 2;
/// `VPI_ERROR_INVALID_OPERATION`.
const INVALID_OPERATION: Code = 6;
/// `VPI_ERROR_INVALID_CONTEXT`.
const INVALID_CONTEXT: Code = 7;
/// `VPI_ERROR_DEVICE`.
const NO_DEVICE: Code = 8;
/// `VPI_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: Code = 11;

/// The result of a function as C programs expect it.
fn to_code(result: Result<(), Code>) -> Code {
    result.err().unwrap_or(SUCCESS)
}

/// Writes to an output parameter.
///
/// # Safety
/// `out` is null or valid for a write.
unsafe fn write<T>(out: *mut T, value: T) -> Result<(), Code> {
    // SAFETY: the caller guarantees it.
    unsafe { xsched_standin_streams::object::write(out, value) }.ok_or(INVALID_ARGUMENT)
}

/// Exports functions of `VPI`. Programs pass handles that it returned, and pointers as its headers demand.
macro_rules! vpi {
    ( $( fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block )* ) => { $(
        /// A function of `VPI`.
        ///
        /// # Safety
        /// The contract of the vendor's function.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the vendor's name")]
        #[allow(clippy::too_many_arguments, reason = "the vendor's interface")]
        pub(crate) unsafe extern "C" fn $name($($argument: $kind),*) -> crate::Code {
            let run = move || -> Result<(), crate::Code> { $body };
            crate::to_code(run())
        }
    )* };
}
pub(crate) use vpi;

/// The same for functions that return nothing.
macro_rules! vpi_void {
    ( $( fn $name:ident($argument:ident: $kind:ty) $body:block )* ) => { $(
        /// A function of `VPI`.
        ///
        /// # Safety
        /// The contract of the vendor's function.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the vendor's name")]
        pub(crate) unsafe extern "C" fn $name($argument: $kind) $body
    )* };
}
pub(crate) use vpi_void;
