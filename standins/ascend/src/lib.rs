//! `libstandin_ascend.so`: `AscendCL`, the library `libascendcl.so`, for machines without an Ascend NPU.
//!
//! ```text
//!   program ──► functions of AscendCL ──► a thread per stream ──► simulated device
//! ```
//! Tests link it under the vendor's name in a directory of their own. `XSIM_DEVICE` names the file of the simulated device. Streams, events,
//! contexts, copies, captures and models work; kernels are those of `kernel.rs`. As in the vendor's library, a thread needs a current context,
//! and a stream can be used only where its own context is current.

mod context;
mod event;
mod kernel;
mod memory;
mod stream;

/// `aclError`.
type Code = i32;

const SUCCESS: Code = 0;
/// `ACL_ERROR_INVALID_PARAM`.
const INVALID_PARAMETER: Code = 100_000;
/// `ACL_ERROR_RT_CONTEXT_NULL`.
const NO_CONTEXT: Code = 107_002;
/// `ACL_ERROR_RT_STREAM_CONTEXT`.
const OTHER_CONTEXT: Code = 107_003;
/// `ACL_ERROR_RT_STREAM_SYNC_TIMEOUT`.
const TIMEOUT: Code = 107_020;
/// `ACL_ERROR_RT_MEMORY_ALLOCATION`.
const OUT_OF_MEMORY: Code = 207_001;
/// `ACL_ERROR_RT_INTERNAL_ERROR`.
const NO_DEVICE: Code = 507_000;

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
    unsafe { xsched_standin_streams::object::write(out, value) }.ok_or(INVALID_PARAMETER)
}

/// Exports functions of `AscendCL`. Programs pass handles that it returned, and pointers as its headers demand.
macro_rules! acl {
    ( $( fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block )* ) => { $(
        /// A function of `AscendCL`.
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
pub(crate) use acl;
