//! The platforms: one directory each.
//!
//! * `cuda`: NVIDIA GPUs, through the CUDA driver.
//! * `hip`: AMD GPUs, through HIP or ROCr.
//! * `opencl`: OpenCL devices of all vendors.
//! * `xsim`: the simulated device.

pub(crate) mod cuda;
pub(crate) mod hip;
pub(crate) mod opencl;
#[cfg(test)]
mod test_support;
pub(crate) mod xsim;
