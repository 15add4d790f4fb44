"""`xsched.ray.runtime_env`, without Ray: integrations/ray/test uses it in a cluster."""

import json
import os
import re
import unittest

import xsched
import xsched.ray
from environment import Environment

LIBRARY = os.path.join(os.path.dirname(xsched.__file__), "lib", "libxsched.so")


class RuntimeEnv(unittest.TestCase):
    def test_variables_are_those_of_xsched_run(self):
        variables = xsched.ray.runtime_env(priority="high", share=40, memory="1.5G", name="serve", job="llama")["env_vars"]
        self.assertEqual(variables, {
            "LD_PRELOAD": os.path.realpath(LIBRARY),
            "HSA_TOOLS_LIB": os.path.realpath(LIBRARY),
            "XSCHED_SCHEDULER": "GLB",
            "XSCHED_AUTO_XQUEUE": "ON",
            "XSCHED_AUTO_XQUEUE_PRIORITY": "100",
            "XSCHED_AUTO_XQUEUE_UTILIZATION": "40",
            "XSCHED_MEMORY": "1536M",
            "XSCHED_NAME": "serve",
            "XSCHED_JOB": "llama",
        })
        environment = Environment()
        self.addCleanup(environment.close)
        environment.start_service()
        program = ("import json, environment, xsched; environment.Device().work(); "
                   "print(json.dumps([(task.name, task.priority, task.share) for task in xsched.tasks()]))")
        self.assertEqual(environment.python(program, environment=variables), [["serve", 100, 40]])

    def test_base_is_extended_and_not_changed(self):
        base = {"pip": ["numpy"], "env_vars": {"LD_PRELOAD": "/a.so /b.so", "HSA_TOOLS_LIB": "/tool.so", "A": "1"}}
        before = json.dumps(base)
        extended = xsched.ray.runtime_env(base, library="/opt/libxsched.so")
        self.assertEqual(json.dumps(base), before)
        self.assertEqual(extended["pip"], ["numpy"])
        self.assertEqual(extended["env_vars"], {
            "LD_PRELOAD": "/opt/libxsched.so:/a.so:/b.so",
            "HSA_TOOLS_LIB": "/tool.so /opt/libxsched.so",
            "A": "1",
            "XSCHED_SCHEDULER": "GLB",
            "XSCHED_AUTO_XQUEUE": "ON",
        })
        again = xsched.ray.runtime_env(extended, priority=-5, library="/opt/libxsched.so")
        self.assertEqual(again["env_vars"]["LD_PRELOAD"], "/opt/libxsched.so:/a.so:/b.so")
        self.assertEqual(again["env_vars"]["HSA_TOOLS_LIB"], "/tool.so /opt/libxsched.so")

    def test_invalid_values_are_errors_that_name_the_value(self):
        for message, arguments in (
            ("priority 300 is out of range", {"priority": 300}),
            ("priority `urgent` is out of range", {"priority": "urgent"}),
            ("share 400 is out of range", {"share": 400}),
            ("memory `20X` has an unknown unit", {"memory": "20X"}),
            ("memory `0` is less than 1M", {"memory": 0}),
            ("memory `120%` is not a part of the device's memory", {"memory": "120%"}),
            ("name '': a name has 1 to 64 printable characters", {"name": ""}),
            ("job 'a\\nb': a job has 1 to 64", {"job": "a\nb"}),
            ("library 'libxsched.so' is not an absolute path", {"library": "libxsched.so"}),
            ("cannot be preloaded", {"library": "/a b/libxsched.so"}),
        ):
            with self.assertRaisesRegex(xsched.OutOfRange, re.escape(message)):
                xsched.ray.runtime_env(**arguments)
        with self.assertRaises(TypeError):
            xsched.ray.runtime_env(name=7)
        with self.assertRaises(TypeError):
            xsched.ray.runtime_env(memory=1.5)

    def test_token_is_checked_and_not_printed(self):
        token = "0123456789abcdef" * 2
        self.assertEqual(xsched.ray.runtime_env(grant=token)["env_vars"]["XSCHED_GRANT"], token)
        for invalid in ("secret", "secret " * 8, "\u00e9" * 40):
            with self.assertRaises(xsched.OutOfRange) as caught:
                xsched.ray.runtime_env(grant=invalid)
            self.assertNotIn(invalid, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
