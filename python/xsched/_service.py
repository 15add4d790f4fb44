"""The state and control of the scheduler service, as in `xsched ps`, `xsched set` and `xsched policy`."""

from __future__ import annotations

from dataclasses import dataclass

from . import _native


@dataclass(frozen=True)
class Task:
    """One task: all queues of one process on one device, or one queue with its own hints.

    The fields are those of `xsched ps --json`. Counters never decrease. `share` is the requested part of device time.
    """

    task: int
    pid: int
    uid: int
    name: str
    cmdline: str
    device: str
    own: bool
    priority: int
    share: int
    deadline_us: int | None
    laxity_us: int | None
    state: str
    kind: str | None
    queues: int
    launches: int
    used_ns: int
    sampled_ns: int | None
    held_ns: int
    wasted_ns: int
    not_deferred: list[str]
    preemptions: int
    wait_p99_us: int | None
    job: str | None
    grant: str | None
    labels: dict[str, str]
    memory_bytes: int | None
    memory_peak_bytes: int | None
    memory_limit_bytes: int | None
    parking: dict | None


@dataclass(frozen=True)
class Policy:
    """The active policy."""

    name: str
    plain: str
    timeslice_us: int
    k: int


def tasks():
    """The scheduled tasks, by device and priority."""
    return [Task(**task) for task in _native.tasks()]


def policy():
    """The active policy."""
    return Policy(*_native.policy())


def set_policy(name=None, *, timeslice=None, k=None):
    """Changes the policy, the time slice or the number of tasks that run at once; returns the active policy."""
    if name is None and timeslice is None and k is None:
        raise TypeError("set_policy needs a name, a timeslice or k: policy() returns the active policy")
    return Policy(*_native.policy(name, timeslice, k))


def policies():
    """All policies by plain name, with their rules."""
    return {plain: rule for _, plain, rule in _native.policies()}


def set(target, *, priority=None, share=None, deadline=None, laxity=None):
    """Changes the hints of a process (a pid) or of every program with a name, as `xsched set` does."""
    if priority is None and share is None and deadline is None and laxity is None:
        raise TypeError("set needs a priority, a share, a deadline or a laxity")
    _native.set_target(target, priority, share, deadline, laxity)


def suspend(target):
    """Suspends all launches of a process, or of every program with a name, until it is resumed."""
    _native.suspend_target(target, True)


def resume(target):
    """Resumes a process, or every program with a name."""
    _native.suspend_target(target, False)
