"""The hints of this process: `hint` and `priority`.

A process has one priority. While several blocks are open, in threads or in asyncio tasks, it has the highest priority that
any of them requests; of nested blocks the innermost counts.
"""

import os
import sys
from _contextvars import ContextVar
from _thread import allocate_lock

from . import _native
from ._errors import Error, NoScheduler, SchedulerFailed, UnscheduledWarning

# Read by the library when the program's first stream registers with the scheduler.
_VARIABLES = tuple("XSCHED_AUTO_XQUEUE_" + name for name in ("PRIORITY", "UTILIZATION", "DEADLINE", "LAXITY"))

_innermost = ContextVar("xsched_priority", default=None)
_lock = allocate_lock()
_open = set()
_before = None  # the priority before the first block, if there was one
_now = None  # the priority that the blocks request
_saved = {}  # the previous values of environment variables that this module set
_warned = False


def hint(*, priority=None, share=None, deadline=None, laxity=None):
    """Sets the priority, share, deadline or laxity of this process from now on.

    The change is in effect when the call returns: it applies to the next launch. Before the process's first launch on a
    device it applies from that launch on. If the scheduler does not reply within its timeout, hints have no effect for
    10 s. Without a scheduler the call has no effect and gives an UnscheduledWarning.
    """
    global _before
    if priority is None and share is None and deadline is None and laxity is None:
        raise TypeError("hint needs a priority, a share, a deadline or a laxity")
    hints = _native.parse_hints(priority, share, deadline, laxity)
    with _lock:
        if hints[0] is not None and _open:
            # Applies when the blocks have ended.
            _before, hints = hints[0], (None, *hints[1:])
        if any(hint is not None for hint in hints):
            _set(hints)


class priority:
    """Gives this process a priority for a block, or for every call of a function.

        with xsched.priority("high"): ...

        @xsched.priority(10)
        def serve(request): ...

    The value is a number from -255 to 255, or "low", "normal" or "high". Without a scheduler the block runs too, with an
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
        *outer, (block, token) = self._blocks.get()
        self._blocks.set(tuple(outer))
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
    """One block that was entered. Its priority counts while no block inside it is open."""

    def __init__(self, value, outer):
        self.value, self.outer, self.inner = value, outer, 0

    def begin(self):
        with _lock:
            self._add(1)
            try:
                _apply()
            except BaseException:
                self._add(-1)
                raise

    def end(self):
        with _lock:
            self._add(-1)
            try:
                _apply()
            except Error as error:
                # The block has completed; an error here must not lose its result.
                _warn(f"the priority from before the block could not be restored: {error}")

    def _add(self, count):
        _open.add(self) if count > 0 else _open.discard(self)
        if self.outer is not None:
            self.outer.inner += count


def _apply():
    """Sets the highest priority that the open blocks request, or the previous one if there are none."""
    global _before, _now
    requested = max((block.value for block in _open if block.inner == 0), default=None)
    if requested == _now:
        return
    if requested is None:
        before, _before, _now = _before, None, None
        _restore_environment()
        _set((before or 0, None, None, None), set_environment=before is not None)
    else:
        previous = _set((requested, None, None, None))
        if _now is None:
            _before = previous[0] if previous is not None else _environment_priority()
        _now = requested


def _environment_priority():
    """The priority in the environment before this module changed it."""
    text = _saved.get(_VARIABLES[0])
    try:
        return None if text is None else _native.parse_priority(text)
    except Error:
        return None


def _set(hints, set_environment=True):
    """Sends hints to the service. For a process that has not registered yet, they are left in the environment."""
    # Before the request, because another thread may register with the scheduler meanwhile.
    for name, value in zip(_VARIABLES, hints) if set_environment else ():
        value = value[0] if isinstance(value, tuple) else value
        if value is not None:
            _saved.setdefault(name, os.environ.get(name))
            os.environ[name] = str(value)
    try:
        previous = _native.set_own_hints(hints)
    except (NoScheduler, SchedulerFailed) as error:
        _warn(f"this program is not scheduled now: {error}")
        return None
    except BaseException:
        _restore_environment()
        raise
    if previous is not None:
        _restore_environment()
    elif not _native.loaded():
        _warn("libxsched.so is not loaded in this process, so it is not scheduled: start it with `xsched run`")
    return previous


def _restore_environment():
    for name, value in _saved.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _saved.clear()


def _warn(message):
    """Warns once per process: an unscheduled program would otherwise repeat the warning for every request."""
    global _warned
    if not _warned:
        _warned = True
        from warnings import warn

        # At the line of the caller of this module.
        level, frame = 1, sys._getframe()
        while frame.f_back is not None and frame.f_code.co_filename == __file__:
            level, frame = level + 1, frame.f_back
        warn(message, UnscheduledWarning, stacklevel=level)


def _forked():
    """After fork, only the calling thread exists in the child; the blocks of other threads do not."""
    global _lock, _open, _before, _now
    _lock, _open, _before, _now = allocate_lock(), set(), None, None
    _innermost.set(None)


os.register_at_fork(after_in_child=_forked)
