//! The C functions of `xsched/ascend/hal.h`.

use std::ffi::c_void;

use super::api_queue;
#[cfg(test)]
use crate::api::PlatformHeader;
use crate::api::{HwQueueHandle, api, create_hw_queue};

#[allow(non_camel_case_types, reason = "the name in the vendor's header")]
type aclrtStream = *mut c_void;

api! {
    /// Creates a handle for a stream of the current context. The stream has to outlive the handle.
    fn AclQueueCreate(hwq: *mut HwQueueHandle, stream: aclrtStream) = |hwq, stream| create_hw_queue(hwq, || api_queue(stream));
}

/// The header.
#[cfg(test)]
pub(super) static HEADER: PlatformHeader = PlatformHeader {
    path: "ascend/hal.h",
    about: "XSched for AscendCL.",
    queue_type: ("aclrtStream", "void"),
    functions: FUNCTIONS,
};
