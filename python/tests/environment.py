"""A separate environment for each test: a device, a socket, a service. Needs XSIM_LIBRARY and, in PATH, `xsched`."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

XSCHED = os.path.join(os.path.dirname(sys.executable), "xsched")
HERE = os.path.dirname(os.path.abspath(__file__))


def eventually(what, condition, timeout=60):
    """Waits until `condition` returns a true value, and returns it."""
    end = time.monotonic() + timeout
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {timeout} s")
        time.sleep(0.005)


class Environment:
    def __init__(self):
        self.directory = tempfile.mkdtemp(prefix="xsched-python-")
        self.socket = os.path.join(self.directory, "socket")
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("XSCHED_", "XLOG_", "LD_PRELOAD"))}
        self.environment.update(
            XSCHED_SOCKET=self.socket,
            XSIM_DEVICE=os.path.join(self.directory, "device"),
            PATH=os.path.dirname(XSCHED) + os.pathsep + os.environ.get("PATH", ""),
            PYTHONPATH=HERE,
        )
        self.children = []

    def start_service(self, *prefix):
        """Starts a service, with its command behind `prefix`."""
        service = self.start([*prefix, XSCHED, "serve", "--quiet"])
        eventually("the service replies", lambda: self.run([XSCHED, "policy", "--json"]).returncode == 0)
        return service

    def start(self, command, **more):
        child = subprocess.Popen(command, env=self.environment, text=True, **more)
        self.children.append(child)
        return child

    def run(self, command, **more):
        environment = dict(self.environment, **more.pop("environment", {}))
        return subprocess.run(command, env=environment, text=True, capture_output=True, timeout=120, **more)

    def python(self, program, *prefix, **more):
        """Runs a Python program, with its command behind `prefix`; returns the JSON that it printed."""
        done = self.run([*prefix, sys.executable, "-W", "default", "-c", program], **more)
        if done.returncode != 0:
            raise AssertionError(f"status {done.returncode}\n{done.stdout}\n{done.stderr}")
        self.errors = done.stderr
        return json.loads(done.stdout)

    def close(self):
        for child in self.children:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe:
                    pipe.close()
        shutil.rmtree(self.directory, ignore_errors=True)


class Device:
    """The simulated device, used as a program uses its driver: opened at run time, with functions looked up by name."""

    def __init__(self):
        self.lib = ctypes.CDLL(os.environ["XSIM_LIBRARY"])
        self.device, self.queue = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.lib.xsim_open(None, ctypes.byref(self.device)))
        self.check(self.lib.xsim_queue_create(self.device, ctypes.byref(self.queue)))

    @staticmethod
    def check(code):
        if code:
            raise AssertionError(f"the device returned {code}")

    def work(self, commands=1, length_us=100):
        for _ in range(commands):
            self.check(self.lib.xsim_launch(self.queue, ctypes.c_uint64(length_us * 1000)))
        self.check(self.lib.xsim_synchronize(self.queue))
