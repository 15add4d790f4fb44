//! The `CoreX` platform: Iluvatar's GPUs, whose driver library has CUDA's name, `libcuda.so.1`, and CUDA's functions.
//!
//! So there are no hooks here: those of [`super::cuda`] intercept the programs, and choose the highest level that the driver supports. This
//! directory has what is `CoreX`'s own: the C functions of the original C++ XSched, and the checks of the doctor.

mod api;

use crate::loader::VendorIdentity;
use crate::platforms::Platform;

/// The driver is recognized by the platform for CUDA.
static VENDOR: VendorIdentity = VendorIdentity { exports: &[], files: &[] };

/// The platform, for the registry.
pub(crate) static PLATFORM: Platform = Platform {
    vendor: &VENDOR,
    hooks: &[],
    bypasses_hook: None,
    observe_ioctl: None,
    at_exit: None,
    #[cfg(test)]
    header: &api::HEADER,
};
