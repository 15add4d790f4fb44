//! The C functions of `xsched/levelzero/hal.h`.

use std::ffi::c_void;

use super::api_queue;
#[cfg(test)]
use crate::api::PlatformHeader;
use crate::api::{HwQueueHandle, api, create_hw_queue};

#[allow(non_camel_case_types, reason = "the name in the vendor's header")]
type ze_device_handle_t = *mut c_void;
#[allow(non_camel_case_types, reason = "the name in the vendor's header")]
type ze_command_queue_handle_t = *mut c_void;

api! {
    /// Creates a handle for a Level Zero command queue, whose creation this library has intercepted. The queue has to outlive the handle.
    fn ZeQueueCreate(hwq: *mut HwQueueHandle, dev: ze_device_handle_t, cmdq: ze_command_queue_handle_t)
        = |hwq, dev, cmdq| create_hw_queue(hwq, || api_queue(dev, cmdq));
}

/// The header.
#[cfg(test)]
pub(super) static HEADER: PlatformHeader = PlatformHeader {
    path: "levelzero/hal.h",
    about: "XSched for Level Zero.",
    queue_type: ("ze_command_queue_handle_t", "_ze_command_queue_handle_t"),
    functions: FUNCTIONS,
};
