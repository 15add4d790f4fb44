//! The C functions of `xsched/xsim/hal.h`.

use std::ffi::c_void;

use super::api_queue;
#[cfg(test)]
use crate::api::PlatformHeader;
use crate::api::{HwQueueHandle, api, create_hw_queue};

#[allow(non_camel_case_types, reason = "the name in the vendor's header")]
type xsim_queue_t = *mut c_void;

api! {
    /// Creates a handle for a queue of the simulated device. The queue has to outlive the handle.
    fn XsimQueueCreate(hwq: *mut HwQueueHandle, queue: xsim_queue_t) = |hwq, queue| create_hw_queue(hwq, || api_queue(queue));
}

/// The header.
#[cfg(test)]
pub(super) static HEADER: PlatformHeader = PlatformHeader {
    path: "xsim/hal.h",
    about: "XSched for the simulated device.",
    queue_type: ("xsim_queue_t", "xsim_queue"),
    functions: FUNCTIONS,
};
