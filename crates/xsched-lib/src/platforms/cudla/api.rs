//! The C functions of `xsched/cudla/hal.h`.

use std::ffi::c_void;

use super::api_queue;
#[cfg(test)]
use crate::api::PlatformHeader;
use crate::api::{HwQueueHandle, api, create_hw_queue};

#[allow(non_camel_case_types, reason = "the name in the vendor's header")]
type cudaStream_t = *mut c_void;

api! {
    /// Creates a handle for the DLA tasks of a CUDA stream, on the DLA for which the program has created its last device handle, or on the
    /// first one. The stream has to outlive the handle.
    fn CudlaQueueCreate(hwq: *mut HwQueueHandle, stream: cudaStream_t) = |hwq, stream| create_hw_queue(hwq, || api_queue(stream));
}

/// The header.
#[cfg(test)]
pub(super) static HEADER: PlatformHeader = PlatformHeader {
    path: "cudla/hal.h",
    about: "XSched for cuDLA.",
    queue_type: ("cudaStream_t", "CUstream_st"),
    functions: FUNCTIONS,
};
