"""The class XSchedHip of the original C++ XSched's Python package: handles of HIP streams, given by their address."""

import ctypes

from ._original import HwQueueHandle, XResult, functions

__all__ = ["hipStream_t", "HwQueueHandle", "XResult", "XSchedHip"]

hipStream_t = int
_NEW_HANDLE = (ctypes.c_uint64, int)

XSchedHip = type("XSchedHip", (), {
    "__doc__": "The functions of xsched/hip/hal.h.",
    "__module__": "xsched.hip",
    **functions({
        "HipQueueCreate": (_NEW_HANDLE, [ctypes.c_void_p], False),
    }),
})
