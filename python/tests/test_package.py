"""The wheel as it was installed: what is in it, how it is typed, how fast it is imported, and who picks it up."""

import ast
import importlib.metadata
import inspect
import json
import os
import subprocess
import sys
import unittest

import xsched
from stage import HERE, XSCHED, Stage


class Package(unittest.TestCase):
    def setUp(self):
        self.stage = Stage()
        self.addCleanup(self.stage.close)

    def test_the_program_came_with_it_and_finds_its_library(self):
        for command in ([XSCHED], [sys.executable, "-m", "xsched"]):
            said = self.stage.run([*command, "--version"]).stdout
            self.assertEqual(said, f"xsched {xsched.__version__}\n")
        for name in ("xserver", "xcli"):
            said = self.stage.run([os.path.join(os.path.dirname(XSCHED), name), "--help"]).stdout
            self.assertIn(f"Usage: {name}", said)
        self.stage.start_service()
        shown = self.stage.run([XSCHED, "run", "--", "sh", "-c", "echo $LD_PRELOAD; exit 7"])
        self.assertEqual(shown.returncode, 7, shown.stderr)
        self.assertEqual(shown.stdout.strip(), os.path.join(os.path.dirname(xsched.__file__), "lib", "libxsched.so"))
        self.assertEqual(importlib.metadata.version("xsched"), xsched.__version__)

    def test_programs_under_it_know_that_they_are(self):
        self.stage.start_service()
        program = "import json, xsched; print(json.dumps(xsched.loaded()))"
        self.assertIs(self.stage.python(program), False)
        self.assertIs(self.stage.python(program, XSCHED, "run", "--"), True)

    def test_what_is_public_is_typed_and_what_is_typed_is_there(self):
        stub = os.path.join(os.path.dirname(xsched.__file__), "__init__.pyi")
        self.assertTrue(os.path.exists(os.path.join(os.path.dirname(stub), "py.typed")))
        with open(stub) as file:
            typed = {node.name: node for node in ast.parse(file.read()).body
                     if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_")}
        self.assertEqual(set(typed), set(xsched.__all__) | {"set"})
        for name, node in typed.items():
            thing = getattr(xsched, name)
            if isinstance(node, ast.FunctionDef):
                self.compare(name, node, thing)
                continue
            for method in (part for part in node.body if isinstance(part, ast.FunctionDef)):
                if method.name not in ("__enter__", "__exit__", "__init__") and not method.decorator_list:
                    self.compare(f"{name}.{method.name}", method, getattr(thing, method.name))
        self.assertEqual({part.target.id for part in typed["Task"].body}, set(xsched.Task.__dataclass_fields__))

    def compare(self, name, node, function):
        arguments = node.args
        typed = [argument.arg for argument in arguments.posonlyargs + arguments.args + arguments.kwonlyargs]
        self.assertEqual(typed, list(inspect.signature(function).parameters), name)

    def test_it_is_imported_faster_than_asyncio(self):
        def best(module):
            program = f"import time; begin = time.perf_counter(); import {module}; print(time.perf_counter() - begin)"
            command = [sys.executable, "-I", "-c", program]
            return min(float(subprocess.check_output(command, text=True)) for _ in range(7))

        ours, asyncio = best("xsched"), best("asyncio")
        print(f"\nimport xsched: {ours * 1e3:.1f} ms; import asyncio: {asyncio * 1e3:.1f} ms")
        self.assertLess(ours, asyncio)

    def test_a_host_with_plugins_has_its_workers_scheduled(self):
        self.stage.start_service()
        host = [sys.executable, os.path.join(HERE, "plugin_host.py")]
        asked = {"XSCHED_AUTO_XQUEUE": "ON", "XSCHED_AUTO_XQUEUE_PRIORITY": "high"}
        done = self.stage.run(host, environment=asked)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = json.loads(done.stdout)
        self.assertEqual(said["plugins"], [["xsched", True]])
        self.assertEqual(said["worker"], {"loaded": True, "priorities": [100]})
        # Nobody asked: nothing changes.
        said = json.loads(self.stage.run(host).stdout)
        self.assertEqual(said, {"plugins": [["xsched", False]], "worker": {"loaded": False, "priorities": []}})


if __name__ == "__main__":
    unittest.main()
