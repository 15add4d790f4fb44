"""Tests of the benchmark scripts: `python3 -m unittest discover -s bench`. Needs neither a GPU nor PyTorch."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import types
import unittest
import unittest.mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "gpu"), os.path.join(os.path.dirname(HERE), "scripts")]
import busy_cpus
import fault_injection.run
import harness
import hip_runtime
import report
import tools


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


class Tools(unittest.TestCase):
    """The comparison of a tool's findings, with scripts in place of the tool and of XSched."""

    def compare(self, script, xsched="shift 2; exec \"$@\""):
        directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, directory)
        path = os.path.join(directory, "xsched")
        with open(path, "w") as file:
            file.write(f"#!/bin/sh\n{xsched}\n")
        os.chmod(path, 0o755)
        environment = types.SimpleNamespace(xsched=path, environment=dict(os.environ), directory=directory)
        tool = lambda program: (["sh", "-c", script, "tool"], [program], lambda text: {"kernels": tools.find(r"kernels (.*)", text)})
        found = {}
        with unittest.mock.patch.dict(tools.TOOLS, {"a tool": tool}):
            tools.compare(environment, "a tool", "/bin/true", found)
        return found["a tool"]["different"]

    def test_findings_are_compared_in_both_ways(self):
        self.assertEqual(self.compare("echo kernels 3"), [])
        self.assertEqual(self.compare('echo kernels ${CHANGED:-3}', 'shift 2; CHANGED=4 exec "$@"'), ["inside"])
        self.assertEqual(self.compare('echo kernels 3; "$@"', "exit 7"), ["inside", "around"])

    def test_tool_that_finds_nothing_without_xsched_is_skipped(self):
        with self.assertRaisesRegex(harness.Missing, "finds nothing without XSched either: no GPU"):
            self.compare("echo no GPU")


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


class Ledger(unittest.TestCase):
    """Times in ns: two requests of the high-priority program, at 1000 to 5000 and at 9000 to 10000."""

    HIGH = ("1 0 0 kernel spin_at - 1100 3000 0 1 1000 -\n1 0 1 kernel spin_at - 3000 5000 0 1 1200 -\n"
            "1 0 2 barrier-and - - 5000 5100 0 1 5000 -\n1 0 3 kernel spin_at - 9100 10000 0 1 9000 -\n")

    def test_requests_are_spans_of_submitted_work(self):
        packets = hip_runtime.read_ledger(self.HIGH + "1 0 4 kernel __amd_rocclr_fillBufferAligned - 1 2 0 1 1 -\n1 0")
        self.assertEqual(hip_runtime.busy_spans(packets), [[1000, 5000], [9000, 10000]])

    def test_kernels_of_the_other_program_count_where_they_are_submitted_and_started(self):
        low = "".join(f"2 0 {n} kernel spin_at - {start} {start + 100} 0 1 {submitted} -\n"
                      for n, (submitted, start) in enumerate([(500, 900), (900, 1100), (1200, 6000), (2500, 2600), (7000, 8000)]))
        counts = hip_runtime.intrusions(hip_runtime.read_ledger(self.HIGH), hip_runtime.read_ledger(low), 1000)
        self.assertEqual(counts, {"requests": 2, "submitted": 2, "submitted_later": 1, "started": 2, "started_later": 1, "last_start_ms": 0.002})


    def test_measurement_of_another_level_is_rejected(self):
        stop, event, stop_point = "7 update 1 share 0 priority 7 good true\n", "2 1 8 barrier-value - - 5 5 0 1 4 -\n", "2 1 9 barrier-value - host 5 5 0 1 4 -\n"
        valid = {3: ([3, 3], stop, event), 2: ([2], "", event + stop_point), 1: ([1], "7 update 1 share 100 priority 7 good true\n", event)}
        for level, evidence in valid.items():
            hip_runtime.check_mechanism(level, *evidence)
            for other in valid.keys() - {level}:
                with self.assertRaises(SystemExit):
                    hip_runtime.check_mechanism(other, *evidence)
                # The level is right, but the queues were stopped in the way of another level.
                with self.assertRaises(SystemExit):
                    hip_runtime.check_mechanism(level, evidence[0], *valid[other][1:])


def spread(value):
    return {"median": value, "low": value - 1, "high": value + 1}


def busy_results(name, p99, **more):
    """The results of a run with one scenario, one load and two settings."""
    cell = {"repetitions": [{}] * 3, "p50_ms": spread(2.0), "p90_ms": spread(3.0), "p99_ms": spread(p99), "all_requests": {"p99_ms": p99 + 0.5, "n": 120}}
    return {"gpu": "a GPU", "driver": "1", "cuda": "13", "cpus": 4, "date": "2026-01-01", "xsched": "0.1", "command": f"measure {name}", "quick": False, "errors": [],
            "skipped": [], "busy_cpus": {name: {"what": f"scenario {name}", "loads": {"8": {"alone": cell, "xsched": cell}}}}, **more}


class BusyCpus(unittest.TestCase):
    def report_of(self, **files):
        with tempfile.TemporaryDirectory() as directory:
            for name, data in files.items():
                with open(os.path.join(directory, f"{name}.json"), "w") as file:
                    json.dump(data, file)
            return report.Report(report.Results(directory)).parts["busy-cpus"]

    def test_run_that_measured_nothing_writes_nothing(self):
        self.assertIsNone(busy_cpus.merged(busy_results("graph", 5), {"date": "2026-01-02", "errors": []}))
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "busy.json")
            args = types.SimpleNamespace(out=path, xsched="/bin/false", only=["graph"], quick=False, budget_seconds=1, loads=None, settings=None, repeat=5)
            busy_cpus.Measurement(args).write()
            self.assertFalse(os.path.exists(path))

    def test_scenarios_of_earlier_runs_stay_with_their_builds(self):
        errors = [{"what": "busy_cpus: graph", "why": "it broke"}, {"what": "busy_cpus: tokens", "why": "it broke, too"}]
        earlier = busy_cpus.merged({}, busy_results("graph", 5, errors=errors))
        both = busy_cpus.merged(earlier, busy_results("tokens", 7, xsched="0.2"))
        self.assertEqual(list(both["busy_cpus"]), ["graph", "tokens"])
        self.assertEqual([(name, run["xsched"]) for name, run in both["runs"].items()], [("graph", "0.1"), ("tokens", "0.2")])
        self.assertEqual(both["errors"], errors[:1], "the tokens were measured again")
        self.assertIn("from 2 runs: 2026-01-01, xsched 0.1, driver 1: `measure graph`; 2026-01-01, xsched 0.2", self.report_of(both=both))
        again = busy_cpus.merged(both, busy_results("graph", 9))
        self.assertEqual(again["busy_cpus"]["graph"]["loads"]["8"]["alone"]["p99_ms"]["median"], 9)

    def test_table_has_what_was_measured(self):
        text = self.report_of(one=busy_results("graph", 5))
        self.assertIn("Medians of 3 interleaved repetitions", text)
        self.assertIn("| scenario graph | 8 | XSched (auto) | 2.00 / 3.00 | 5.00 (4.00 to 6.00) | 1.00 | 5.50 of 120 |", text)
        self.assertNotIn("orders of eight other clients", text)
        data = busy_results("graph", 5)
        data["busy_cpus"]["decisions"] = {"8": {"p50_us": 10.0, "p99_us": 20.0, "max_us": 30.0}}
        self.assertIn("orders of eight other clients, in us:\n\n| busy processes | p50 | p99 | max |\n| --- | --- | --- | --- |\n| 8 | 10 | 20 | 30 |", self.report_of(one=data))

    def test_file_without_a_failed_measurement_is_preferred(self):
        failed = busy_results("graph", 5, date="2026-01-02", errors=[{"what": "busy_cpus: graph", "why": "it broke"}])
        self.assertIn("[complete.json]", self.report_of(failed=failed, complete=busy_results("graph", 6)))


class Faults(unittest.TestCase):
    """The run, with kinds that inject nothing into no machine."""

    class Run(fault_injection.run.Run):
        def new_machine(self):
            self.machine = types.SimpleNamespace(close=lambda: [])
            self.checks = types.SimpleNamespace(growth=0, everything=lambda: None)

    def document(self, inject, why_not="", faults=6):
        kinds = [fault_injection.faults.Kind("a fault", inject, 1, lambda *_: ""), fault_injection.faults.Kind("another", inject, 1, lambda *_: why_not)]
        args = types.SimpleNamespace(seed=1, first=0, faults=faults, minutes=1, kind="", earlier=None, verbose=False, build="", coverage=False)
        original, fault_injection.run.KINDS = fault_injection.run.KINDS, kinds
        try:
            run = self.Run(None, args, ".")
            run.run()
            run.table()
            return run.document()
        finally:
            fault_injection.run.KINDS = original

    def test_skipped_faults_are_not_counted_as_injected(self):
        def inject(injection):
            if injection.rng.random() < 0.5:
                raise fault_injection.machine.Skipped("not here")
        document = self.document(inject)
        self.assertEqual(document["faults"], 6)
        self.assertGreater(document["skipped"], 0)
        passed = sum(counts.get("passed", 0) for counts in document["kinds"].values())
        self.assertEqual((passed, document["failures"]), (6, []))

    def test_kinds_that_cannot_be_injected_are_listed_and_not_drawn(self):
        document = self.document(lambda _: None, "it needs root")
        self.assertEqual(document["unavailable"], {"another": "it needs root"})
        self.assertEqual(document["kinds"], {"a fault": {"passed": 6}})


    def test_table_shows_skipped_faults_and_reasons(self):
        document = self.document(lambda _: None, "it needs root") | {"skipped": 3}
        document["kinds"]["a fault"]["skipped"] = 3
        with tempfile.TemporaryDirectory() as directory:
            with open(os.path.join(directory, "faults.json"), "w") as file:
                json.dump(document, file)
            text = report.Report(report.Results(directory)).parts["faults"]
        self.assertIn("6 faults", text)
        self.assertIn("3 more were skipped", text)
        self.assertIn("| fault | passed | failed | skipped |\n| --- | --- | --- | --- |\n| a fault | 6 | 0 | 3 |", text)
        self.assertIn("another (it needs root)", text)


class Fuzz(unittest.TestCase):
    def test_table_counts_executions(self):
        targets = [{"name": name, "about": f"input {name}", "executions": 3000, "seconds": 2.0, "cpu_seconds": 1.5, "inputs": 4, "failure": None} for name in "ab"]
        with tempfile.TemporaryDirectory() as directory:
            with open(os.path.join(directory, "fuzz.json"), "w") as file:
                json.dump({"seed": 7, "targets": targets}, file)
            text = report.Report(report.Results(directory)).parts["fuzz"]
        self.assertIn("seed 7: 6,000 executions in 4 s, no failure.", text)
        self.assertIn("| a | input a | 3,000 | 2 | 2,000 |", text)


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
