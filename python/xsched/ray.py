"""XSched for Ray: a `runtime_env` that puts tasks, actors and Serve deployments under the scheduler.

    import ray, xsched.ray

    @ray.remote(num_gpus=0.5, runtime_env=xsched.ray.runtime_env(priority="low", name="train"))
    def train(): ...

    @serve.deployment(ray_actor_options={"num_gpus": 0.5, "runtime_env": xsched.ray.runtime_env(priority="high")})
    class Model: ...

Ray decides on which node a worker runs, XSched decides which worker has the GPU at each moment.

The environment of the worker is set, and not `py_executable`: `pip`, `uv`, `conda` and container images choose the Python
executable themselves, and a node without XSched would fail to start a worker whose executable is missing. With a missing library
the dynamic linker prints one line, and the worker runs unscheduled. The service has to run on each node, as the systemd unit of
the package does: a worker does not start one.
"""

import os
from typing import Any, Dict, Mapping, Optional, Union

from . import _native
from ._errors import NotSupported, OutOfRange

__all__ = ["runtime_env"]

_TOKEN_LENGTHS = range(32, 257)


def runtime_env(
    base: Optional[Mapping[str, Any]] = None,
    *,
    priority: Union[int, str, None] = None,
    share: Optional[int] = None,
    memory: Union[int, str, None] = None,
    name: Optional[str] = None,
    job: Optional[str] = None,
    grant: Optional[str] = None,
    library: Optional[str] = None,
) -> Dict[str, Any]:
    """Returns a runtime environment for Ray whose workers are scheduled.

    `base` is a runtime environment to extend; it is not changed. `priority`, `share` and `name` are those of `xsched run`.
    Workers of one `job` are held and resumed together on all GPUs of a node. `memory` is the device memory that each worker may
    allocate on each GPU: "20G", "50%" or a number of bytes.

    On a node whose service belongs to root, users cannot request more than their limit. Its administrator gives the workers of a
    cluster more by a grant: start `ray start` with the grant's token in XSCHED_GRANT, which workers inherit, or inside the grant's
    control group. `grant` passes a token instead; users of the cluster can read it in Ray's dashboard.

    `library` is the path of `libxsched.so` on the nodes, if it differs from the one of this installation.
    """
    environment = dict(base or {})
    variables = dict(environment.get("env_vars") or {})
    # The same checks and messages as those of `xsched.hint`.
    hints = _native.parse_hints(priority, share, None, None)
    library = _library(library)
    variables["LD_PRELOAD"] = _joined(library, variables.get("LD_PRELOAD"), ":")
    # Older versions of AMD's runtime load it by this name. Existing tools stay first.
    tools = variables.get("HSA_TOOLS_LIB", "")
    if library not in tools.split():
        variables["HSA_TOOLS_LIB"] = f"{tools} {library}".strip()
    variables["XSCHED_SCHEDULER"] = "GLB"
    variables["XSCHED_AUTO_XQUEUE"] = "ON"
    for variable, value in (
        ("XSCHED_AUTO_XQUEUE_PRIORITY", hints[0]),
        ("XSCHED_AUTO_XQUEUE_UTILIZATION", hints[1]),
        ("XSCHED_MEMORY", _memory(memory)),
        ("XSCHED_NAME", _label(name, "name")),
        ("XSCHED_JOB", _label(job, "job")),
        ("XSCHED_GRANT", _token(grant)),
    ):
        if value is not None:
            variables[variable] = str(value)
    environment["env_vars"] = variables
    return environment


def _library(path: Optional[str]) -> str:
    if path is None:
        path = os.path.realpath(_native.library_path())
        if not os.path.isfile(path):
            raise NotSupported(f"{path} is missing: pass library= with its path on the nodes")
    if not os.path.isabs(path):
        raise OutOfRange(f"library {path!r} is not an absolute path: Ray starts workers in other directories")
    if any(sign in path for sign in " :\t\n"):
        raise OutOfRange(f"library {path!r} cannot be preloaded, because its path contains a space or a colon")
    return path


def _joined(first: str, rest: Optional[str], separator: str) -> str:
    others = [entry for entry in (rest or "").replace(" ", ":").split(":") if entry and entry != first]
    return separator.join([first, *others])


def _memory(value: Union[int, str, None]) -> Optional[str]:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError(f"{value!r} is not an amount of memory: use a text such as \"20G\", or a number of bytes")
    return _native.parse_memory(str(value))


def _label(value: Optional[str], what: str) -> Optional[str]:
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a {what}: use a text of 1 to 64 characters")
    if not 1 <= len(value) <= 64 or not value.isprintable():
        raise OutOfRange(f"{what} {value!r}: a {what} has 1 to 64 printable characters")
    return value


def _token(value: Optional[str]) -> Optional[str]:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) not in _TOKEN_LENGTHS or not (value.isascii() and value.isprintable() and " " not in value):
        # Without the value: it is a secret.
        raise OutOfRange("the token of a grant has 32 to 256 visible ASCII characters")
    return value
