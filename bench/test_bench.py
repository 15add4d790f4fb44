"""Tests of the benchmark scripts: `python3 -m unittest discover -s bench`. Needs neither a GPU nor PyTorch."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "gpu")]
import harness
import report


class Figures(unittest.TestCase):
    def test_percentiles_are_measured_values(self):
        values = list(range(1, 201))
        self.assertEqual([harness.percentile(values, p) for p in (50, 99, 100)], [100, 198, 200])
        self.assertEqual(harness.latency_figures([1.0])["halves"][0]["n"], 1)

    def test_rates_cover_the_window(self):
        steps = [(0.0, 0), (1.0, 10), (2.0, 10), (4.0, 50)]
        self.assertEqual(harness.rates(steps, 0.0, 4.0, 4), [10, 0, 20, 20])
        self.assertEqual(harness.rates(steps, 0.5, 1.5, 1), [5])
        self.assertEqual(harness.rates(steps, 4.0, 6.0, 2), [0, 0])
        with self.assertRaises(harness.Failure):
            harness.rates([], 0.0, 1.0)


class Programs(unittest.TestCase):
    def start(self, code):
        return harness.Program("a program", [sys.executable, "-c", code], dict(os.environ))

    def is_running(self, pid):
        try:
            with open(f"/proc/{pid}/stat") as file:
                return file.read().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False

    def test_failing_program_is_reported_with_its_stderr(self):
        with self.start("import sys; sys.exit('no such GPU')") as program:
            with self.assertRaisesRegex(harness.Failure, "exited early with 1. no such GPU"):
                program.expect("ready", 30)

    def test_silent_program_times_out(self):
        with self.start("import time; print('{}'); time.sleep(60)") as program:
            with self.assertRaisesRegex(harness.Failure, "no such event within"):
                program.expect("ready", 0.3)

    def test_end_kills_child_processes(self):
        code = ("import subprocess, sys, json, time, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
                "print(json.dumps({'event': 'ready', 'child': child.pid}), flush=True); time.sleep(600)")
        program = self.start(code)
        child = program.expect("ready", 30)["child"]
        program.end(0.1)
        until = time.monotonic() + 30
        while self.is_running(child):
            self.assertLess(time.monotonic(), until, "its child still runs")
            time.sleep(0.01)
        self.assertNotIn(program, harness.Program.alive)

    def test_failed_scenario_is_recorded_and_the_next_ones_run(self):
        budget = harness.Budget(60)

        def fails(error):
            raise error
        self.assertIsNone(budget.run("one", 1, fails, harness.Failure("it broke")))
        self.assertIsNone(budget.run("two", 1, fails, harness.Missing("no MPS")))
        self.assertIsNone(budget.run("three", 61, fails, None))
        self.assertEqual(budget.run("four", 1, lambda: 4), 4)
        self.assertEqual([error["what"] for error in budget.errors], ["one"])
        self.assertEqual([skipped["what"] for skipped in budget.skipped], ["two", "three"])


class Report(unittest.TestCase):
    def run_report(self, root, *arguments):
        command = [sys.executable, os.path.join(HERE, "report.py"), "--root", root, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def test_check_detects_a_manually_changed_figure(self):
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, "bench"))
            shutil.copytree(os.path.join(HERE, "results"), os.path.join(root, "bench/results"))
            for page in report.PAGES:
                shutil.copy(os.path.join(report.ROOT, page), os.path.join(root, page))
            self.assertEqual(self.run_report(root).returncode, 0)
            self.assertEqual(self.run_report(root, "--check").returncode, 0)
            readme = os.path.join(root, "README.md")
            with open(readme) as file:
                text = file.read()
            self.assertIn(" it/s", text)
            with open(readme, "w") as file:
                file.write(text.replace(" it/s", " it/h"))
            done = self.run_report(root, "--check")
            self.assertEqual(done.returncode, 1)
            self.assertIn("README.md", done.stderr)

    def test_quick_results_are_ignored_and_newer_ones_preferred(self):
        with tempfile.TemporaryDirectory() as directory:
            for name, date, quick in (("a", "2026-01-02", False), ("b", "2026-01-03", True), ("c", "2026-01-01", False)):
                with open(os.path.join(directory, name + ".json"), "w") as file:
                    json.dump({"gpu": "a GPU", "date": date, "quick": quick, "shares": {"of": name}}, file)
            self.assertEqual(report.Results(directory).section("shares")[0], {"of": "a"})


if __name__ == "__main__":
    unittest.main()
