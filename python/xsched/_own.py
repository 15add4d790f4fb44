"""What this process wishes for itself: `hint` and `priority`.

A process has one priority. While several blocks are open, in threads or in asyncio tasks, it has the highest that any
of them asks for; of blocks inside each other the innermost counts.
"""

import os
import sys
from _contextvars import ContextVar
from _thread import allocate_lock

from . import _native
from ._errors import Error, NoScheduler, SchedulerFailed, UnscheduledWarning

# Read by the library when the program's first stream joins the scheduler.
_VARIABLES = tuple("XSCHED_AUTO_XQUEUE_" + name for name in ("PRIORITY", "UTILIZATION", "DEADLINE", "LAXITY"))

_innermost = ContextVar("xsched_priority", default=None)
_lock = allocate_lock()
_open = set()
_before = None  # the priority from before the first block, if there was one
_now = None  # the priority that the blocks give the process
_left = {}  # what was in the environment where we left word
_warned = False


def hint(*, priority=None, share=None, deadline=None, laxity=None):
    """Tells the scheduler what this process would like from now on.

    Has taken effect when it returns: the next launch obeys it. Before the process's first work on a device it counts from
    that on. A scheduler that does not answer is waited for once, and not for long. Without a scheduler the program runs on, with
    an UnscheduledWarning.
    """
    global _before
    if priority is None and share is None and deadline is None and laxity is None:
        raise TypeError("hint needs a priority, a share, a deadline or a laxity")
    wishes = _native.parse_wishes(priority, share, deadline, laxity)
    with _lock:
        if wishes[0] is not None and _open:
            # For when the blocks have ended.
            _before, wishes = wishes[0], (None, *wishes[1:])
        if any(wish is not None for wish in wishes):
            _ask(wishes)


class priority:
    """Gives this process a priority for a block, or for every call of a function.

        with xsched.priority("high"): ...

        @xsched.priority(10)
        def answer(question): ...

    A number from -255 to 255, or "low", "normal" or "high". Without a scheduler the block runs all the same, with an
    UnscheduledWarning.
    """

    def __init__(self, value):
        self.value = _native.parse_priority(value)
        self._blocks = ContextVar("xsched_blocks", default=())

    def __enter__(self):
        block = _Block(self.value, _innermost.get())
        token = _innermost.set(block)
        try:
            block.begin()
        except BaseException:
            _innermost.reset(token)
            raise
        self._blocks.set((*self._blocks.get(), (block, token)))
        return self

    def __exit__(self, *exception):
        *others, (block, token) = self._blocks.get()
        self._blocks.set(tuple(others))
        _innermost.reset(token)
        block.end()

    def __call__(self, function):
        from functools import wraps
        from inspect import iscoroutinefunction

        if iscoroutinefunction(function):

            @wraps(function)
            async def important(*args, **kwargs):
                with priority(self.value):
                    return await function(*args, **kwargs)

        else:

            @wraps(function)
            def important(*args, **kwargs):
                with priority(self.value):
                    return function(*args, **kwargs)

        return important

    def __repr__(self):
        return f"xsched.priority({self.value})"


class _Block:
    """One block that was entered. It counts while no block inside it is open."""

    def __init__(self, value, outer):
        self.value, self.outer, self.inner = value, outer, 0

    def begin(self):
        with _lock:
            self._add(1)
            try:
                _give()
            except BaseException:
                self._add(-1)
                raise

    def end(self):
        with _lock:
            self._add(-1)
            try:
                _give()
            except Error as error:
                # What the block did is done; that its priority stays is no reason to lose its result.
                _warn(f"the priority before the block could not be given back: {error}")

    def _add(self, one):
        _open.add(self) if one > 0 else _open.discard(self)
        if self.outer is not None:
            self.outer.inner += one


def _give():
    """Gives the process what its blocks ask for; what it had before when there are none."""
    global _before, _now
    wanted = max((block.value for block in _open if block.inner == 0), default=None)
    if wanted == _now:
        return
    if wanted is None:
        before, _before, _now = _before, None, None
        _take_back()
        _ask((before or 0, None, None, None), leave_word=before is not None)
    else:
        had = _ask((wanted, None, None, None))
        if _now is None:
            _before = had[0] if had is not None else _of_environment()
        _now = wanted


def _of_environment():
    """What the environment wished for before we left word there."""
    text = _left.get(_VARIABLES[0])
    try:
        return None if text is None else _native.parse_priority(text)
    except Error:
        return None


def _ask(wishes, leave_word=True):
    """Tells the service. A process that has not joined yet leaves word for when it does."""
    # First of all: another thread may join the scheduler while we speak with it.
    for name, wish in zip(_VARIABLES, wishes) if leave_word else ():
        wish = wish[0] if isinstance(wish, tuple) else wish
        if wish is not None:
            _left.setdefault(name, os.environ.get(name))
            os.environ[name] = str(wish)
    try:
        had = _native.set_own(wishes)
    except (NoScheduler, SchedulerFailed) as error:
        _warn(f"nobody schedules this program now: {error}")
        return None
    except BaseException:
        _take_back()
        raise
    if had is not None:
        _take_back()
    elif not _native.loaded():
        _warn("libxsched.so is not in this process, so it is not scheduled: start it with `xsched run`")
    return had


def _take_back():
    for name, value in _left.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _left.clear()


def _warn(words):
    """Once in a process: who runs unscheduled does so for every request."""
    global _warned
    if not _warned:
        _warned = True
        from warnings import warn

        # At the line of whoever called into this file.
        level, frame = 1, sys._getframe()
        while frame.f_back is not None and frame.f_code.co_filename == __file__:
            level, frame = level + 1, frame.f_back
        warn(words, UnscheduledWarning, stacklevel=level)


def _forked():
    """In a child of a fork, only the thread that forked is left; the blocks of the others are not."""
    global _lock, _open, _before, _now
    _lock, _open, _before, _now = allocate_lock(), set(), None, None
    _innermost.set(None)


os.register_at_fork(after_in_child=_forked)
