//! The C functions of `xsched/vpi/hal.h`.

use std::ffi::c_void;

use super::api_queue;
#[cfg(test)]
use crate::api::PlatformHeader;
use crate::api::{HwQueueHandle, api, create_hw_queue};

type VPIStream = *mut c_void;

api! {
    /// Creates a handle for a stream of the current context. The stream has to outlive the handle.
    fn VpiQueueCreate(hwq: *mut HwQueueHandle, stream: VPIStream) = |hwq, stream| create_hw_queue(hwq, || api_queue(stream));
}

/// The header.
#[cfg(test)]
pub(super) static HEADER: PlatformHeader = PlatformHeader {
    path: "vpi/hal.h",
    about: "XSched for VPI.",
    queue_type: ("VPIStream", "VPIStreamImpl"),
    functions: FUNCTIONS,
};
