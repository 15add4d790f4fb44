"""The names of the original C++ XSched's Python package: its enums and constants, and the class `XSched`, whose functions are those
of the C interface. A handle that a function of C writes is returned beside the result.

    result, queue = XSched.XQueueCreate(hw_queue, XPreemptLevel.kPreemptLevelBlock, 0)
"""

import ctypes
import os
from enum import IntEnum

# Handles and hints are numbers.
XDevice = XDeviceId = XQueueHandle = HwQueueHandle = HwCommandHandle = int
Priority = Utilization = Timeslice = Laxity = Deadline = int


class XResult(IntEnum):
    kXSchedSuccess = 0
    kXSchedErrorHardware = 1
    kXSchedErrorInvalidValue = 2
    kXSchedErrorNotFound = 3
    kXSchedErrorNotAllowed = 4
    kXSchedErrorNotSupported = 5
    kXSchedErrorBadResponse = 6
    kXSchedErrorUnknown = 999


class XPlatform(IntEnum):
    kPlatformUnknown = 0
    kPlatformVPI = 1
    kPlatformCUDA = 2
    kPlatformCUDLA = 3
    kPlatformHIP = 4
    kPlatformAscend = 5
    kPlatformOpenCL = 6
    kPlatformLevelZero = 7


class XDeviceType(IntEnum):
    kDeviceTypeUnknown = 0
    kDeviceTypeCPU = 1
    kDeviceTypeGPU = 2
    kDeviceTypeNPU = 3
    kDeviceTypeFPGA = 4
    kDeviceTypeASIC = 5
    kDeviceTypeMCA = 6


class XPreemptLevel(IntEnum):
    kPreemptLevelUnknown = 0
    kPreemptLevelBlock = 1
    kPreemptLevelDeactivate = 2
    kPreemptLevelInterrupt = 3
    kPreemptLevelMax = 4


class XQueueState(IntEnum):
    kQueueStateUnknown = 0
    kQueueStateIdle = 1
    kQueueStateReady = 2


class XQueueFeature(IntEnum):
    kQueueFeatureNone = 0
    kQueueFeatureAsyncSubmit = 1
    kQueueFeatureDynamicLevel = 2
    kQueueFeatureDynamicThreshold = 4
    kQueueFeatureDynamicBatchSize = 8
    kQueueFeatureSyncSuspend = 16
    kQueueFeatureResumeDropCommands = 32
    kQueueFeatureMaskAll = -1


class XQueueCreateFlag(IntEnum):
    kQueueCreateFlagNone = 0
    kQueueCreateFlagBlockingSubmit = 1
    kQueueCreateFlagMaskAll = -1


class XQueueSuspendFlag(IntEnum):
    kQueueSuspendFlagNone = 0
    kQueueSuspendFlagSyncHwQueue = 1
    kQueueSuspendFlagWaitAll = 2
    kQueueSuspendFlagWaitIdle = 4
    kQueueSuspendFlagMaskAll = -1


class XQueueResumeFlag(IntEnum):
    kQueueResumeFlagNone = 0
    kQueueResumeFlagDropCommands = 1
    kQueueResumeFlagMaskAll = -1


class XSchedulerType(IntEnum):
    kSchedulerUnknown = 0
    kSchedulerAppManaged = 1
    kSchedulerLocal = 2
    kSchedulerGlobal = 3
    kSchedulerMax = 4


class XPolicyType(IntEnum):
    kPolicyUnknown = 0
    kPolicyHighestPriorityFirst = 1
    kPolicyHeterogeneousHighestPriorityFirst = 2
    kPolicyCPUHighestPriorityFirst = 3
    kPolicyUtilizationPartition = 4
    kPolicyProcessUtilizationPartition = 5
    kPolicyStrictProcessUtilizationPartition = 6
    kPolicyKEarliestDeadlineFirst = 7
    kPolicyLaxity = 8
    kPolicyActiveWindowFirst = 9
    kPolicyCompletelyFairScheduler = 10
    kPolicyMultiLevelFeedbackQueue = 11
    kPolicyMax = 12


PRIORITY_NO_EXECUTE = -256
PRIORITY_MIN = -255
PRIORITY_DEFAULT = 0
PRIORITY_MAX = 255
UTILIZATION_MIN = 0
UTILIZATION_DEFAULT = 100
UTILIZATION_MAX = 100
TIMESLICE_MIN = 100
TIMESLICE_DEFAULT = 5000
TIMESLICE_MAX = 10000000
TIMESLICE_UNLIMITED = 2**64 - 1
NO_LAXITY = -1
NO_DEADLINE = -1

_HANDLE, _CODE = ctypes.c_uint64, ctypes.c_int32
_INT32, _INT64 = ctypes.c_int32, ctypes.c_int64


def _library():
    """The library that is in this process, preloaded or loaded by its name in LD_LIBRARY_PATH; else the package's copy."""
    process = ctypes.CDLL(None)
    if hasattr(process, "XQueueCreate"):
        return process
    path = os.environ.get("XSCHED_LIBRARY") or os.path.join(os.path.dirname(__file__), "lib", "libxsched.so")
    return ctypes.CDLL(path)


def functions(signatures):
    """Static methods for functions of the C interface: a name each, with the type that the function writes through its first
    pointer, if any, and the types of the other arguments. `last` says that it is the last pointer instead."""

    def make(name, written, arguments, last):
        function = None

        def call(*values):
            nonlocal function
            if function is None:
                function = getattr(_library(), name)
                pointer = [] if written is None else [ctypes.POINTER(written[0])]
                function.argtypes = arguments + pointer if last else pointer + arguments
                function.restype = _CODE
            if len(values) != len(arguments):
                raise TypeError(f"{name}() takes {len(arguments)} arguments, not {len(values)}")
            if written is None:
                return XResult(function(*values))
            kind, convert = written
            result = kind()
            pointer = ctypes.byref(result)
            code = function(*values, pointer) if last else function(pointer, *values)
            return XResult(code), convert(result.value)

        call.__name__ = call.__qualname__ = name
        return staticmethod(call)

    return {name: make(name, *rest) for name, rest in signatures.items()}


_NEW_HANDLE = (_HANDLE, int)

XSched = type("XSched", (), {
    "__doc__": "The functions of the C interface.",
    "__module__": "xsched",
    **functions({
        "XQueueCreate": (_NEW_HANDLE, [_HANDLE, _INT64, _INT64], False),
        "XQueueDestroy": (None, [_HANDLE], False),
        "XQueueGet": (_NEW_HANDLE, [_HANDLE], False),
        "XQueueSetPreemptLevel": (None, [_HANDLE, _INT32], False),
        "XQueueSetLaunchConfig": (None, [_HANDLE, _INT64, _INT64], False),
        "XQueueSubmit": (None, [_HANDLE, _HANDLE], False),
        "XQueueWait": (None, [_HANDLE, _HANDLE], False),
        "XQueueWaitAll": (None, [_HANDLE], False),
        "XQueueQuery": ((_INT32, XQueueState), [_HANDLE], True),
        "XQueueSuspend": (None, [_HANDLE, _INT64], False),
        "XQueueResume": (None, [_HANDLE, _INT64], False),
        "XQueueProfileHwCommandCount": ((_INT64, int), [_HANDLE], True),
        "HwQueueDestroy": (None, [_HANDLE], False),
        "HwQueueLaunch": (None, [_HANDLE, _HANDLE], False),
        "HwQueueSynchronize": (None, [_HANDLE], False),
        "HwCommandDestroy": (None, [_HANDLE], False),
        "XHintSetScheduler": (None, [_INT32, _INT32], False),
        "XHintPriority": (None, [_HANDLE, _INT32], False),
        "XHintUtilization": (None, [_HANDLE, _INT32], False),
        "XHintTimeslice": (None, [_INT64], False),
        "XHintLaxity": (None, [_HANDLE, _INT64, _INT32, _INT32], False),
        "XHintDeadline": (None, [_HANDLE, _INT64], False),
        "XHintKDeadline": (None, [ctypes.c_size_t], False),
    }),
})

# What `import xsched` offers too.
NAMES = (
    "Deadline",
    "HwCommandHandle",
    "HwQueueHandle",
    "Laxity",
    "NO_DEADLINE",
    "NO_LAXITY",
    "PRIORITY_DEFAULT",
    "PRIORITY_MAX",
    "PRIORITY_MIN",
    "PRIORITY_NO_EXECUTE",
    "Priority",
    "TIMESLICE_DEFAULT",
    "TIMESLICE_MAX",
    "TIMESLICE_MIN",
    "TIMESLICE_UNLIMITED",
    "Timeslice",
    "UTILIZATION_DEFAULT",
    "UTILIZATION_MAX",
    "UTILIZATION_MIN",
    "Utilization",
    "XDevice",
    "XDeviceId",
    "XDeviceType",
    "XPlatform",
    "XPolicyType",
    "XPreemptLevel",
    "XQueueCreateFlag",
    "XQueueFeature",
    "XQueueHandle",
    "XQueueResumeFlag",
    "XQueueState",
    "XQueueSuspendFlag",
    "XResult",
    "XSched",
    "XSchedulerType",
)
