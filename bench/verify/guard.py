"""Runs the verification so that it can be stopped at any moment and leaves nothing behind.

Two processes watch each other. The outer one, which the user started, only waits; the inner one, in a session of its own, does
the work. A signal or a closed terminal reaches the outer process, which passes it on. If the inner process is killed, the
outer one ends everything that it started and removes its directory. If the outer one is killed, the kernel sends
the inner one SIGTERM, which does the same. Programs that the inner process starts are killed by the kernel when it exits.
"""

import ctypes
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time

PREFIX = "xsched-verify-"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# After this time the outer process kills an inner one that does not react.
INNER_EXIT_TIMEOUT_S = 20

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


class Interrupted(BaseException):
    """A signal asked the verification to stop. Not an Exception, so that no handler of failures catches it."""


def die_with_parent():
    """In a new child: has the kernel kill it when its parent's thread exits."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def descendants(pid):
    """The process numbers of all living descendants of a process, from /proc."""
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, pending = [], [pid]
    while pending:
        children = parents.get(pending.pop(), [])
        found += children
        pending += children
    return found


def end_descendants(pid):
    """Kills all descendants of a process, also those that they start meanwhile, and collects their exit status."""
    end = time.monotonic() + INNER_EXIT_TIMEOUT_S
    while time.monotonic() < end:
        remaining = descendants(pid)
        for child in remaining:
            try:
                os.kill(child, signal.SIGKILL)
            except OSError:
                pass
        collect()
        if not remaining:
            return
        time.sleep(0.01)


def collect():
    """Collects the exit status of children that have exited."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        pass


def remove_leftovers(directory=None):
    """Removes directories of verifications that no longer run: both of their processes were killed at once."""
    for path in pathlib.Path(directory or tempfile.gettempdir()).glob(PREFIX + "*"):
        owner = path.name[len(PREFIX):].partition("-")[0]
        try:
            is_own = path.stat().st_uid == os.getuid() and not path.is_symlink()
        except OSError:
            continue
        if is_own and owner.isdigit() and not pathlib.Path("/proc", owner).exists():
            shutil.rmtree(path, ignore_errors=True)


def raise_interrupted(number, _frame):
    """The inner process's handler: the first signal ends the work, later ones do not disturb the clean-up."""
    for stop_signal in STOP_SIGNALS:
        signal.signal(stop_signal, signal.SIG_IGN)
    raise Interrupted(signal.Signals(number).name)


def run(work, time_limit_s):
    """Calls `work(directory)` in the inner process; returns its exit status. The directory is removed afterwards."""
    remove_leftovers()
    directory = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    outer = os.getpid()
    stopped_by = []
    # Blocked until the handlers are installed in both processes, so that no signal is lost between.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    sys.stdout.flush()
    sys.stderr.flush()
    inner = os.fork()
    if inner == 0:
        status = 1
        try:
            os.setsid()
            for number in STOP_SIGNALS:
                signal.signal(number, raise_interrupted)
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() == outer:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
                status = work(directory)
        except Interrupted:
            status = 130
        except BaseException:  # pylint: disable=broad-except
            sys.excepthook(*sys.exc_info())
        finally:
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            end_descendants(os.getpid())
            shutil.rmtree(directory, ignore_errors=True)
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except (OSError, ValueError):
                    pass
            os._exit(status)

    def forward(number, _frame):
        stopped_by.append(number)
        try:
            os.kill(inner, number)
        except ProcessLookupError:
            pass
    for number in STOP_SIGNALS:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    status = wait_for(inner, time_limit_s, stopped_by)
    end_descendants(outer)
    shutil.rmtree(directory, ignore_errors=True)
    return 128 + stopped_by[0] if stopped_by else status


def wait_for(inner, time_limit_s, stopped_by):
    """Waits for the inner process, which it kills if it neither ends in time nor after a signal. Returns the exit status."""
    end = time.monotonic() + time_limit_s
    asked = False
    while True:
        pid, wait_status = os.waitpid(inner, os.WNOHANG)
        if pid == inner:
            code = os.waitstatus_to_exitcode(wait_status)
            return code if code >= 0 else 128 - code
        if stopped_by and not asked:
            asked, end = True, min(end, time.monotonic() + INNER_EXIT_TIMEOUT_S)
        if time.monotonic() > end:
            os.kill(inner, signal.SIGKILL if asked else signal.SIGTERM)
            asked, end = True, time.monotonic() + INNER_EXIT_TIMEOUT_S
        # Other descendants whose parents have exited.
        time.sleep(0.05)
