"""XSched: decides what an accelerator runs. Important work first, the rest in the gaps.

    with xsched.priority("high"):          # this block's work is important
        answer = model(question)

    queue = xsched.Queue(stream)           # one stream under control
    queue.suspend()
    queue.resume()

    for task in xsched.tasks():            # what is being scheduled on this machine
        print(task.pid, task.name, task.priority, task.state)

The program itself is best started with `xsched run -- python program.py`.
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
from ._own import hint, priority

# `set` is left out: `from xsched import *` must not hide Python's own.
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

# Looked up when they are first used: dataclasses alone take longer to import than all the rest.
_LATER = ("Policy", "Task", "policies", "policy", "resume", "set", "set_policy", "suspend", "tasks")


def __getattr__(name):
    if name in _LATER:
        from . import _service

        for later in _LATER:
            globals()[later] = getattr(_service, later)
        return globals()[name]
    raise AttributeError(f"module 'xsched' has no attribute {name!r}")


def __dir__():
    return sorted(__all__ + ["set", "__version__"])
