"""What the workers of the test do: they use the simulated device as a program uses its driver. Contains no XSched code."""

import ctypes
import os
import time

MILLISECOND_NS = 1_000_000


class Device:
    """One queue of the simulated device."""

    def __init__(self):
        self.library = ctypes.CDLL(os.environ["XSIM_LIBRARY"])
        self.device, self.queue = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("open", None, ctypes.byref(self.device))
        self.call("queue_create", self.device, ctypes.byref(self.queue))

    def call(self, name, *arguments):
        code = getattr(self.library, "xsim_" + name)(*arguments)
        if code:
            raise RuntimeError(f"xsim_{name} returned {code}")

    def launch(self, milliseconds):
        self.call("launch", self.queue, ctypes.c_uint64(int(milliseconds * MILLISECOND_NS)))

    def synchronize(self):
        self.call("synchronize", self.queue)

    def mark(self):
        marker = ctypes.c_uint64()
        self.call("queue_mark", self.queue, ctypes.byref(marker))
        return marker.value

    def completed_at(self):
        """When the last marker completed, in nanoseconds of the monotonic clock."""
        marker, at = ctypes.c_uint64(), ctypes.c_uint64()
        self.call("queue_progress", self.queue, ctypes.byref(marker), ctypes.byref(at))
        return at.value


class Service:
    """Answers requests of 8 ms of device time each."""

    def __init__(self):
        self.device = Device()

    def pid(self):
        return os.getpid()

    def requests(self, count, period_ms=20):
        """The times from the arrival of each request to its completion on the device, in milliseconds."""
        latencies = []
        due = time.monotonic()
        for _ in range(count):
            arrived = time.monotonic_ns()
            for _ in range(8):
                self.device.launch(1)
            self.device.mark()
            self.device.synchronize()
            latencies.append((self.device.completed_at() - arrived) / MILLISECOND_NS)
            # A request that takes longer than the period delays the next one, whose latency starts then.
            due = max(due + period_ms / 1000, time.monotonic())
            time.sleep(max(due - time.monotonic(), 0))
        return latencies


class Training:
    """Uses all device time that it can get, in steps of 2 ms, on a thread of its own."""

    STEP_MS = 2

    def __init__(self):
        import threading

        self.device, self.steps, self.runs = Device(), 0, True
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while self.runs:
            for _ in range(10):
                self.device.launch(self.STEP_MS)
            self.device.synchronize()
            self.steps += 10

    def pid(self):
        return os.getpid()

    def progress(self):
        """When this was called, and the device time used until then, both in seconds."""
        return time.monotonic(), self.steps * self.STEP_MS / 1000

    def stop(self):
        self.runs = False
        self.thread.join()
