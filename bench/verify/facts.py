"""What this machine is: the findings of `xsched doctor`, PyTorch, and the processor. Names of the user and the host are removed."""

import getpass
import json
import os
import pathlib
import platform
import re
import socket
import subprocess
import sys

# Run in a process of its own: importing PyTorch takes seconds and may fail in every way.
TORCH_PROBE = """
import json, importlib.util, pathlib
about = {"installed": importlib.util.find_spec("torch") is not None}
if about["installed"]:
    place = pathlib.Path(importlib.util.find_spec("torch").origin).parent
    about["own_runtimes"] = sorted(path.name for path in place.glob("lib/libamdhip64.so*"))
    about["own_rocr"] = sorted(path.name for path in place.glob("lib/libhsa-runtime64.so*"))
    try:
        import torch
        about |= {"version": torch.__version__, "hip": getattr(torch.version, "hip", None), "cuda": torch.version.cuda,
                  "sees_devices": torch.cuda.device_count() if torch.cuda.is_available() else 0}
    except Exception as error:
        about["error"] = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
print(json.dumps(about))
"""
TORCH_TIMEOUT_S = 90


def doctor(machine, root=None):
    """The findings of `xsched doctor`, about AMD's devices, programs and the system."""
    words = ["doctor", "--json", *(["--root", root] if root else [])]
    try:
        # In the user's environment, not in that of the verification's programs.
        done = subprocess.run([machine.xsched, *words], capture_output=True, text=True, check=False, timeout=60)
        checks = json.loads(done.stdout)["checks"]
    except (ValueError, KeyError, OSError, subprocess.SubprocessError) as error:
        return [{"group": "system", "name": "doctor", "state": "problem", "what": f"`xsched doctor` failed: {error}", "do_next": "send the report"}]
    # The service is the verification's own, and other platforms do not matter here.
    return [check for check in checks if is_relevant(check, machine.is_hip)]


def is_relevant(check, is_hip):
    """Whether a finding says something about this platform."""
    if check["group"] == "devices":
        return check["name"].startswith(("amd", "rocm") if is_hip else "nvidia")
    return check["name"] not in ("service", "tasks", "rights")


def pytorch(machine):
    """A finding about PyTorch, in the form of the doctor's."""
    if machine.is_simulated:
        return finding("pytorch", "ok", "not examined: its kernels do not compute on the stand-in", {"installed": None})
    try:
        done = subprocess.run([sys.executable, "-c", TORCH_PROBE], env=machine.environment, cwd=machine.directory, capture_output=True,
                              text=True, check=False, timeout=machine.budget.timeout(TORCH_TIMEOUT_S))
        about = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError, subprocess.TimeoutExpired) as error:
        about = {"installed": True, "error": f"it cannot be examined ({type(error).__name__})"}
    return describe_pytorch(about, machine.is_hip)


def describe_pytorch(about, is_hip):
    """The finding about PyTorch, from what its process printed."""
    if not about["installed"]:
        return finding("pytorch", "warning", f"not installed for {sys.executable}: its results are not compared", about,
                       "start this script with the Python that has PyTorch: `path/to/python scripts/verify --platform hip`")
    if "error" in about:
        return finding("pytorch", "warning", f"installed, but it cannot be imported: {about['error']}", about,
                       "repair the installation; its results are not compared")
    title = f"PyTorch {about['version']}"
    if is_hip and not about["hip"]:
        return finding("pytorch", "warning", f"{title} is not built for ROCm: its results are not compared", about,
                       "install PyTorch for ROCm, or start this script with the Python that has it")
    built = f"built for ROCm {about['hip']}" if is_hip else f"built for CUDA {about['cuda']}"
    runtime = "with its own runtime" if about["own_runtimes"] else "with the system's runtime"
    what = f"{title}, {built}{', ' + runtime if is_hip else ''}, sees {about['sees_devices']} devices"
    if about["sees_devices"] == 0:
        return finding("pytorch", "warning", what, about, "the other findings say why; check HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES")
    return finding("pytorch", "ok", what, about)


def finding(name, state, what, facts, do_next=None):
    """One finding in the form of the doctor's."""
    return {"group": "programs", "name": name, "state": state, "what": what, "do_next": do_next, "facts": facts}


def host():
    """The processor and the system, without names."""
    model = ""
    try:
        model = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"))[1]
    except (OSError, TypeError):
        pass
    system = ""
    try:
        system = re.search(r'PRETTY_NAME="?([^"\n]*)', pathlib.Path("/etc/os-release").read_text(encoding="utf-8"))[1]
    except (OSError, TypeError):
        pass
    return {"processor": model, "cores": len(os.sched_getaffinity(0)), "load": [round(value, 1) for value in os.getloadavg()],
            "system": system, "kernel": platform.release(), "python": platform.python_version()}


class Redaction:
    """Removes the names of the user and of the host, and the home directory, from everything that is reported."""

    def __init__(self, include_names=False, replacements=None):
        self.replacements = [] if include_names else replacements if replacements is not None else self.own_names()
        self.include_names = include_names

    @staticmethod
    def own_names():
        names = [(os.path.expanduser("~"), "~")]
        try:
            names.append((getpass.getuser(), "USER"))
        except (KeyError, OSError):
            pass
        names += [(name, "HOST") for name in {socket.gethostname(), socket.gethostname().partition(".")[0]}]
        # Short names, and root, occur in ordinary words.
        return [(name, place) for name, place in names if len(name) > 3 and name not in ("/root", "root", "localhost")]

    def text(self, text):
        for name, place in self.replacements:
            edge = r"(?![\w-])" if name[-1].isalnum() else ""
            text = re.sub(r"(?<![\w-])" + re.escape(name) + edge, place, text)
        return text

    def value(self, value):
        """The same value without names, at any depth. Names of other processes are left out."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            kept = {name: item for name, item in value.items() if self.include_names or name != "names"}
            return {name: self.value(item) for name, item in kept.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return value
