from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Callable, Literal, Protocol, TypeVar, Union

from typing_extensions import Self

from ._original import (
    Deadline as Deadline,
    HwCommandHandle as HwCommandHandle,
    HwQueueHandle as HwQueueHandle,
    Laxity as Laxity,
    NO_DEADLINE as NO_DEADLINE,
    NO_LAXITY as NO_LAXITY,
    PRIORITY_DEFAULT as PRIORITY_DEFAULT,
    PRIORITY_MAX as PRIORITY_MAX,
    PRIORITY_MIN as PRIORITY_MIN,
    PRIORITY_NO_EXECUTE as PRIORITY_NO_EXECUTE,
    Priority as Priority,
    TIMESLICE_DEFAULT as TIMESLICE_DEFAULT,
    TIMESLICE_MAX as TIMESLICE_MAX,
    TIMESLICE_MIN as TIMESLICE_MIN,
    TIMESLICE_UNLIMITED as TIMESLICE_UNLIMITED,
    Timeslice as Timeslice,
    UTILIZATION_DEFAULT as UTILIZATION_DEFAULT,
    UTILIZATION_MAX as UTILIZATION_MAX,
    UTILIZATION_MIN as UTILIZATION_MIN,
    Utilization as Utilization,
    XDevice as XDevice,
    XDeviceId as XDeviceId,
    XDeviceType as XDeviceType,
    XPlatform as XPlatform,
    XPolicyType as XPolicyType,
    XPreemptLevel as XPreemptLevel,
    XQueueCreateFlag as XQueueCreateFlag,
    XQueueFeature as XQueueFeature,
    XQueueHandle as XQueueHandle,
    XQueueResumeFlag as XQueueResumeFlag,
    XQueueState as XQueueState,
    XQueueSuspendFlag as XQueueSuspendFlag,
    XResult as XResult,
    XSched as XSched,
    XSchedulerType as XSchedulerType,
)

__version__: str

_F = TypeVar("_F", bound=Callable[..., Any])
_Priority = Union[int, Literal["low", "normal", "high"], str]
_Time = Union[str, timedelta]
_Laxity = Union[_Time, tuple[_Time, _Priority, _Priority]]
_Target = Union[int, str]

class Error(Exception): ...
class NoScheduler(Error): ...
class SchedulerFailed(Error): ...
class NotAllowed(Error): ...
class Refused(Error): ...
class OutOfRange(Error, ValueError): ...
class NotSupported(Error): ...
class UnscheduledWarning(RuntimeWarning): ...

class _TorchStream(Protocol):
    @property
    def cuda_stream(self) -> int: ...

class _OpenclQueue(Protocol):
    @property
    def int_ptr(self) -> int: ...

class _CudaStream(Protocol):
    def __cuda_stream__(self) -> tuple[int, int]: ...

class Queue:
    def __init__(
        self,
        stream: Union[int, _TorchStream, _OpenclQueue, _CudaStream],
        *,
        platform: Union[Literal["cuda", "hip", "opencl", "xsim"], None] = None,
        level: Union[Literal[1, 2, 3], None] = None,
    ) -> None: ...
    def suspend(self, *, wait: bool = False) -> None: ...
    def resume(self, *, drop: bool = False) -> None: ...
    def wait(self) -> None: ...
    @property
    def state(self) -> Literal["idle", "ready", "unknown"]: ...
    def hint(
        self,
        *,
        priority: Union[_Priority, None] = None,
        share: Union[int, None] = None,
        deadline: Union[_Time, None] = None,
        laxity: Union[_Laxity, None] = None,
    ) -> None: ...
    def set_level(self, level: int) -> None: ...
    def set_limit(self, threshold: int, batch_size: int) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: Union[type[BaseException], BaseException, TracebackType, None]) -> None: ...

class priority:
    value: int
    def __init__(self, value: _Priority) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: Union[type[BaseException], BaseException, TracebackType, None]) -> None: ...
    def __call__(self, function: _F) -> _F: ...

def hint(
    *,
    priority: Union[_Priority, None] = None,
    share: Union[int, None] = None,
    deadline: Union[_Time, None] = None,
    laxity: Union[_Laxity, None] = None,
) -> None: ...
def loaded() -> bool: ...
@dataclass(frozen=True)
class Task:
    task: int
    pid: int
    uid: int
    name: str
    cmdline: str
    device: str
    own: bool
    priority: int
    share: int
    deadline_us: Union[int, None]
    laxity_us: Union[int, None]
    state: Literal["idle", "running", "held", "suspended", "stalled", "parked"]
    kind: Union[Literal["sync_bound", "host_bound", "gpu_bound"], None]
    queues: int
    launches: int
    used_ns: int
    sampled_ns: Union[int, None]
    held_ns: int
    wasted_ns: int
    not_deferred: list[str]
    preemptions: int
    wait_p99_us: Union[int, None]
    job: Union[str, None]
    grant: Union[str, None]
    labels: dict[str, str]
    memory_bytes: Union[int, None]
    memory_peak_bytes: Union[int, None]
    memory_limit_bytes: Union[int, None]
    parking: Union[dict[str, Any], None]

@dataclass(frozen=True)
class Policy:
    name: str
    plain: str
    timeslice_us: int
    k: int

def tasks() -> list[Task]: ...
def policy() -> Policy: ...
def set_policy(
    name: Union[str, None] = None, *, timeslice: Union[_Time, None] = None, k: Union[int, None] = None
) -> Policy: ...
def policies() -> dict[str, str]: ...
def set(
    target: _Target,
    *,
    priority: Union[_Priority, None] = None,
    share: Union[int, None] = None,
    deadline: Union[_Time, None] = None,
    laxity: Union[_Laxity, None] = None,
) -> None: ...
def suspend(target: _Target) -> None: ...
def resume(target: _Target) -> None: ...
