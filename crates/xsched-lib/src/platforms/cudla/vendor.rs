//! The types and codes of cuDLA, as `cudla.h` declares them, and the functions of CUDA for events in a stream.

use std::ffi::{c_int, c_uint};

use xsched_interpose::Handle;

use crate::hooks::functions;
use crate::platforms::cuda;
use crate::platforms::cuda::vendor::Stream;

/// `cudlaStatus` and `CUresult`.
pub(crate) type Code = c_int;
/// `CUevent`.
pub(crate) type Event = Handle;

/// In both libraries.
pub(crate) const SUCCESS: Code = 0;
/// `cudlaErrorUmd`: the driver below cuDLA failed.
pub(crate) const DRIVER_FAILED: Code = 7;
/// `CUDLA_CUDA_DLA`: the mode in which tasks are submitted to CUDA streams.
pub(crate) const HYBRID: c_uint = 0;
/// `CU_EVENT_DISABLE_TIMING`.
pub(crate) const DISABLE_TIMING: c_uint = 2;

functions! {
    library cuda::LIBRARY;

    fn cuEventCreate(*mut Event, c_uint) -> Code = CREATE_EVENT;
    fn cuEventRecord(Event, Stream) -> Code = RECORD_EVENT;
    fn cuEventQuery(Event) -> Code = QUERY_EVENT;
    fn cuEventDestroy_v2(Event) -> Code = DESTROY_EVENT;
    fn cuStreamSynchronize(Stream) -> Code = SYNCHRONIZE;
}
