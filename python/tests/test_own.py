"""priority and hint, in programs that are scheduled by a real service."""

import json
import os
import subprocess
import unittest

from stage import XSCHED, Stage

BEGIN = """
import json, os, sys
import xsched
from stage import Device, eventually

def mine():
    # The service hears of a new queue a moment later.
    (task,) = eventually("a task", lambda: [task for task in xsched.tasks() if task.pid == os.getpid()])
    return task.priority
"""


class Own(unittest.TestCase):
    def setUp(self):
        self.stage = Stage()
        self.addCleanup(self.stage.close)
        self.service = self.stage.start_service()

    def scheduled(self, program, *options, **more):
        return self.stage.python(BEGIN + program, XSCHED, "run", *options, "--", **more)

    def test_a_block_has_its_priority_and_gives_it_back(self):
        got = self.scheduled("""
device = Device(); device.work(); mine()
seen = [mine()]
with xsched.priority("high"):
    seen.append(mine())
    with xsched.priority(-5):
        seen.append(mine())
    seen.append(mine())
seen.append(mine())

@xsched.priority(7)
def important(x, *, y):
    "what it does"
    return mine(), x, y

seen.append(important(1, y=2))
seen.append((mine(), important.__name__, important.__doc__))
try:
    with xsched.priority(9):
        raise KeyError
except KeyError:
    seen.append(mine())
print(json.dumps(seen))
""", "--priority", "3")
        self.assertEqual(got, [3, 100, -5, 100, 3, [7, 1, 2], [3, "important", "what it does"], 3])

    def test_of_several_threads_and_tasks_the_most_important_counts(self):
        got = self.scheduled("""
import asyncio, threading
device = Device(); device.work(); mine()
seen = []
inside, leave = threading.Event(), threading.Event()
def other():
    with xsched.priority(20):
        inside.set(); leave.wait()
with xsched.priority(10):
    thread = threading.Thread(target=other); thread.start(); inside.wait()
    seen.append(mine())
    leave.set(); thread.join()
    seen.append(mine())

async def request(n, order):
    with xsched.priority(n):
        await order
    return mine()

@xsched.priority(40)
async def whole():
    return mine()

async def both():
    low, high = asyncio.get_running_loop().create_future(), asyncio.get_running_loop().create_future()
    tasks = [asyncio.ensure_future(request(1, low)), asyncio.ensure_future(request(30, high))]
    await asyncio.sleep(0)
    seen.append(mine())
    high.set_result(None); await tasks[1]
    seen.append(mine())
    low.set_result(None); await tasks[0]
    seen.append(mine())
    seen.append(await whole())
asyncio.run(both())
print(json.dumps(seen))
""")
        self.assertEqual(got, [20, 10, 30, 1, 0, 40])

    def test_one_decorator_serves_calls_at_the_same_time_and_inside_each_other(self):
        got = self.scheduled("""
device = Device(); device.work(); mine()
@xsched.priority(7)
def count(n):
    return [mine()] + (count(n - 1) if n else [])
same = xsched.priority(8)
with same:
    with same:
        seen = count(2) + [mine()]
    seen.append(mine())
print(json.dumps(seen + [mine()]))
""")
        self.assertEqual(got, [7, 7, 7, 8, 8, 0])

    def test_wishes_from_before_the_first_work_count_when_it_comes(self):
        got = self.scheduled("""
xsched.hint(share=40, deadline="5ms")
with xsched.priority("high"):
    device = Device(); device.work(); mine()
    seen = [mine()]
seen.append(mine())
(task,) = xsched.tasks()
left = [name for name in os.environ if name.startswith("XSCHED_AUTO_XQUEUE_P")]
print(json.dumps(seen + [task.share, task.deadline_us, left]))
""")
        self.assertEqual(got, [100, 0, 40, 5000, []])

    def test_a_hint_inside_a_block_counts_after_it(self):
        got = self.scheduled("""
device = Device(); device.work(); mine()
with xsched.priority(50):
    xsched.hint(priority=-20)
    seen = [mine()]
print(json.dumps(seen + [mine()]))
""")
        self.assertEqual(got, [50, -20])

    def test_the_next_launch_obeys(self):
        """What may not run at all does not run once `hint` has returned, and runs once it may again."""
        got = self.scheduled("""
import threading, time
device = Device(); device.work(); mine()
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
        self.assertEqual(got, 20)

    def test_a_service_that_stands_still_is_waited_for_once(self):
        first, second = self.scheduled("""
import signal, time
from warnings import simplefilter
simplefilter("ignore")
device = Device(); device.work(); mine()
service = int(os.environ["SERVICE"])
os.kill(service, signal.SIGSTOP)
took = []
for _ in range(2):
    begun = time.monotonic()
    with xsched.priority(5):
        device.work()
    took.append(time.monotonic() - begun)
os.kill(service, signal.SIGCONT)
print(json.dumps(took))
""", environment={"SERVICE": str(self.service.pid)})
        self.assertLess(second * 4, first)

    def test_a_child_of_a_fork_speaks_for_itself(self):
        got = self.scheduled("""
device = Device(); device.work(); mine()
with xsched.priority(50):
    mine()
    child = os.fork()
    if child == 0:
        device = Device(); device.work(); mine()
        with xsched.priority(60):
            os._exit(mine())
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([status, mine()]))
""")
        self.assertEqual(got, [60, 50])

    def test_without_a_scheduler_the_block_runs_with_one_warning(self):
        program = """
import json, xsched
for n in range(3):
    with xsched.priority(10):
        pass
print(json.dumps("done"))
"""
        nowhere = {"XSCHED_SOCKET": os.path.join(self.stage.directory, "nowhere")}
        self.assertEqual(self.stage.python(program, environment=nowhere), "done")
        self.assertEqual(self.stage.errors.count("UnscheduledWarning: nobody schedules this program"), 1)
        self.assertEqual(self.stage.python(program), "done", "there is a scheduler, and no library")
        self.assertIn("start it with `xsched run`", self.stage.errors)

    def test_what_is_refused_is_an_error_and_changes_nothing(self):
        got = self.scheduled("""
device = Device(); device.work(); mine()
try:
    xsched.priority(300)
except xsched.OutOfRange as error:
    print(json.dumps([str(error), mine()]))
""")
        self.assertEqual(got[1], 0)
        self.assertIn("priority 300 is out of range", got[0])

    def test_in_a_container_it_finds_itself(self):
        """Where processes have other numbers than outside, be it the program or the service."""
        apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        try:
            subprocess.run([*apart, "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            self.skipTest("no other process numbers to be had here: unshare --pid does not work")
        program = BEGIN + """
device = Device(); device.work(); eventually("a task", xsched.tasks)
with xsched.priority(70):
    (task,) = eventually("a task", xsched.tasks)
    print(json.dumps([os.getpid() != task.pid, task.priority]))
"""
        self.assertEqual(self.stage.python(program, *apart, XSCHED, "run", "--"), [True, 70])
        self.service.kill()
        self.service.wait()
        self.stage.start_service(*apart)
        self.assertEqual(self.stage.python(program, XSCHED, "run", "--"), [True, 70])
        self.assertEqual(self.stage.python(program, *apart, XSCHED, "run", "--"), [True, 70])


if __name__ == "__main__":
    unittest.main()
