"""What the examples in Python need around them: a scheduler of their own, a device, and programs that are always ended."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)


def options(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", choices=["auto", "gpu", "simulated"], default="auto")
    parser.add_argument("--seconds", type=float, default=3, help="how long each part lasts")
    return parser.parse_args()


def find(name, what):
    """A program or library: in PATH, else where cargo puts it."""
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    places = [shutil.which(name)] + [os.path.join(ROOT, target, profile, name) for profile in ("release", "debug")]
    for place in places:
        if place and os.path.exists(place):
            return place
    sys.exit(f"{name} is missing: {what}")


class Surroundings:
    """A directory with a socket and a device in it; everything ends with it."""

    def __init__(self, device):
        self.directory = tempfile.mkdtemp(prefix="xsched-example-")
        self.xsched = find("xsched", "build it with `cargo build --release --workspace`, or `pip install ./python`")
        self.environment = dict(os.environ, XSCHED_SOCKET=os.path.join(self.directory, "socket"))
        if device == "simulated" or (device == "auto" and not self._torch_has_a_gpu()):
            library = os.environ.get("XSIM_LIBRARY") or find("libxsim.so", "build it with `cargo build --release -p xsim`")
            self.environment.update(XSIM_LIBRARY=library, XSIM_DEVICE=os.path.join(self.directory, "device"),
                                    PYTHONPATH=os.path.join(HERE, "fake_torch"))
        self.children = []

    def _torch_has_a_gpu(self):
        ask = "import torch, sys; sys.exit(not torch.cuda.is_available())"
        return subprocess.run([sys.executable, "-c", ask], capture_output=True).returncode == 0

    def __enter__(self):
        self.start([self.xsched, "serve", "--quiet"])
        while not os.path.exists(self.environment["XSCHED_SOCKET"]):
            time.sleep(0.01)
        name = "import torch; print(torch.cuda.get_device_name())"
        shown = subprocess.run([sys.executable, "-c", name], env=self.environment, capture_output=True, text=True)
        print(f"device: {shown.stdout.strip() or shown.stderr.strip()}\n", flush=True)
        return self

    def __exit__(self, *exception):
        for child in reversed(self.children):
            child.kill()
            child.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self, command, **more):
        child = subprocess.Popen(command, env=self.environment, text=True, **more)
        self.children.append(child)
        return child

    def program(self, *command, priority=None):
        """A program of Python that says when it is ready; under the scheduler if it has a priority."""
        under = [self.xsched, "run", "--priority", priority, "--"] if priority else []
        child = self.start([*under, sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.heard(child)
        return child

    @staticmethod
    def heard(child):
        """The next line of JSON that a program says."""
        line = child.stdout.readline()
        if not line:
            sys.exit(f"a program has ended with status {child.wait()}")
        return json.loads(line)

    @staticmethod
    def tell(child, what):
        child.stdin.write(json.dumps(what) + "\n")
        child.stdin.flush()


def percentile(values, percent):
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))]
