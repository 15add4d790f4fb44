"""For programs that load plugins: has the processes they start scheduled, without a change to their command line.

vLLM calls `register` in each of its processes, through the entry point `vllm.general_plugins`; any other program can
call it at its start. It does something only where XSCHED_AUTO_XQUEUE=ON asks for it and the library is not there yet,
that is, where the program was not started with `xsched run`: processes started from then on have the library
preloaded, are scheduled by the service, and see the XSCHED_ variables of their parent.

A process that is running cannot be given the library any more: one that uses the accelerator itself, and starts no
other for it, needs `xsched run`.
"""

import logging
import os
import subprocess

from . import _native

_log = logging.getLogger("xsched")


def register() -> bool:
    """Has the processes that this one starts from now on scheduled. Answers whether it did."""
    if os.environ.get("XSCHED_AUTO_XQUEUE", "").upper() not in ("ON", "1", "TRUE", "YES"):
        return False
    if _native.loaded():
        return False
    library = os.path.realpath(_native.library_path())
    if not os.path.isfile(library):
        _log.warning("nothing is scheduled: %s is missing", library)
        return False
    if any(sign in library for sign in " :\t\n"):
        _log.warning("nothing is scheduled: %s cannot be preloaded: its path has a space or a colon in it", library)
        return False
    others = os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    if library not in others:
        os.environ["LD_PRELOAD"] = ":".join([library, *others])
    # The reference's variables decide; without them the service does, as with `xsched run`.
    if "XSCHED_POLICY" not in os.environ:
        os.environ.setdefault("XSCHED_SCHEDULER", "GLB")
    # A process that is forked is not loaded anew, and so has no library; one that is spawned is.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    if os.environ.get("XSCHED_SCHEDULER", "").upper() == "GLB":
        _make_sure_of_service()
    return True


def _make_sure_of_service() -> None:
    """`xsched run` starts a service where there is none; so it is asked to run nothing."""
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "xsched")
    try:
        subprocess.run([program, "run", "--", "true"], check=True, timeout=10, stdout=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("no scheduler could be started; what this program starts runs unscheduled: %s", error)
