//! A small client of the NVIDIA driver: kernels of a chosen length, to measure the effect of scheduling.
//!
//! The driver is loaded as the CUDA runtime loads it, by `dlopen` and `dlsym`, so that the preloaded library intercepts every
//! call. This module does not depend on XSched.

mod driver;
mod kernels;

pub(crate) use driver::{Event, Gpu, Stream};
pub(crate) use kernels::{Calibration, Kernels};
