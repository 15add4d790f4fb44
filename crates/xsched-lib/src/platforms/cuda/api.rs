//! The C functions of `xsched/cuda/hal.h`.

use std::ffi::c_void;

use super::api_queue;
#[cfg(test)]
use crate::api::PlatformHeader;
use crate::api::{HwQueueHandle, api, create_hw_queue, find_hw_queue};

type CUstream = *mut c_void;

api! {
    /// Creates a handle for a CUDA stream. The stream's context, or for a default stream a context of the same device, has to
    /// be usable on this thread. The stream has to outlive the handle.
    fn CudaQueueCreate(hwq: *mut HwQueueHandle, stream: CUstream) = |hwq, stream| create_hw_queue(hwq, || api_queue(stream));

    /// Returns the handle that was created for a stream.
    fn CudaQueueGet(hwq: *mut HwQueueHandle, stream: CUstream) = |hwq, stream| find_hw_queue(hwq, || api_queue(stream));
}

/// The header.
#[cfg(test)]
pub(super) static HEADER: PlatformHeader = PlatformHeader {
    path: "cuda/hal.h",
    about: "XSched for CUDA.",
    queue_type: ("CUstream", "CUstream_st"),
    functions: FUNCTIONS,
};
