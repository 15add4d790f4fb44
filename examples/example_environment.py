"""The environment of the Python examples: a separate scheduler, a device, and child programs that are always ended."""

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
    parser.add_argument("--seconds", type=float, default=3, help="the duration of each part")
    return parser.parse_args()


def find(name, what):
    """The path of a program or library: in PATH, else in cargo's target directory."""
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    candidates = [shutil.which(name)] + [os.path.join(ROOT, target, profile, name) for profile in ("release", "debug")]
    for path in candidates:
        if path and os.path.exists(path):
            return path
    sys.exit(f"{name} is missing: {what}")


class ExampleEnvironment:
    """A temporary directory with a socket and a device; leaving the block ends all programs."""

    def __init__(self, device, service=()):
        """`service`: more options of `xsched serve`."""
        self.directory = tempfile.mkdtemp(prefix="xsched-example-")
        self.xsched = find("xsched", "build it with `cargo build --release --workspace`, or `pip install ./python`")
        self.environment = dict(os.environ, XSCHED_SOCKET=os.path.join(self.directory, "socket"))
        if device == "simulated" or (device == "auto" and not self._torch_has_a_gpu()):
            library = os.environ.get("XSIM_LIBRARY") or find("libxsim.so", "build it with `cargo build --release -p xsim`")
            self.environment.update(XSIM_LIBRARY=library, XSIM_DEVICE=os.path.join(self.directory, "device"),
                                    PYTHONPATH=os.path.join(HERE, "fake_torch"))
        self.children = []
        self.service = service

    def _torch_has_a_gpu(self):
        query = "import torch, sys; sys.exit(not torch.cuda.is_available())"
        return subprocess.run([sys.executable, "-c", query], capture_output=True).returncode == 0

    def __enter__(self):
        self.start([self.xsched, "serve", "--quiet", *self.service])
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
        """Starts a Python program and waits until it is ready; under the scheduler if it has a priority."""
        prefix = [self.xsched, "run", "--priority", priority, "--"] if priority else []
        child = self.start([*prefix, sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.receive(child)
        return child

    @staticmethod
    def receive(child):
        """The next line of JSON that a program prints."""
        line = child.stdout.readline()
        if not line:
            sys.exit(f"a program exited with status {child.wait()}")
        return json.loads(line)

    @staticmethod
    def send(child, value):
        child.stdin.write(json.dumps(value) + "\n")
        child.stdin.flush()


def percentile(values, percent):
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))]
