//! Status codes, their names, and results of C functions.

use std::ffi::{CStr, c_char};

/// `hsa_status_t`.
pub(crate) type Status = u32;

macro_rules! statuses {
    ( $( $(#[$note:meta])* $name:ident = $value:literal, $text:literal; )* ) => {
        $(
            $(#[$note])*
            #[allow(dead_code, reason = "the list is that of AMD's interface")]
            pub(crate) const $name: Status = $value;
        )*

        fn text(status: Status) -> Option<&'static CStr> {
            match status {
                $( $value => Some($text), )*
                _ => None,
            }
        }
    };
}

statuses! {
    SUCCESS = 0, c"HSA_STATUS_SUCCESS: The function has been executed successfully.";
    INFO_BREAK = 1, c"HSA_STATUS_INFO_BREAK: A traversal over a list of elements has been interrupted by the application before completing.";
    ERROR = 0x1000, c"HSA_STATUS_ERROR: A generic error has occurred.";
    INVALID_ARGUMENT = 0x1001, c"HSA_STATUS_ERROR_INVALID_ARGUMENT: One of the actual arguments does not meet a precondition stated in the documentation of the corresponding formal argument.";
    INVALID_QUEUE_CREATION = 0x1002, c"HSA_STATUS_ERROR_INVALID_QUEUE_CREATION: The requested queue creation is not valid.";
    INVALID_ALLOCATION = 0x1003, c"HSA_STATUS_ERROR_INVALID_ALLOCATION: The requested allocation is not valid.";
    INVALID_AGENT = 0x1004, c"HSA_STATUS_ERROR_INVALID_AGENT: The agent is invalid.";
    INVALID_REGION = 0x1005, c"HSA_STATUS_ERROR_INVALID_REGION: The memory region is invalid.";
    INVALID_SIGNAL = 0x1006, c"HSA_STATUS_ERROR_INVALID_SIGNAL: The signal is invalid.";
    INVALID_QUEUE = 0x1007, c"HSA_STATUS_ERROR_INVALID_QUEUE: The queue is invalid.";
    OUT_OF_RESOURCES = 0x1008, c"HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate the necessary resources. This error may also occur when the core runtime library needs to spawn threads or create internal OS-specific events.";
    INVALID_PACKET_FORMAT = 0x1009, c"HSA_STATUS_ERROR_INVALID_PACKET_FORMAT: The AQL packet is malformed.";
    NOT_INITIALIZED = 0x100b, c"HSA_STATUS_ERROR_NOT_INITIALIZED: An API other than hsa_init has been invoked while the reference count of the HSA runtime is zero.";
    INCOMPATIBLE_ARGUMENTS = 0x100d, c"HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS: The arguments passed to a functions are not compatible.";
    INVALID_ISA = 0x100f, c"HSA_STATUS_ERROR_INVALID_ISA: The instruction set architecture is invalid.";
    INVALID_CODE_OBJECT = 0x1010, c"HSA_STATUS_ERROR_INVALID_CODE_OBJECT: The code object is invalid.";
    INVALID_EXECUTABLE = 0x1011, c"HSA_STATUS_ERROR_INVALID_EXECUTABLE: The executable is invalid.";
    FROZEN_EXECUTABLE = 0x1012, c"HSA_STATUS_ERROR_FROZEN_EXECUTABLE: The executable is frozen.";
    INVALID_SYMBOL_NAME = 0x1013, c"HSA_STATUS_ERROR_INVALID_SYMBOL_NAME: There is no symbol with the given name.";
    VARIABLE_ALREADY_DEFINED = 0x1014, c"HSA_STATUS_ERROR_VARIABLE_ALREADY_DEFINED: The variable is already defined.";
    VARIABLE_UNDEFINED = 0x1015, c"HSA_STATUS_ERROR_VARIABLE_UNDEFINED: The variable is undefined.";
    EXCEPTION = 0x1016, c"HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception.";
    INVALID_ISA_NAME = 0x1017, c"HSA_STATUS_ERROR_INVALID_ISA_NAME: The instruction set architecture name is invalid.";
    INVALID_EXECUTABLE_SYMBOL = 0x1019, c"HSA_STATUS_ERROR_INVALID_EXECUTABLE_SYMBOL: The executable symbol is invalid.";
    INVALID_CODE_OBJECT_READER = 0x1021, c"HSA_STATUS_ERROR_INVALID_CODE_OBJECT_READER: The code object reader is invalid.";
    INVALID_RUNTIME_STATE = 0x1025, c"HSA_STATUS_ERROR_INVALID_RUNTIME_STATE: The runtime is in an invalid state.";
    INVALID_MEMORY_POOL = 40, c"HSA_STATUS_ERROR_INVALID_MEMORY_POOL: The memory pool is invalid.";
    MEMORY_APERTURE_VIOLATION = 41, c"HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: The agent attempted to access memory beyond the largest legal address.";
    ILLEGAL_INSTRUCTION = 42, c"HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION: The agent attempted to execute an illegal shader instruction.";
    MEMORY_FAULT = 43, c"HSA_STATUS_ERROR_MEMORY_FAULT: The agent attempted to access an inaccessible address.";
    CU_MASK_REDUCED = 44, c"HSA_STATUS_CU_MASK_REDUCED: The CU mask was successfully set but the mask attempted to enable a CU which was disabled for the process.";
    RESOURCE_BUSY = 46, c"HSA_STATUS_ERROR_RESOURCE_BUSY: The resource is in use.";
}

/// `hsa_status_string`.
pub(crate) extern "C" fn status_string(status: Status, out: *mut *const c_char) -> Status {
    match text(status) {
        Some(text) => to_status(write_out(out, text.as_ptr())),
        None => INVALID_ARGUMENT,
    }
}

/// The status of a result.
pub(crate) fn to_status(result: Result<(), Status>) -> Status {
    result.err().unwrap_or(SUCCESS)
}

/// Writes a result to an output parameter, whose type the caller of the C function chose to match.
pub(crate) fn write_out<T>(out: *mut T, value: T) -> Result<(), Status> {
    if out.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the program that called the C function guarantees room for the value.
    unsafe { out.write_unaligned(value) };
    Ok(())
}

/// The elements of an array parameter.
pub(crate) fn read_array<T: Copy>(first: *const T, count: usize) -> Result<Vec<T>, Status> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if first.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: the program that called the C function guarantees that many elements.
    Ok((0..count).map(|index| unsafe { first.add(index).read_unaligned() }).collect())
}
