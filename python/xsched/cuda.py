"""The class XSchedCuda of the original C++ XSched's Python package: handles of CUDA streams, given by their address."""

import ctypes

from ._original import HwQueueHandle, XResult, functions

__all__ = ["CUstream", "HwQueueHandle", "XResult", "XSchedCuda"]

CUstream = int
_NEW_HANDLE = (ctypes.c_uint64, int)

XSchedCuda = type("XSchedCuda", (), {
    "__doc__": "The functions of xsched/cuda/hal.h.",
    "__module__": "xsched.cuda",
    **functions({
        "CudaQueueCreate": (_NEW_HANDLE, [ctypes.c_void_p], False),
        "CudaQueueGet": (_NEW_HANDLE, [ctypes.c_void_p], False),
    }),
})
