//! A small user of NVIDIA's driver: kernels of a chosen length, for measuring what scheduling does to them.
//!
//! The driver is reached as the CUDA runtime reaches it, by `dlopen` and `dlsym`, so that a preloaded library sees every
//! call. Nothing here knows of scheduling.

mod driver;
mod kernels;

pub(crate) use driver::{Event, Gpu, Stream};
pub(crate) use kernels::{Calibration, Kernels};
