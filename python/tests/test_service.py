"""tasks, set, policy and their errors, with a real service."""

import dataclasses
import json
import os
import sys
import unittest
from unittest import mock

import xsched
from environment import XSCHED, Environment, eventually

WORKER = """
import sys
from environment import Device
device = Device()
device.work()
print("ready", flush=True)
for line in sys.stdin:
    device.work()
"""


class Service(unittest.TestCase):
    def setUp(self):
        self.environment = Environment()
        self.addCleanup(self.environment.close)
        patch = mock.patch.dict(os.environ, {"XSCHED_SOCKET": self.environment.socket})
        patch.start()
        self.addCleanup(patch.stop)

    def with_worker(self, *options):
        self.environment.start_service()
        command = [XSCHED, "run", "--name", "worker", *options, "--", sys.executable, "-c", WORKER]
        worker = self.environment.start(command, stdin=-1, stdout=-1)
        self.assertEqual(worker.stdout.readline(), "ready\n")
        eventually("its task is there", xsched.tasks)
        return worker

    def error_of(self, *command):
        """The error message of the command line."""
        done = self.environment.run([XSCHED, *command])
        self.assertNotEqual(done.returncode, 0, done.stdout)
        return done.stderr

    def test_tasks_match_xsched_ps(self):
        worker = self.with_worker("--priority", "low")
        (task,) = xsched.tasks()
        self.assertTrue(dataclasses.is_dataclass(task))
        self.assertEqual((task.pid, task.name, task.priority, task.queues), (worker.pid, "worker", -100, 1))
        with self.assertRaises(dataclasses.FrozenInstanceError):
            task.priority = 5
        (shown,) = json.loads(self.environment.run([XSCHED, "ps", "--json", "--sample", "1ms"]).stdout)["tasks"]
        fields = {field.name for field in dataclasses.fields(task)}
        self.assertEqual(fields, set(shown) - {"rates", "level", "device_name"}, "the fields are those that the service reports")

    def test_set_changes_a_program_by_pid_and_by_name(self):
        worker = self.with_worker()
        xsched.set(worker.pid, priority="high", share=30, deadline="5ms", laxity=("2ms", -3, 7))
        (task,) = xsched.tasks()
        result = (task.priority, task.share, task.deadline_us, task.laxity_us)
        self.assertEqual(result, (100, 30, 5000, 2000))
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

    def test_set_policy_changes_the_policy_of_the_service(self):
        self.environment.start_service()
        self.assertEqual(xsched.policy().plain, "priority")
        changed = xsched.set_policy("fair", timeslice="2ms")
        self.assertEqual((changed.name, changed.timeslice_us), ("CFS", 2000))
        self.assertEqual(json.loads(self.environment.run([XSCHED, "policy", "--json"]).stdout)["policy"], "CFS")
        self.assertEqual(xsched.set_policy(k=3), xsched.policy())
        self.assertIn("fair", xsched.policies())
        with self.assertRaises(TypeError):
            xsched.set_policy()

    def test_errors_have_the_messages_of_the_command_line(self):
        cases = [(xsched.NoScheduler, xsched.tasks, ("ps",))]
        self.check(cases)
        self.environment.start_service()
        self.check([
            (xsched.OutOfRange, lambda: xsched.set(1, priority=256), ("set", "1", "--priority", "256")),
            (xsched.OutOfRange, lambda: xsched.set(1, priority="urgent"), ("set", "1", "--priority", "urgent")),
            (xsched.OutOfRange, lambda: xsched.set(1, share=101), ("set", "1", "--share", "101")),
            (xsched.OutOfRange, lambda: xsched.set(1, deadline="0s"), ("set", "1", "--deadline", "0s")),
            (xsched.OutOfRange, lambda: xsched.set(1, deadline="soon"), ("set", "1", "--deadline", "soon")),
            (xsched.OutOfRange, lambda: xsched.set_policy("nonsense"), ("policy", "nonsense")),
            (xsched.OutOfRange, lambda: xsched.set_policy(timeslice="1us"), ("policy", "--timeslice", "1us")),
            (xsched.Refused, lambda: xsched.set(1, priority=5), ("set", "1", "--priority", "5")),
            (xsched.Refused, lambda: xsched.suspend("absent"), ("set", "absent", "--suspend")),
        ])

    def check(self, cases):
        for error, operation, command in cases:
            with self.subTest(command), self.assertRaises(error) as caught:
                operation()
            self.assertIn(str(caught.exception), self.error_of(*command))
            self.assertIsInstance(caught.exception, xsched.Error)

    def test_out_of_range_is_a_value_error_and_times_need_units(self):
        for operation in (lambda: xsched.priority(300), lambda: xsched.hint(share=-1)):
            self.assertRaises(ValueError, operation)
        for operation in (lambda: xsched.hint(deadline=5), lambda: xsched.hint(), lambda: xsched.set(1)):
            self.assertRaises(TypeError, operation)

    def test_client_reconnects_to_a_replaced_service(self):
        service = self.environment.start_service()
        xsched.set_policy("fair")
        service.kill()
        service.wait()
        with self.assertRaises(xsched.NoScheduler):
            xsched.policy()
        self.environment.start_service()
        self.assertEqual(xsched.policy().plain, "priority")
        # And on an idle connection while its service is replaced.
        service = self.environment.start([XSCHED, "serve", "--quiet", "--replace", "--policy", "share"])

        def is_successor():
            try:
                return xsched.policy().plain == "share"
            except xsched.NoScheduler:
                return False  # no service between the two

        eventually("the successor replies", is_successor)


if __name__ == "__main__":
    unittest.main()
