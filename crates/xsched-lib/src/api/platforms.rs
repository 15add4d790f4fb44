//! One function per vendor, which makes its queue known to us.
//!
//! A platform gives two things: what it tells a queue from others by, which is the key its hooks use, and what the core
//! needs of it. With both, [`hwqueue::create`] does the rest.

use super::hwqueue;

pub(crate) mod cuda {
    //! `xsched/cuda/hal.h`.
    use super::super::types::{CUstream, HwQueueHandle};
    use super::{super::api, hwqueue};
    use crate::platforms::cuda::find;

    api! {
        /// Makes a CUDA stream known. Its context, or a stream of the same device for a default stream, has to be
        /// usable on this thread; the stream has to outlive the handle.
        fn CudaQueueCreate(hwq: *mut HwQueueHandle, stream: CUstream) = |hwq, stream| hwqueue::create(hwq, || find(stream));

        /// Finds the handle that was made for a stream.
        fn CudaQueueGet(hwq: *mut HwQueueHandle, stream: CUstream) = |hwq, stream| hwqueue::find(hwq, || find(stream));
    }
}

pub(crate) mod hip {
    //! `xsched/hip/hal.h`.
    use super::super::types::{HwQueueHandle, hipStream_t};
    use super::{super::api, hwqueue};
    use crate::platforms::hip::find;

    api! {
        /// Makes a HIP stream known. The stream has to outlive the handle.
        fn HipQueueCreate(hwq: *mut HwQueueHandle, stream: hipStream_t) = |hwq, stream| hwqueue::create(hwq, || find(stream));
    }
}

pub(crate) mod opencl {
    //! `xsched/opencl/hal.h`.
    use super::super::types::{HwQueueHandle, cl_command_queue};
    use super::{super::api, hwqueue};
    use crate::platforms::opencl::find;

    api! {
        /// Makes an OpenCL command queue known. The queue has to outlive the handle.
        fn OclQueueCreate(hwq: *mut HwQueueHandle, cmdq: cl_command_queue) = |hwq, cmdq| hwqueue::create(hwq, || find(cmdq));
    }
}

pub(crate) mod xsim {
    //! `xsched/xsim/hal.h`.
    use super::super::types::{HwQueueHandle, xsim_queue_t};
    use super::{super::api, hwqueue};
    use crate::platforms::xsim::find;

    api! {
        /// Makes a queue of the simulated device known. The queue has to outlive the handle.
        fn XsimQueueCreate(hwq: *mut HwQueueHandle, queue: xsim_queue_t) = |hwq, queue| hwqueue::create(hwq, || find(queue));
    }
}
