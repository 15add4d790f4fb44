"""XSched: a preemptive scheduler for accelerators. Important work runs first, other work in the gaps.

        with xsched.priority("high"):          # the work of this block is important
            result = model(request)

    queue = xsched.Queue(stream)           # one stream under control
    queue.suspend()
    queue.resume()

        for task in xsched.tasks():            # the scheduled tasks of this machine
        print(task.pid, task.name, task.priority, task.state)

Start the program with `xsched run -- python program.py`.
"""

from ._errors import (
    Error,
    NoScheduler,
    NotAllowed,
    NotSupported,
    OutOfRange,
    Refused,
    SchedulerFailed,
    UnscheduledWarning,
)
from ._native import Queue, __version__, loaded
from ._hints import hint, priority

# Without `set`: `from xsched import *` must not hide the built-in.
__all__ = [
    "Error",
    "NoScheduler",
    "NotAllowed",
    "NotSupported",
    "OutOfRange",
    "Policy",
    "Queue",
    "Refused",
    "SchedulerFailed",
    "Task",
    "UnscheduledWarning",
    "hint",
    "loaded",
    "policies",
    "policy",
    "priority",
    "resume",
    "set_policy",
    "suspend",
    "tasks",
]

# Imported on first use: importing dataclasses alone takes longer than importing the rest.
_LAZY = ("Policy", "Task", "policies", "policy", "resume", "set", "set_policy", "suspend", "tasks")


def __getattr__(name):
    if name in _LAZY:
        from . import _service

        for lazy in _LAZY:
            globals()[lazy] = getattr(_service, lazy)
        return globals()[name]
    # The names of the original C++ XSched, such as XSched.XQueueCreate and XResult.
    if name[0] in "XHPUTLDN":
        from . import _original

        if name in _original.NAMES:
            globals()[name] = getattr(_original, name)
            return globals()[name]
    raise AttributeError(f"module 'xsched' has no attribute {name!r}")


def __dir__():
    return sorted(__all__ + ["set", "__version__"])
