//! `libstandin_cudla.so`: cuDLA, the library `libcudla.so.1`, for machines that are no Jetson.
//!
//! ```text
//!   program ──► functions of cuDLA ──► a host function in the CUDA stream ──► simulated device of the DLA
//! ```
//! Tests link it under the vendor's name beside the stand-in for CUDA. There are two DLAs; `XSIM_DEVICE` names the file of the first, and with `.1`
//! behind it that of the second. A task runs for the time that its module says. As in the vendor's library, a task waits for the work before it
//! in its stream, a device handle has one module, tensors have to be registered, and a captured stream is rejected. `NvSciSync` is
//! missing: nothing shows that a task of the standalone mode has completed, except its output.

mod cuda;
mod device;
mod task;

/// `cudlaStatus`.
type Code = i32;

const SUCCESS: Code = 0;
/// `cudlaErrorInvalidParam`.
const INVALID_PARAMETER: Code = 1;
/// `cudlaErrorOutOfResources`.
const OUT_OF_RESOURCES: Code = 2;
/// `cudlaErrorCreationFailed`.
const CREATION_FAILED: Code = 3;
/// `cudlaErrorInvalidAddress`.
const INVALID_ADDRESS: Code = 4;
/// `cudlaErrorCuda`.
const CUDA_FAILED: Code = 6;
/// `cudlaErrorInvalidDevice`.
const INVALID_DEVICE: Code = 8;
/// `cudlaErrorInvalidModule`.
const INVALID_MODULE: Code = 12;
/// `cudlaErrorUnsupportedOperation`.
const UNSUPPORTED_OPERATION: Code = 13;

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

/// Exports functions of cuDLA. Programs pass handles that it returned, and pointers as its header demands.
macro_rules! cudla {
    ( $( fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block )* ) => { $(
        /// A function of cuDLA.
        ///
        /// # Safety
        /// The contract of the vendor's function.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the vendor's name")]
        pub(crate) unsafe extern "C" fn $name($($argument: $kind),*) -> crate::Code {
            let run = move || -> Result<(), crate::Code> { $body };
            crate::to_code(run())
        }
    )* };
}
pub(crate) use cudla;
