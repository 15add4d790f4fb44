"""Kernels of Jupyter that are scheduled: with a real kernel and a real service."""

import json
import os
import sys
import unittest
from unittest import mock

import xsched.jupyter
from environment import HERE, XSCHED, Environment, eventually

try:
    import jupyter_client
    import ipykernel  # noqa: F401
except ImportError:
    jupyter_client = None

USE_DEVICE = f"""
import sys
sys.path.insert(0, {HERE!r})
from environment import Device
device = Device()
device.work()
"""


class Jupyter(unittest.TestCase):
    def setUp(self):
        self.environment = Environment()
        self.addCleanup(self.environment.close)
        self.data = os.path.join(self.environment.directory, "jupyter")
        self.environment.environment["JUPYTER_DATA_DIR"] = self.data

    def jupyter(self, *words):
        return self.environment.run([sys.executable, "-m", "xsched.jupyter", *words])

    def kernel(self, name):
        with open(os.path.join(self.data, "kernels", name, "kernel.json")) as file:
            return json.load(file)

    def test_kernel_is_installed_and_removed(self):
        done = self.jupyter("install", "--priority", "-20", "--share", "30")
        self.assertEqual(done.returncode, 0, done.stderr)
        kernel = self.kernel("xsched--20")
        self.assertEqual(kernel["display_name"], f"Python {sys.version_info.major} (XSched, -20)")
        self.assertEqual(kernel["argv"][1:7], ["run", "--priority", "-20", "--share", "30", "--"])
        self.assertTrue(os.access(kernel["argv"][0], os.X_OK))
        self.assertEqual(self.jupyter("uninstall", "--priority", "-20").returncode, 0)
        self.assertEqual(os.listdir(os.path.join(self.data, "kernels")), [])
        again = self.jupyter("uninstall", "--priority", "-20")
        self.assertEqual(again.returncode, 1)
        self.assertIn("there is no kernel", again.stderr)

    def test_invalid_priority_is_rejected_with_the_range(self):
        done = self.jupyter("install", "--priority", "hgih")
        self.assertEqual(done.returncode, 2)
        self.assertIn("`hgih` is no priority: use -256 to 255, low, normal or high", done.stderr)
        self.assertFalse(os.path.exists(self.data))

    def test_command_reports_mistakes_instead_of_raising(self):
        self.assertIn("`hgih` is no priority", xsched.jupyter.change("hgih"))
        self.assertIn("is not known", xsched.jupyter.change("--bogus 3"))

    @unittest.skipUnless(jupyter_client, "ipykernel and jupyter_client are not installed")
    def test_notebook_is_scheduled_and_changes_its_priority(self):
        self.environment.start_service()
        self.assertEqual(self.jupyter("install", "--priority", "low").returncode, 0)
        with mock.patch.dict(os.environ, self.environment.environment, clear=True):
            manager, client = jupyter_client.manager.start_new_kernel(kernel_name="xsched-low")
        self.addCleanup(manager.shutdown_kernel, now=True)
        self.addCleanup(client.stop_channels)

        def execute(code):
            printed = []
            reply = client.execute_interactive(code, timeout=60, output_hook=lambda message: printed.append(message["content"].get("text", "")))
            self.assertEqual(reply["content"]["status"], "ok", reply["content"])
            return "".join(printed)

        def task():
            tasks = json.loads(self.environment.run([XSCHED, "ps", "--json", "--sample", "1ms"]).stdout)["tasks"]
            return tasks[0] if tasks else None

        self.assertIn("has not used an accelerator yet", execute("%xsched"))
        execute(USE_DEVICE)
        self.assertEqual(eventually("the notebook is scheduled", task)["priority"], -100)
        self.assertIn("priority -100", execute("%xsched"))
        self.assertIn("priority 100", execute("%xsched high"))
        self.assertEqual(task()["priority"], 100)
        self.assertIn("priority -7", execute("%xsched -7"))


if __name__ == "__main__":
    unittest.main()
