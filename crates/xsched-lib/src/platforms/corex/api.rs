//! The C functions of `xsched/corex/hal.h`.

use std::ffi::c_void;

#[cfg(test)]
use crate::api::PlatformHeader;
use crate::api::{HwQueueHandle, api, create_hw_queue, find_hw_queue};
use crate::platforms::cuda::api_queue;

#[allow(non_camel_case_types, reason = "the name in the vendor's header")]
type cudaStream_t = *mut c_void;

api! {
    /// Creates a handle for a stream, as CudaQueueCreate does.
    fn CorexQueueCreate(hwq: *mut HwQueueHandle, stream: cudaStream_t) = |hwq, stream| create_hw_queue(hwq, || api_queue(stream));

    /// Returns the handle that was created for a stream.
    fn CorexQueueGet(hwq: *mut HwQueueHandle, stream: cudaStream_t) = |hwq, stream| find_hw_queue(hwq, || api_queue(stream));
}

/// The header.
#[cfg(test)]
pub(super) static HEADER: PlatformHeader = PlatformHeader {
    path: "corex/hal.h",
    about: "XSched for CoreX.",
    queue_type: ("cudaStream_t", "CUstream_st"),
    functions: FUNCTIONS,
};
