"""The installed wheel: its contents, types, import time, and plugin."""

import ast
import importlib.metadata
import inspect
import json
import os
import subprocess
import sys
import unittest

import xsched
from environment import HERE, XSCHED, Environment


class Package(unittest.TestCase):
    def setUp(self):
        self.environment = Environment()
        self.addCleanup(self.environment.close)

    def test_wheel_contains_the_program_and_its_library(self):
        for command in ([XSCHED], [sys.executable, "-m", "xsched"]):
            output = self.environment.run([*command, "--version"]).stdout
            self.assertEqual(output, f"xsched {xsched.__version__}\n")
        for name in ("xserver", "xcli"):
            output = self.environment.run([os.path.join(os.path.dirname(XSCHED), name), "--help"]).stdout
            self.assertIn(f"Usage: {name}", output)
        self.environment.start_service()
        shown = self.environment.run([XSCHED, "run", "--", "sh", "-c", "echo $LD_PRELOAD; exit 7"])
        self.assertEqual(shown.returncode, 7, shown.stderr)
        self.assertEqual(shown.stdout.strip(), os.path.join(os.path.dirname(xsched.__file__), "lib", "libxsched.so"))
        shown = self.environment.run([XSCHED, "run", "--", "sh", "-c", "ls $VK_ADD_LAYER_PATH"])
        self.assertEqual(shown.stdout.split(), ["VkLayer_xsched.json"])
        self.assertEqual(importlib.metadata.version("xsched"), xsched.__version__)

    def test_loaded_is_true_only_under_xsched_run(self):
        self.environment.start_service()
        program = "import json, xsched; print(json.dumps(xsched.loaded()))"
        self.assertIs(self.environment.python(program), False)
        self.assertIs(self.environment.python(program, XSCHED, "run", "--"), True)

    def test_type_stubs_match_the_public_interface(self):
        stub = os.path.join(os.path.dirname(xsched.__file__), "__init__.pyi")
        self.assertTrue(os.path.exists(os.path.join(os.path.dirname(stub), "py.typed")))
        with open(stub) as file:
            typed = {node.name: node for node in ast.parse(file.read()).body
                     if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_")}
        self.assertEqual(set(typed), set(xsched.__all__) | {"set"})
        for name, node in typed.items():
            public = getattr(xsched, name)
            if isinstance(node, ast.FunctionDef):
                self.compare(name, node, public)
                continue
            for method in (part for part in node.body if isinstance(part, ast.FunctionDef)):
                if method.name not in ("__enter__", "__exit__", "__init__") and not method.decorator_list:
                    self.compare(f"{name}.{method.name}", method, getattr(public, method.name))
        self.assertEqual({part.target.id for part in typed["Task"].body}, set(xsched.Task.__dataclass_fields__))

    def compare(self, name, node, function):
        arguments = node.args
        typed = [argument.arg for argument in arguments.posonlyargs + arguments.args + arguments.kwonlyargs]
        self.assertEqual(typed, list(inspect.signature(function).parameters), name)

    def test_import_is_faster_than_that_of_asyncio(self):
        def best(module):
            program = f"import time; begin = time.perf_counter(); import {module}; print(time.perf_counter() - begin)"
            command = [sys.executable, "-I", "-c", program]
            return min(float(subprocess.check_output(command, text=True)) for _ in range(7))

        own, asyncio = best("xsched"), best("asyncio")
        print(f"\nimport xsched: {own * 1e3:.1f} ms; import asyncio: {asyncio * 1e3:.1f} ms")
        self.assertLess(own, asyncio)

    def test_plugin_makes_the_workers_of_its_host_scheduled(self):
        self.environment.start_service()
        host = [sys.executable, os.path.join(HERE, "plugin_host.py")]
        variables = {"XSCHED_AUTO_XQUEUE": "ON", "XSCHED_AUTO_XQUEUE_PRIORITY": "high"}
        done = self.environment.run(host, environment=variables)
        self.assertEqual(done.returncode, 0, done.stderr)
        output = json.loads(done.stdout)
        self.assertEqual(output["plugins"], [["xsched", True]])
        self.assertEqual(output["worker"], {"loaded": True, "priorities": [100]})
        # Without the variable nothing changes.
        output = json.loads(self.environment.run(host).stdout)
        self.assertEqual(output, {"plugins": [["xsched", False]], "worker": {"loaded": False, "priorities": []}})


if __name__ == "__main__":
    unittest.main()
