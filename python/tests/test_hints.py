"""`priority` and `hint`, in programs that a real service schedules."""

import json
import os
import subprocess
import unittest

from environment import XSCHED, Environment

PREAMBLE = """
import json, os, sys
import xsched
from environment import Device, eventually

def own_priority():
    # The service registers a new queue asynchronously.
    (task,) = eventually("a task", lambda: [task for task in xsched.tasks() if task.pid == os.getpid()])
    return task.priority
"""


class Hints(unittest.TestCase):
    def setUp(self):
        self.environment = Environment()
        self.addCleanup(self.environment.close)
        self.service = self.environment.start_service()

    def scheduled(self, program, *options, **more):
        return self.environment.python(PREAMBLE + program, XSCHED, "run", *options, "--", **more)

    def test_block_sets_its_priority_and_restores_the_previous_one(self):
        result = self.scheduled("""
device = Device(); device.work(); own_priority()
seen = [own_priority()]
with xsched.priority("high"):
    seen.append(own_priority())
    with xsched.priority(-5):
        seen.append(own_priority())
    seen.append(own_priority())
seen.append(own_priority())

@xsched.priority(7)
def important(x, *, y):
    "what it does"
    return own_priority(), x, y

seen.append(important(1, y=2))
seen.append((own_priority(), important.__name__, important.__doc__))
try:
    with xsched.priority(9):
        raise KeyError
except KeyError:
    seen.append(own_priority())
print(json.dumps(seen))
""", "--priority", "3")
        self.assertEqual(result, [3, 100, -5, 100, 3, [7, 1, 2], [3, "important", "what it does"], 3])

    def test_highest_priority_of_several_threads_and_tasks_counts(self):
        result = self.scheduled("""
import asyncio, threading
device = Device(); device.work(); own_priority()
seen = []
inside, leave = threading.Event(), threading.Event()
def other():
    with xsched.priority(20):
        inside.set(); leave.wait()
with xsched.priority(10):
    thread = threading.Thread(target=other); thread.start(); inside.wait()
    seen.append(own_priority())
    leave.set(); thread.join()
    seen.append(own_priority())

async def request(n, order):
    with xsched.priority(n):
        await order
    return own_priority()

@xsched.priority(40)
async def whole():
    return own_priority()

async def both():
    low, high = asyncio.get_running_loop().create_future(), asyncio.get_running_loop().create_future()
    tasks = [asyncio.ensure_future(request(1, low)), asyncio.ensure_future(request(30, high))]
    await asyncio.sleep(0)
    seen.append(own_priority())
    high.set_result(None); await tasks[1]
    seen.append(own_priority())
    low.set_result(None); await tasks[0]
    seen.append(own_priority())
    seen.append(await whole())
asyncio.run(both())
print(json.dumps(seen))
""")
        self.assertEqual(result, [20, 10, 30, 1, 0, 40])

    def test_one_decorator_supports_concurrent_and_nested_calls(self):
        result = self.scheduled("""
device = Device(); device.work(); own_priority()
@xsched.priority(7)
def count(n):
    return [own_priority()] + (count(n - 1) if n else [])
same = xsched.priority(8)
with same:
    with same:
        seen = count(2) + [own_priority()]
    seen.append(own_priority())
print(json.dumps(seen + [own_priority()]))
""")
        self.assertEqual(result, [7, 7, 7, 8, 8, 0])

    def test_hints_before_the_first_launch_apply_to_it(self):
        result = self.scheduled("""
xsched.hint(share=40, deadline="5ms")
with xsched.priority("high"):
    device = Device(); device.work(); own_priority()
    seen = [own_priority()]
seen.append(own_priority())
(task,) = xsched.tasks()
left = [name for name in os.environ if name.startswith("XSCHED_AUTO_XQUEUE_P")]
print(json.dumps(seen + [task.share, task.deadline_us, left]))
""")
        self.assertEqual(result, [100, 0, 40, 5000, []])

    def test_hint_inside_a_block_applies_after_it(self):
        result = self.scheduled("""
device = Device(); device.work(); own_priority()
with xsched.priority(50):
    xsched.hint(priority=-20)
    seen = [own_priority()]
print(json.dumps(seen + [own_priority()]))
""")
        self.assertEqual(result, [50, -20])

    def test_hint_applies_to_the_next_launch(self):
        """A task with the lowest priority does not run once `hint` has returned, and runs after the next `hint`."""
        result = self.scheduled("""
import threading, time
device = Device(); device.work(); own_priority()
held = 0
for _ in range(20):
    xsched.hint(priority=-256)
    launch = threading.Thread(target=device.work); launch.start()
    time.sleep(0.002)
    held += launch.is_alive()
    xsched.hint(priority=0)
    launch.join()
print(json.dumps(held))
""")
        self.assertEqual(result, 20)

    def test_stopped_service_delays_only_the_first_hint(self):
        first, second = self.scheduled("""
import signal, time
from warnings import simplefilter
simplefilter("ignore")
device = Device(); device.work(); own_priority()
service = int(os.environ["SERVICE"])
os.kill(service, signal.SIGSTOP)
took = []
for _ in range(2):
    start = time.monotonic()
    with xsched.priority(5):
        device.work()
    took.append(time.monotonic() - start)
os.kill(service, signal.SIGCONT)
print(json.dumps(took))
""", environment={"SERVICE": str(self.service.pid)})
        self.assertLess(second * 4, first)

    def test_forked_child_has_its_own_hints(self):
        result = self.scheduled("""
device = Device(); device.work(); own_priority()
with xsched.priority(50):
    own_priority()
    child = os.fork()
    if child == 0:
        device = Device(); device.work(); own_priority()
        with xsched.priority(60):
            os._exit(own_priority())
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([status, own_priority()]))
""")
        self.assertEqual(result, [60, 50])

    def test_block_without_a_scheduler_runs_with_one_warning(self):
        program = """
import json, xsched
for n in range(3):
    with xsched.priority(10):
        pass
print(json.dumps("done"))
"""
        nowhere = {"XSCHED_SOCKET": os.path.join(self.environment.directory, "nowhere")}
        self.assertEqual(self.environment.python(program, environment=nowhere), "done")
        self.assertEqual(self.environment.errors.count("UnscheduledWarning: this program is not scheduled"), 1)
        self.assertEqual(self.environment.python(program), "done", "there is a scheduler, but no library")
        self.assertIn("start it with `xsched run`", self.environment.errors)

    def test_invalid_priority_is_an_error_and_changes_nothing(self):
        result = self.scheduled("""
device = Device(); device.work(); own_priority()
try:
    xsched.priority(300)
except xsched.OutOfRange as error:
    print(json.dumps([str(error), own_priority()]))
""")
        self.assertEqual(result[1], 0)
        self.assertIn("priority 300 is out of range", result[0])

    def test_process_is_identified_across_pid_namespaces(self):
        """The program or the service runs in a pid namespace of its own."""
        in_namespace = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        try:
            subprocess.run([*in_namespace, "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            self.skipTest("no pid namespace available: unshare --pid fails")
        program = PREAMBLE + """
device = Device(); device.work(); eventually("a task", xsched.tasks)
with xsched.priority(70):
    (task,) = eventually("a task", xsched.tasks)
    print(json.dumps([os.getpid() != task.pid, task.priority]))
"""
        self.assertEqual(self.environment.python(program, *in_namespace, XSCHED, "run", "--"), [True, 70])
        self.service.kill()
        self.service.wait()
        self.environment.start_service(*in_namespace)
        self.assertEqual(self.environment.python(program, XSCHED, "run", "--"), [True, 70])
        self.assertEqual(self.environment.python(program, *in_namespace, XSCHED, "run", "--"), [True, 70])


if __name__ == "__main__":
    unittest.main()
