"""Queue: with a stand-in for the C interface that records its calls, and with the real library."""

import ctypes
import json
import os
import subprocess
import tempfile
import unittest

from environment import HERE, XSCHED, Environment, eventually  # noqa: F401

PREAMBLE = """
import ctypes, json, os, sys, threading, time, types
import xsched
stub = ctypes.CDLL(None)
stub.stub_calls.restype = ctypes.c_char_p
def calls():
    return stub.stub_calls().decode().split()
"""


class Stubbed(unittest.TestCase):
    """The stand-in is preloaded, as `xsched run` preloads libxsched.so."""

    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="xsched-stub-")
        cls.stub = os.path.join(cls.directory.name, "libstub.so")
        cc = os.environ.get("CC", "cc")
        subprocess.run([cc, "-shared", "-fPIC", "-O2", "-o", cls.stub, os.path.join(HERE, "stub.c")], check=True)
        cls.environment = Environment()

    @classmethod
    def tearDownClass(cls):
        cls.environment.close()
        cls.directory.cleanup()

    def under_stub(self, program):
        return self.environment.python(PREAMBLE + program, environment={"LD_PRELOAD": self.stub})

    def test_each_kind_of_stream_uses_its_platform(self):
        result = self.under_stub("""
class Torch:
    cuda_stream = 0x11
class Opencl:
    int_ptr = 0x22
class Cuda:
    def __cuda_stream__(self): return (0, 0x33)
for stream, more in ((Torch(), {}), (Opencl(), {}), (Cuda(), {}), (0x44, {}), (0x55, {"platform": "hip"})):
    xsched.Queue(stream, **more)
stub.stub_highest_level(2)
xsched.Queue(0x66)
sys.modules["torch"] = types.SimpleNamespace(version=types.SimpleNamespace(hip="6.2"))
xsched.Queue(Torch(), level=2)
print(json.dumps([xsched.loaded()] + [call for call in calls() if "QueueCreate" in call]))
""")
        self.assertEqual(result, [
            True,
            "CudaQueueCreate(0x11)", "XQueueCreate(0x1011,3,0)",
            "OclQueueCreate(0x22)", "XQueueCreate(0x3022,3,0)",
            "CudaQueueCreate(0x33)", "XQueueCreate(0x1033,3,0)",
            "CudaQueueCreate(0x44)", "XQueueCreate(0x1044,3,0)",
            "HipQueueCreate(0x55)", "XQueueCreate(0x2055,3,0)",
            "CudaQueueCreate(0x66)", "XQueueCreate(0x1066,2,0)",
            "HipQueueCreate(0x11)", "XQueueCreate(0x2011,2,0)",
        ])

    def test_each_operation_is_one_call(self):
        result = self.under_stub("""
queue = xsched.Queue(1)
before = len(calls())
queue.suspend(); queue.suspend(wait=True); queue.resume(); queue.resume(drop=True)
queue.wait()
queue.hint(priority="low", share=25, deadline="3ms", laxity=("1ms", -2, 9))
queue.hint(deadline="none", laxity="none")
queue.set_level(3); queue.set_limit(16, 8)
state = queue.state
queue.close(); queue.close()
try:
    queue.suspend()
except xsched.Error as error:
    print(json.dumps([state, repr(queue), str(error)] + calls()[before:]))
""")
        self.assertEqual(result, [
            "ready", "<xsched.Queue, closed>", "this queue is closed",
            "XQueueSuspend(0x9001,0)", "XQueueSuspend(0x9001,1)", "XQueueResume(0x9001,0)", "XQueueResume(0x9001,1)",
            "XQueueWaitAll(0x9001)",
            "XHintPriority(0x9001,-100)", "XHintUtilization(0x9001,25)", "XHintDeadline(0x9001,3000)",
            "XHintLaxity(0x9001,1000,-2,9)", "XHintDeadline(0x9001,-1)", "XHintLaxity(0x9001,-1,0,0)",
            "XQueueSetPreemptLevel(0x9001,3)", "XQueueSetLaunchConfig(0x9001,16,8)", "XQueueQuery(0x9001)",
            "XQueueDestroy(0x9001)", "HwQueueDestroy(0x1001)",
        ])

    def test_existing_queue_is_used_and_not_destroyed(self):
        result = self.under_stub("""
stub.stub_has_queue(1)
with xsched.Queue(7) as queue:
    pass
print(json.dumps(calls()))
""")
        self.assertEqual(result, ["CudaQueueGet(0x7)", "XQueueGet(0x1007)"])

    def test_suspended_queue_is_resumed_when_its_object_is_deleted(self):
        result = self.under_stub("""
queue = xsched.Queue(7)
queue.suspend()
del queue
print(json.dumps(calls()[-2:]))
""")
        self.assertEqual(result, ["XQueueSuspend(0x9007,0)", "XQueueResume(0x9007,0)"])

    def test_error_codes_become_exceptions(self):
        result = self.under_stub("""
queue = xsched.Queue(7)
seen = []
for code in (1, 2, 3, 4, 5, 6, 999):
    stub.stub_fail_with(code)
    try:
        queue.suspend()
    except xsched.Error as error:
        seen.append([type(error).__name__, str(error)])
stub.stub_fail_with(1)
stub.stub_set_error(1)
try:
    queue.suspend()
except xsched.Error as error:
    message = str(error)
stub.stub_set_error(0)
stub.stub_fail_with(0)
for wrong in (lambda: xsched.Queue(object()), lambda: xsched.Queue(1, platform="abacus"), lambda: xsched.Queue(1, level=4),
              lambda: xsched.Queue(1, platform="xsim")):
    try:
        wrong()
    except Exception as error:
        seen.append([type(error).__name__, str(error)])
print(json.dumps(seen + [["message", message]]))
""")
        names = [name for name, _ in result]
        self.assertEqual(names[:7], ["Error", "OutOfRange", "Error", "NotAllowed", "NotSupported", "Error", "Error"])
        self.assertIn("suspending: the device or its driver failed (XResult 1)", result[0])
        self.assertEqual(names[7:], ["TypeError", "ValueError", "OutOfRange", "NotSupported", "message"])
        self.assertEqual(result[11][1], "suspending: the reason from the stand-in (XResult 1)")
        self.assertIn("cuda, hip, opencl, xsim", result[8][1])
        self.assertIn("has no function XsimQueueCreate", result[10][1])

    def test_other_threads_run_while_one_waits(self):
        """The stand-in returns from XQueueWaitAll only after another Python thread has run."""
        result = self.under_stub("""
queue = xsched.Queue(7)
stub.stub_hold_waiters(1)
thread = threading.Thread(target=queue.wait)
thread.start()
while "XQueueWaitAll(0x9007)" not in calls():
    time.sleep(0.001)
stub.stub_hold_waiters(0)
thread.join()
print(json.dumps("done"))
""")
        self.assertEqual(result, "done")

    def test_suspend_and_resume_cost_about_as_much_as_with_ctypes(self):
        """Compared in one run with ctypes, Python's own way to call C. In an unoptimized build own takes longer."""
        result = self.under_stub("""
queue = xsched.Queue(7)
stub.stub_silent(1)
suspend, resume = stub.XQueueSuspend, stub.XQueueResume
handle, none = ctypes.c_uint64(0x9007), ctypes.c_int64(0)
stub.stub_pair_ns.restype = ctypes.c_double
def best(operation, n=20000):
    times = []
    for _ in range(7):
        start = time.perf_counter_ns()
        for _ in range(n):
            operation()
        times.append((time.perf_counter_ns() - start) / n)
    return min(times)
def own():
    queue.suspend(); queue.resume()
def with_ctypes():
    suspend(handle, none); resume(handle, none)
print(json.dumps({"own": best(own), "ctypes": best(with_ctypes), "c": min(stub.stub_pair_ns(100000) for _ in range(7))}))
""")
        print(f"\na pair of suspend and resume: {result['own']:.0f} ns from Python, {result['ctypes']:.0f} ns through ctypes, "
              f"{result['c']:.0f} ns from C")
        self.assertLess(result["own"], 10 * result["ctypes"])


class Real(unittest.TestCase):
    """With the library that is in the wheel."""

    def setUp(self):
        import xsched

        library = os.path.join(os.path.dirname(xsched.__file__), "lib", "libxsched.so")
        exported = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
        for name in ("XQueueCreate", "XQueueSuspend", "XQueueResume"):
            if f" {name}\n" not in exported:
                self.skipTest(f"this libxsched.so does not export {name} yet")
        self.exported = exported
        self.environment = Environment()
        self.addCleanup(self.environment.close)

    def test_queue_without_a_preloaded_library_warns(self):
        program = """
import json, xsched
try:
    xsched.Queue(0x10)
    print(json.dumps("created"))
except xsched.Error as error:
    print(json.dumps(str(error)))
"""
        self.environment.python(program)
        self.assertIn("UnscheduledWarning: libxsched.so is not preloaded", self.environment.errors)
        after = program + "print(json.dumps(xsched.loaded()), file=sys.stderr)\n"
        self.environment.python("import sys" + after)
        self.assertTrue(self.environment.errors.endswith("false\n"), "the package's own copy intercepts no launches")

    def test_suspended_queue_of_the_simulated_device_launches_nothing(self):
        if " XsimQueueCreate\n" not in self.exported:
            self.skipTest("this libxsched.so does not export XsimQueueCreate")
        self.environment.start_service()
        result = self.environment.python("""
import ctypes, json, threading, time
import xsched
from environment import Device
device = Device()
queue = xsched.Queue(device.queue.value, platform="xsim")
device.work()
queue.suspend()
done = []
thread = threading.Thread(target=lambda: done.append(device.work()))
thread.start()
time.sleep(0.2)
held = not done
queue.resume()
thread.join()
print(json.dumps([held, len(done)]))
""", XSCHED, "run", "--")
        self.assertEqual(result, [True, 1])


if __name__ == "__main__":
    unittest.main()
