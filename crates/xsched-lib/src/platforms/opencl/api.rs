//! The C functions of `xsched/opencl/hal.h`.

use std::ffi::c_void;

use super::api_queue;
#[cfg(test)]
use crate::api::PlatformHeader;
use crate::api::{HwQueueHandle, api, create_hw_queue};

#[allow(non_camel_case_types, reason = "the name in the vendor's header")]
type cl_command_queue = *mut c_void;

api! {
    /// Creates a handle for an OpenCL command queue. The queue has to outlive the handle.
    fn OclQueueCreate(hwq: *mut HwQueueHandle, cmdq: cl_command_queue) = |hwq, cmdq| create_hw_queue(hwq, || api_queue(cmdq));
}

/// The header.
#[cfg(test)]
pub(super) static HEADER: PlatformHeader = PlatformHeader {
    path: "opencl/hal.h",
    about: "XSched for OpenCL.",
    queue_type: ("cl_command_queue", "_cl_command_queue"),
    functions: FUNCTIONS,
};
