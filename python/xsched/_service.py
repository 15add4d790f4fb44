"""What the scheduler service knows and can be told: the Python of `xsched ps`, `xsched set` and `xsched policy`."""

from __future__ import annotations

from dataclasses import dataclass

from . import _native


@dataclass(frozen=True)
class Task:
    """One task: all queues of one process on one device, or one queue with wishes of its own.

    The fields are those of `xsched ps --json`. Counters only grow.
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
    queues: int
    launches: int
    used_ns: int
    held_ns: int
    preemptions: int
    wait_p99_us: int | None


@dataclass(frozen=True)
class Policy:
    """The policy at work."""

    name: str
    plain: str
    timeslice_us: int
    k: int


def tasks():
    """What is being scheduled now, by device and importance."""
    return [Task(**task) for task in _native.tasks()]


def policy():
    """The policy at work."""
    return Policy(*_native.policy())


def set_policy(name=None, *, timeslice=None, k=None):
    """Changes the policy, the length of a turn or the number of tasks at once; answers what is at work then."""
    if name is None and timeslice is None and k is None:
        raise TypeError("set_policy needs a name, a timeslice or k: policy() tells what is at work")
    return Policy(*_native.policy(name, timeslice, k))


def policies():
    """Every policy there is, by its plain name, with its rule."""
    return {plain: rule for _, plain, rule in _native.policies()}


def set(target, *, priority=None, share=None, deadline=None, laxity=None):
    """Changes the wishes of a process (a number) or of every program of a name, as `xsched set` does."""
    if priority is None and share is None and deadline is None and laxity is None:
        raise TypeError("set needs a priority, a share, a deadline or a laxity")
    _native.set_target(target, priority, share, deadline, laxity)


def suspend(target):
    """Holds all launches of a process, or of every program of a name, until it is resumed."""
    _native.suspend_target(target, True)


def resume(target):
    """Lets a process, or every program of a name, launch again."""
    _native.suspend_target(target, False)
