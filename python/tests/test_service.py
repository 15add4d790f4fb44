"""tasks, set, policy and their errors, against a real service."""

import dataclasses
import json
import os
import sys
import unittest
from unittest import mock

import xsched
from stage import XSCHED, Stage, eventually

WORKER = """
import sys
from stage import Device
device = Device()
device.work()
print("ready", flush=True)
for line in sys.stdin:
    device.work()
"""


class Service(unittest.TestCase):
    def setUp(self):
        self.stage = Stage()
        self.addCleanup(self.stage.close)
        patch = mock.patch.dict(os.environ, {"XSCHED_SOCKET": self.stage.socket})
        patch.start()
        self.addCleanup(patch.stop)

    def with_worker(self, *options):
        self.stage.start_service()
        command = [XSCHED, "run", "--name", "worker", *options, "--", sys.executable, "-c", WORKER]
        worker = self.stage.start(command, stdin=-1, stdout=-1)
        self.assertEqual(worker.stdout.readline(), "ready\n")
        eventually("its task is there", xsched.tasks)
        return worker

    def words_of(self, *command):
        """What the command line says about its failure."""
        done = self.stage.run([XSCHED, *command])
        self.assertNotEqual(done.returncode, 0, done.stdout)
        return done.stderr

    def test_tasks_are_those_of_ps(self):
        worker = self.with_worker("--priority", "low")
        (task,) = xsched.tasks()
        self.assertTrue(dataclasses.is_dataclass(task))
        self.assertEqual((task.pid, task.name, task.priority, task.queues), (worker.pid, "worker", -100, 1))
        with self.assertRaises(dataclasses.FrozenInstanceError):
            task.priority = 5
        (shown,) = json.loads(self.stage.run([XSCHED, "ps", "--json", "--sample", "1ms"]).stdout)["tasks"]
        fields = {field.name for field in dataclasses.fields(task)}
        self.assertEqual(fields, set(shown) - {"rates"}, "the fields are those of `xsched ps --json`")

    def test_set_changes_a_program_by_number_and_by_name(self):
        worker = self.with_worker()
        xsched.set(worker.pid, priority="high", share=30, deadline="5ms", laxity=("2ms", -3, 7))
        (task,) = xsched.tasks()
        got = (task.priority, task.share, task.deadline_us, task.laxity_us)
        self.assertEqual(got, (100, 30, 5000, 2000))
        xsched.set("worker", priority=-7, deadline="none")
        (task,) = xsched.tasks()
        self.assertEqual((task.priority, task.deadline_us), (-7, None))
        xsched.suspend("worker")
        eventually("it is suspended", lambda: xsched.tasks()[0].state in ("suspended", "idle"))
        worker.stdin.write("more\n")
        worker.stdin.flush()
        eventually("its work waits", lambda: xsched.tasks()[0].state == "suspended")
        xsched.resume(worker.pid)
        eventually("it runs again", lambda: xsched.tasks()[0].state in ("running", "idle"))

    def test_the_policy_is_changed_for_everybody(self):
        self.stage.start_service()
        self.assertEqual(xsched.policy().plain, "priority")
        changed = xsched.set_policy("fair", timeslice="2ms")
        self.assertEqual((changed.name, changed.timeslice_us), ("CFS", 2000))
        self.assertEqual(json.loads(self.stage.run([XSCHED, "policy", "--json"]).stdout)["policy"], "CFS")
        self.assertEqual(xsched.set_policy(k=3), xsched.policy())
        self.assertIn("fair", xsched.policies())
        with self.assertRaises(TypeError):
            xsched.set_policy()

    def test_errors_have_the_words_of_the_command_line(self):
        cases = [(xsched.NoScheduler, xsched.tasks, ("ps",))]
        self.check(cases)
        self.stage.start_service()
        self.check([
            (xsched.OutOfRange, lambda: xsched.set(1, priority=256), ("set", "1", "--priority", "256")),
            (xsched.OutOfRange, lambda: xsched.set(1, priority="urgent"), ("set", "1", "--priority", "urgent")),
            (xsched.OutOfRange, lambda: xsched.set(1, share=101), ("set", "1", "--share", "101")),
            (xsched.OutOfRange, lambda: xsched.set(1, deadline="0s"), ("set", "1", "--deadline", "0s")),
            (xsched.OutOfRange, lambda: xsched.set(1, deadline="soon"), ("set", "1", "--deadline", "soon")),
            (xsched.OutOfRange, lambda: xsched.set_policy("nonsense"), ("policy", "nonsense")),
            (xsched.OutOfRange, lambda: xsched.set_policy(timeslice="1us"), ("policy", "--timeslice", "1us")),
            (xsched.Refused, lambda: xsched.set(1, priority=5), ("set", "1", "--priority", "5")),
            (xsched.Refused, lambda: xsched.suspend("nobody"), ("set", "nobody", "--suspend")),
        ])

    def check(self, cases):
        for error, deed, command in cases:
            with self.subTest(command), self.assertRaises(error) as caught:
                deed()
            self.assertIn(str(caught.exception), self.words_of(*command))
            self.assertIsInstance(caught.exception, xsched.Error)

    def test_ranges_are_value_errors_and_times_need_units(self):
        for deed in (lambda: xsched.priority(300), lambda: xsched.hint(share=-1)):
            self.assertRaises(ValueError, deed)
        for deed in (lambda: xsched.hint(deadline=5), lambda: xsched.hint(), lambda: xsched.set(1)):
            self.assertRaises(TypeError, deed)

    def test_a_service_that_was_replaced_is_found_again(self):
        service = self.stage.start_service()
        xsched.set_policy("fair")
        service.kill()
        service.wait()
        with self.assertRaises(xsched.NoScheduler):
            xsched.policy()
        self.stage.start_service()
        self.assertEqual(xsched.policy().plain, "priority")
        # And on a connection that was kept while its service was replaced.
        service = self.stage.start([XSCHED, "serve", "--quiet", "--replace", "--policy", "share"])

        def is_successor():
            try:
                return xsched.policy().plain == "share"
            except xsched.NoScheduler:
                return False  # for a moment there is nobody

        eventually("the successor answers", is_successor)


if __name__ == "__main__":
    unittest.main()
