//! The C functions of `xsched/hip/hal.h`.

use std::ffi::c_void;

use super::api_queue;
#[cfg(test)]
use crate::api::PlatformHeader;
use crate::api::{HwQueueHandle, api, create_hw_queue};

#[allow(non_camel_case_types, reason = "the name in the vendor's header")]
type hipStream_t = *mut c_void;

api! {
    /// Creates a handle for a HIP stream. The stream has to outlive the handle.
    fn HipQueueCreate(hwq: *mut HwQueueHandle, stream: hipStream_t) = |hwq, stream| create_hw_queue(hwq, || api_queue(stream));
}

/// The header.
#[cfg(test)]
pub(super) static HEADER: PlatformHeader = PlatformHeader {
    path: "hip/hal.h",
    about: "XSched for HIP.",
    queue_type: ("hipStream_t", "ihipStream_t"),
    functions: FUNCTIONS,
};
