"""A plugin for programs that load plugins: their worker processes are scheduled without a change to the command line.

vLLM calls `register` in each of its processes, through the entry point `vllm.general_plugins`; any other program can
call it at its start. It has an effect only if XSCHED_AUTO_XQUEUE=ON is set and the library is not preloaded, that is, if
the program was not started with `xsched run`. Then the processes that it starts have the library preloaded, are
scheduled by the service, and inherit the XSCHED_ variables.

The library cannot be added to a running process: a program that uses the accelerator itself, without starting another
process for it, needs `xsched run`.
"""

import logging
import os
import subprocess

from . import _native

_log = logging.getLogger("xsched")


def register() -> bool:
    """Makes the processes that this one starts from now on scheduled. Returns whether it did."""
    if os.environ.get("XSCHED_AUTO_XQUEUE", "").upper() not in ("ON", "1", "TRUE", "YES"):
        return False
    if _native.loaded():
        return False
    library = os.path.realpath(_native.library_path())
    if not os.path.isfile(library):
        _log.warning("this program is not scheduled: %s is missing", library)
        return False
    if any(sign in library for sign in " :\t\n"):
        _log.warning("this program is not scheduled: %s cannot be preloaded, because its path contains a space or a colon", library)
        return False
    preloaded = os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    if library not in preloaded:
        os.environ["LD_PRELOAD"] = ":".join([library, *preloaded])
    # The variables of the original C++ XSched decide; without them the service schedules, as with `xsched run`.
    if "XSCHED_POLICY" not in os.environ:
        os.environ.setdefault("XSCHED_SCHEDULER", "GLB")
    # A forked process is not loaded again, and so lacks the library; a spawned one has it.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    if os.environ.get("XSCHED_SCHEDULER", "").upper() == "GLB":
        _ensure_service()
    return True


def _ensure_service() -> None:
    """Starts a service if there is none, as `xsched run` does."""
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "xsched")
    try:
        subprocess.run([program, "run", "--", "true"], check=True, timeout=10, stdout=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("no scheduler could be started, so the processes of this program are not scheduled: %s", error)
