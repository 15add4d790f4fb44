//! The C functions of `xsched/toy/hal.h`.

use std::ffi::c_void;

use super::api_queue;
#[cfg(test)]
use crate::api::PlatformHeader;
use crate::api::{HwQueueHandle, api, create_hw_queue};

#[allow(non_camel_case_types, reason = "the name in the vendor's header")]
type toy_queue_t = *mut c_void;

api! {
    /// Creates a handle for a queue of libtoy. The queue has to outlive the handle.
    fn ToyQueueCreate(hwq: *mut HwQueueHandle, queue: toy_queue_t) = |hwq, queue| create_hw_queue(hwq, || api_queue(queue));
}

/// The header.
#[cfg(test)]
pub(super) static HEADER: PlatformHeader = PlatformHeader {
    path: "toy/hal.h",
    about: "XSched for libtoy.",
    queue_type: ("toy_queue_t", "toy_queue"),
    functions: FUNCTIONS,
};
