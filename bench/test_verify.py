"""Tests of scripts/verify: `python3 -m unittest discover -s bench`. Needs no GPU; the tests that run the script need the debug build."""
import glob
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.insert(0, HERE)
from verify import budget, charts, document, facts, guard, machine, page, preemption, run, stages
from verify.machine import Failed, Slow

BUILD = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "debug")
BUILT = all(os.path.exists(os.path.join(BUILD, name)) for name in ("xsched", "libxsched.so", "libhip_standin.a", "libkfd_standin.so"))
WITH_BUILD = unittest.skipUnless(BUILT, "the stand-ins are not built in target/debug")
EXIT_TIMEOUT_S = 60


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Time(unittest.TestCase):
    def test_stages_get_what_they_request_while_time_suffices(self):
        clock = Clock()
        time_budget = budget.Budget(100, [10, 20, 30], clock)
        for request in (10, 20, 30):
            self.assertEqual(time_budget.begin_stage(1), (request, 1.0))
            clock.now += request

    def test_stages_share_what_is_left_when_time_runs_short(self):
        clock = Clock()
        time_budget = budget.Budget(budget.RESERVE_S + 60, [10, 60, 20], clock)
        time_budget.begin_stage(1)
        clock.now += 40
        given, part = time_budget.begin_stage(1)
        self.assertEqual((given, part), (20 * 60 / 80, 20 / 80))
        clock.now += given
        with self.assertRaisesRegex(budget.OutOfTime, "5 s were left for all remaining stages; this one needs 8 s"):
            time_budget.begin_stage(8)

    def test_program_may_not_run_longer_than_the_verification(self):
        clock = Clock()
        time_budget = budget.Budget(budget.RESERVE_S + 60, [], clock)
        self.assertEqual(time_budget.timeout(1000), 60)
        clock.now += 61
        with self.assertRaises(budget.OutOfTime):
            time_budget.timeout(1000)

    def test_default_requests_fit_into_the_limits(self):
        for column, limit in ((0, budget.TIME_LIMITS_S["full"]), (1, budget.TIME_LIMITS_S["quick"])):
            self.assertLessEqual(sum(stage[3][column] for stage in run.STAGES), limit - budget.RESERVE_S)


class Names(unittest.TestCase):
    def test_user_host_and_home_are_removed_at_any_depth(self):
        redaction = facts.Redaction(replacements=[("/home/marie", "~"), ("marie", "USER"), ("node-17", "HOST")])
        found = redaction.value({"a": ["/home/marie/x of marie on node-17", {"names": ["secret"], "n": 3}], "b": "node-170 mariette"})
        self.assertEqual(found, {"a": ["~/x of USER on HOST", {"n": 3}], "b": "node-170 mariette"})

    def test_names_are_kept_if_asked_for(self):
        value = {"names": ["python3"], "text": os.path.expanduser("~")}
        self.assertEqual(facts.Redaction(include_names=True).value(value), value)


class PyTorch(unittest.TestCase):
    ABOUT = {"installed": True, "version": "2.9.0+rocm6.4", "hip": "6.4.43484", "cuda": None, "own_runtimes": ["libamdhip64.so"], "sees_devices": 8}

    def test_each_kind_of_installation_is_named(self):
        cases = [
            (self.ABOUT, "ok", "built for ROCm 6.4.43484, with its own runtime, sees 8 devices"),
            ({**self.ABOUT, "own_runtimes": []}, "ok", "with the system's runtime"),
            ({**self.ABOUT, "hip": None, "cuda": "13.0"}, "warning", "is not built for ROCm"),
            ({**self.ABOUT, "sees_devices": 0}, "warning", "sees 0 devices"),
            ({"installed": True, "error": "libfoo.so: not found"}, "warning", "cannot be imported: libfoo.so: not found"),
            ({"installed": False}, "warning", "not installed for"),
        ]
        for about, state, what in cases:
            found = facts.describe_pytorch(about, True)
            self.assertEqual(found["state"], state, about)
            self.assertIn(what, found["what"])
            self.assertEqual(found["do_next"] is None, state == "ok")


def example(**changes):
    """A report of a whole verification."""
    spread = {"median": 9000.0, "min": 8000.0, "max": 9500.0}
    figures = {"p50_us": 400, "p99_us": 900, "added_p50_us": 300, "added_p99_us": 800}
    stages = [
        run.record("overhead", "cost of a launch", "pass", {"native_ns": 4000.0, "scheduled_ns": 4040.0, "more_ns": 40.0}, "", 3),
        run.record("corun", "a service beside a batch", "pass", {"rounds": 3, "requests_each": 200, **{f"{name}_p{p}_us": spread for name in ("alone", "native", "scheduled") for p in (50, 99)}}, "", 30),
        run.record("preempt", "preemption latency by level", "pass",
                   {"alone_p50_us": 100, "alone_p99_us": 150, "lengths_us": [500, 2000], "highest_level": 2, "native_beside_500_us": figures, "native_beside_2000_us": figures,
                    "levels": {"1": {"beside_500_us": figures, "beside_2000_us": figures}, "2": {"beside_2000_us": figures}, "3": {"unavailable": "cannot open /dev/kfd"}}}, "", 40),
        run.record("results", "PyTorch's results, bit for bit", "fail", {}, "different results: <matmul>", 12, "send the report"),
    ]
    findings = [{"group": "devices", "name": "amd 0000:05:00.0", "state": "problem", "what": "this user may not use /dev/kfd", "do_next": "`sudo usermod -aG render $USER`"}]
    return {"schema": "xsched-verify", "schema_version": 1, "platform": "hip", "quick": False, "date": "2026-11-17", "xsched_version": "0.1.0", "state": "complete",
            "device": "AMD <GPU>", "devices": 8, "runtime_version": 7, "host": {"processor": "a CPU", "cores": 96, "load": [0.1], "system": "a system", "kernel": "6.8", "python": "3.12"},
            "findings": findings, "stages": stages, "seconds": 85.0, **changes}


class Page(unittest.TestCase):
    def test_page_needs_no_other_file_and_no_script(self):
        text = page.render(example())
        for word in ("<script", "http:", "https:", "src=", "@import", "url("):
            self.assertNotIn(word, text)
        self.assertIn('name="viewport"', text)
        self.assertIn("prefers-color-scheme: dark", text)
        self.assertEqual(text.count("<svg"), 3)

    def test_failures_come_first_with_what_to_do(self):
        text = page.render(example())
        self.assertLess(text.index("1 of 4 stages failed"), text.index("Preemption levels"))
        self.assertIn("different results: &lt;matmul&gt;", text)
        self.assertIn("<code>sudo usermod -aG render $USER</code>", text)
        self.assertIn("cannot open /dev/kfd", text)
        self.assertNotIn("AMD <GPU>", text)

    def test_report_of_an_interrupted_run_can_be_shown(self):
        text = page.render(example(state="interrupted by SIGINT", stages=[], findings=[], host={}, device=None))
        self.assertIn("Not complete: interrupted by SIGINT", text)

    def test_summary_names_failures_and_what_to_do(self):
        lines = "\n".join(document.summary(example()))
        self.assertIn("3 passed, 1 failed, 0 skipped; 1 problems", lines)
        self.assertIn("do: `sudo usermod -aG render $USER`", lines)

    def test_bars_are_drawn_to_scale(self):
        text = charts.bars("title", "ms", [("a", 10.0, "alone", None), ("b", 5.0, "native", (4.0, 6.0)), ("c", None, "xsched", None)])
        widths = [float(part.split('"')[0]) for part in text.split('width="')[1:]]
        self.assertEqual(widths[0], 2 * widths[1])
        self.assertEqual(text.count("<rect"), 2)
        self.assertEqual(charts.bars("title", "ms", []), "")


def processes_with(text):
    """The processes whose environment contains a text."""
    found = []
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as file:
                if text.encode() in file.read() and int(path.split("/")[2]) != os.getpid():
                    found.append(int(path.split("/")[2]))
        except OSError:
            pass
    return found


def wait_until(condition, what):
    end = time.monotonic() + EXIT_TIMEOUT_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(what)
        time.sleep(0.02)


class Stopped(unittest.TestCase):
    """The script, stopped at a point of its output."""

    def start(self, directory, *words):
        temporary, output = os.path.join(directory, "tmp"), os.path.join(directory, "report")
        os.mkdir(temporary)
        environment = dict(os.environ, TMPDIR=temporary, VERIFY_MARK=directory)
        environment.pop("XSCHED_SKIPPED", None)
        command = [sys.executable, os.path.join(ROOT, "scripts/verify"), "--platform", "hip-standin", "--quick", "--build", BUILD, "--output", output, *words]
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)

    def assert_nothing_stays(self, directory):
        wait_until(lambda: not processes_with(directory), f"processes stay: {processes_with(directory)}")
        wait_until(lambda: not os.listdir(os.path.join(directory, "tmp")), f"files stay: {os.listdir(os.path.join(directory, 'tmp'))}")
        self.assertEqual(sorted(os.listdir(directory)), ["report.html", "report.json", "tmp"])

    def stop_after(self, stages, kill):
        """Starts the script, calls `kill` with its process after so many stages, and checks what stays. Returns the report."""
        with tempfile.TemporaryDirectory() as directory:
            script = self.start(directory)
            try:
                wait_until(lambda: os.path.exists(os.path.join(directory, "report.json")), "it writes no report")
                for line in script.stdout if stages else []:
                    stages -= line.split()[:1] in (["pass"], ["fail"], ["skipped"])
                    if stages == 0:
                        break
                kill(script)
                script.stdout.read()
                status = script.wait(timeout=EXIT_TIMEOUT_S)
            finally:
                script.stdout.close()
                if script.poll() is None:
                    script.kill()
            self.assert_nothing_stays(directory)
            with open(os.path.join(directory, "report.json"), encoding="utf-8") as file:
                return status, json.load(file)

    @staticmethod
    def inner_of(script):
        """The process that does the work."""
        return guard.descendants(script.pid)[0]

    @WITH_BUILD
    def test_signal_ends_it_with_a_report(self):
        for number, stages in ((signal.SIGINT, 3), (signal.SIGHUP, 1)):
            status, report = self.stop_after(stages, lambda script, number=number: script.send_signal(number))
            self.assertEqual(status, 128 + number)
            self.assertEqual(report["state"], f"interrupted by {signal.Signals(number).name}")
            self.assertGreaterEqual(len(report["stages"]), stages)

    @WITH_BUILD
    def test_killed_script_leaves_nothing_behind(self):
        _, report = self.stop_after(2, lambda script: script.kill())
        self.assertEqual(report["state"], "interrupted by SIGTERM")

    @WITH_BUILD
    def test_killed_work_leaves_nothing_behind(self):
        status, report = self.stop_after(2, lambda script: os.kill(self.inner_of(script), signal.SIGKILL))
        self.assertEqual(status, 128 + signal.SIGKILL)
        self.assertGreaterEqual(len(report["stages"]), 2)

    @WITH_BUILD
    def test_interruptions_at_random_moments_leave_nothing_behind(self):
        # VERIFY_INTERRUPTIONS=100 before a release; one takes seconds.
        count = int(os.environ.get("VERIFY_INTERRUPTIONS", "1"))
        chosen = random.Random(time.time_ns())
        for _ in range(count):
            number = chosen.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL])
            delay, whole_group = chosen.uniform(0, 3 if count == 1 else 20), chosen.random() < 0.5

            def kill(script, number=number, delay=delay, whole_group=whole_group):
                time.sleep(delay)
                (os.killpg if whole_group else os.kill)(script.pid, number)
            with self.subTest(signal=number, delay=delay, whole_group=whole_group):
                self.stop_after(0, kill)

    def test_directories_of_dead_verifications_are_removed(self):
        with tempfile.TemporaryDirectory() as directory:
            child = subprocess.Popen(["true"])
            child.wait()
            for name in (f"{guard.PREFIX}{child.pid}-x", f"{guard.PREFIX}{os.getpid()}-x", "other"):
                pathlib.Path(directory, name).mkdir()
            guard.remove_leftovers(directory)
            self.assertEqual(sorted(os.listdir(directory)), ["other", f"{guard.PREFIX}{os.getpid()}-x"])


class Options(unittest.TestCase):
    def run_script(self, *words):
        with tempfile.TemporaryDirectory() as directory:
            command = [sys.executable, os.path.join(ROOT, "scripts/verify"), "--output", os.path.join(directory, "report"), *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=dict(os.environ, TMPDIR=directory))
            reports = glob.glob(os.path.join(directory, "report.json"))
            content = json.loads(pathlib.Path(reports[0]).read_text(encoding="utf-8")) if reports else None
            return done, content

    def test_missing_build_is_reported_with_the_command(self):
        done, content = self.run_script("--platform", "hip", "--build", "/nonexistent")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("cargo build --release -p xsched -p xsched-lib", done.stdout)
        self.assertEqual(content["state"], "failed")

    @WITH_BUILD
    def test_it_builds_what_it_needs(self):
        with tempfile.TemporaryDirectory() as directory:
            cargo = pathlib.Path(directory, "cargo")
            # In place of a compiler: notes its arguments and installs the debug build.
            cargo.write_text(f'#!/bin/sh\necho "$@" >"{directory}/words"\nmkdir -p "$CARGO_TARGET_DIR" && ln -s "{BUILD}" "$CARGO_TARGET_DIR/release"\n', encoding="utf-8")
            cargo.chmod(0o755)
            with mock.patch.dict(os.environ, {"PATH": f"{directory}:{os.environ['PATH']}", "CARGO_TARGET_DIR": f"{directory}/target"}):
                done, content = self.run_script("--platform", "hip-standin", "--quick", "--only", "build")
            words = pathlib.Path(directory, "words").read_text(encoding="utf-8").split()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(words, "build --release -p xsched -p xsched-lib -p hip-standin -p kfd-standin".split())
        self.assertEqual([stage["status"] for stage in content["stages"]], ["pass"])

    def work_with_cargo(self, script, *words):
        """The verification with another program in place of cargo, and without stages. Returns the exit status, the report, the budget with
        which the stages begin, if they begin, and the texts of the progress."""
        budgets, texts = [], []

        def begin_stages(_options, _chosen, machine_of_stages, written, progress):
            budgets.append(machine_of_stages.budget)
            self.assertIs(progress.budget, machine_of_stages.budget)
            written.content["state"] = "complete"
        with tempfile.TemporaryDirectory() as directory:
            cargo = pathlib.Path(directory, "cargo")
            cargo.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
            cargo.chmod(0o755)
            options = run.arguments(["--platform", "hip", "--output", os.path.join(directory, "report"), *words])
            with mock.patch.dict(os.environ, {"PATH": f"{directory}:{os.environ['PATH']}"}), mock.patch.object(run, "verify", begin_stages), \
                 mock.patch.object(run.Progress, "begin", lambda _self, _number, text: texts.append(text)):
                status = run.work(options, directory)
            return status, json.loads(pathlib.Path(directory, "report.json").read_text(encoding="utf-8")), next(iter(budgets), None), texts

    def test_time_of_the_stages_begins_after_the_build(self):
        # The stages have one second; the build takes two.
        script = "echo '   Compiling one' >&2; sleep 2"
        status, report, of_stages, texts = self.work_with_cargo(script, "--time-limit", str(budget.RESERVE_S + 1))
        self.assertEqual((status, report["state"]), (0, "complete"), report["stages"])
        self.assertEqual(of_stages.limit_s, budget.RESERVE_S + 1)
        self.assertGreaterEqual(report["build_seconds"], 2)
        self.assertIn("building XSched (minutes if it was not built before): 1 packages compiled", texts)

    def test_build_has_a_limit_of_its_own(self):
        with mock.patch.object(machine, "BUILD_LIMIT_S", 1):
            status, report, of_stages, _ = self.work_with_cargo("exec sleep 600")
        self.assertEqual((status, report["state"], of_stages), (2, "failed", None))
        self.assertIn("building took longer than", report["stages"][0]["notes"])

    def test_outer_process_waits_for_the_build_and_the_stages(self):
        limits = []
        for words in (["--quick"], ["--quick", "--build", "/nonexistent"]):
            with mock.patch.object(sys, "argv", ["verify", "--platform", "hip", *words]), mock.patch.object(guard, "run", lambda _work, limit: limits.append(limit)):
                run.main()
        self.assertEqual(limits[0] - limits[1], budget.BUILD_LIMIT_S)
        self.assertGreater(limits[1], budget.TIME_LIMITS_S["quick"])

    @WITH_BUILD
    def test_failed_build_is_reported_with_its_output(self):
        with tempfile.TemporaryDirectory() as directory:
            cargo = pathlib.Path(directory, "cargo")
            cargo.write_text("#!/bin/sh\necho 'error: linker not found' >&2\nexit 101\n", encoding="utf-8")
            cargo.chmod(0o755)
            with mock.patch.dict(os.environ, {"PATH": f"{directory}:{os.environ['PATH']}"}):
                done, content = self.run_script("--platform", "hip", "--quick")
        self.assertEqual(done.returncode, 2)
        self.assertIn("error: linker not found", content["stages"][0]["notes"])

    @WITH_BUILD
    def test_machine_without_a_gpu_gets_a_report(self):
        done, content = self.run_script("--platform", "cuda", "--quick", "--build", BUILD)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("no device can be used, even without XSched", content["stages"][0]["notes"])

    @WITH_BUILD
    def test_findings_about_the_machine_come_from_its_files(self):
        with tempfile.TemporaryDirectory() as tree:
            for path, text in {
                "opt/rocm-5.6.0/.info/version": "5.6.0", "sys/module/amdgpu/parameters/cwsr_enable": "0", "dev/kfd": "",
                "sys/class/kfd/kfd/topology/nodes/1/properties": "gfx_target_version 90402\ndevice_id 29858\nlocation_id 1280\ndrm_render_minor 128\n",
                "sys/bus/pci/devices/0000:05:00.0/current_compute_partition": "CPX", "sys/bus/pci/devices/0000:05:00.0/current_memory_partition": "NPS4",
            }.items():
                pathlib.Path(tree, path).parent.mkdir(parents=True, exist_ok=True)
                pathlib.Path(tree, path).write_text(text, encoding="utf-8")
            _, content = self.run_script("--platform", "hip-standin", "--quick", "--build", BUILD, "--machine-files", tree, "--only", "build")
        found = {check["name"]: check for check in content["findings"]}
        self.assertIn("older than 6.2", found["rocm"]["what"])
        self.assertIn("does not save running waves", found["amd driver"]["what"])
        self.assertEqual(found["amd driver"]["facts"]["queue_scheduler"], "HWS")
        gpu = found["amd 0000:05:00.0"]
        self.assertIn("AMD Instinct MI308X (gfx942), one partition (CPX/NPS4): /dev/dri/renderD128 does not exist", gpu["what"])
        self.assertEqual((gpu["state"], gpu["facts"]["memory_partition"]), ("problem", "NPS4"))


class FakeMachine:
    """A machine on which every program succeeds at once."""
    is_simulated, is_hip, is_release, service, running, tree = True, True, True, None, (), None

    def __init__(self, time_budget):
        self.budget = time_budget

    def result(self, *_words):
        return [{"device": "a device", "devices": 1, "version": 7, "clock": None}]

    def set_clock(self, clock):
        pass

    def start_service(self):
        pass

    @staticmethod
    def version():
        return ["0.1.0"]


class Stages(unittest.TestCase):
    def run_stages(self, stages, limit_s, clock):
        """Runs stages, each a function of the clock, on a machine without programs. Returns their records."""
        chosen = [(name, name, function, (request, request), least) for name, function, request, least in stages]
        fake = FakeMachine(budget.Budget(limit_s, [stage[3][0] for stage in chosen], clock))
        with tempfile.TemporaryDirectory() as directory, mock.patch.object(facts, "doctor", lambda *_: []), mock.patch.dict(os.environ):
            os.environ.pop("XSCHED_SKIPPED", None)
            written = document.Document(os.path.join(directory, "report"), "hip", True, facts.Redaction(replacements=[]))
            run.verify(mock.Mock(machine_files=None), chosen, fake, written, mock.Mock())
            written.close()
            return written.content["stages"]

    def test_stage_without_time_is_skipped_and_said_so(self):
        clock = Clock()

        def takes(seconds):
            def stage(_machine, _part):
                clock.now += seconds
                return {}, "done"
            return stage
        records = self.run_stages([("a", takes(70), 20, 1), ("b", takes(1), 60, 1), ("c", takes(1), 60, 30)], 95 + budget.RESERVE_S, clock)
        self.assertEqual([one["status"] for one in records], ["pass", "pass", "skipped"])
        self.assertEqual(records[1]["notes"], "done; shortened to 12 s, because time ran short")
        self.assertIn("no time: 24 s were left", records[2]["notes"])

    def test_comparison_of_times_is_repeated_but_a_wrong_result_is_not(self):
        calls = {"slow": 0, "wrong": 0}

        def slow(_machine, _part):
            calls["slow"] += 1
            raise Slow("too slow", {"n": calls["slow"]})

        def wrong(_machine, _part):
            calls["wrong"] += 1
            raise Failed("wrong", {}, "do this")

        def broken(_machine, _part):
            raise KeyError("a fault of the verification")
        records = self.run_stages([("s", slow, 1, 0), ("w", wrong, 1, 0), ("b", broken, 1, 0)], 100, Clock())
        self.assertEqual(calls, {"slow": 3, "wrong": 1})
        self.assertEqual([one["status"] for one in records], ["fail"] * 3)
        self.assertEqual((records[0]["metrics"], records[1]["do_next"]), ({"n": 3}, "do this"))
        self.assertIn("a fault of the verification", records[2]["notes"])


class SlowTail(unittest.TestCase):
    """Requests of which the slowest twentieth take twice as long beside a batch: p50 is as alone, p99 is not."""

    def machine_with(self, is_simulated, beside=2.0, quick=False):
        def requests(words, factor):
            return [1000] * (words[1] - words[1] // 20) + [1000 * factor] * (words[1] // 20)
        return mock.Mock(is_simulated=is_simulated, is_release=True, quick=quick, level=3, result=lambda *words: requests(words, 1.0),
                         beside=lambda _batch, _run, words, _high: requests(words, beside))

    def test_p99_fails_on_a_device(self):
        for stage in (stages.corun, stages.lengths):
            with self.assertRaisesRegex(Slow, "'p99 is 2.0 times that alone.*more than 1.2"):
                stage(self.machine_with(False), 1.0)
            stage(self.machine_with(False, beside=1.1), 1.0)
        with self.assertRaisesRegex(Slow, "'p99"):
            stages.corun(self.machine_with(False, quick=True), 1.0)

    def test_p99_is_reported_where_it_is_not_judged(self):
        metrics, note = stages.corun(self.machine_with(True), 1.0)
        self.assertEqual(metrics["scheduled_p99_ratio"]["median"], 2.0)
        self.assertIn("p99 is not judged on a simulated device", note)
        _, note = stages.lengths(self.machine_with(False, quick=True), 1.0)
        self.assertIn("p99 is not judged: it needs 200 requests, not 30", note)

    def test_p50_fails_everywhere(self):
        for is_simulated in (False, True):
            slow = self.machine_with(is_simulated)
            slow.beside = lambda _batch, _run, words, _high: [2000] * words[1]
            with self.assertRaisesRegex(Slow, "'p50"):
                stages.corun(slow, 1.0)


class Exclusive(unittest.TestCase):
    def run_stage(self, is_simulated, completed_ms):
        """The stage beside a held program whose operations complete at these times after the first launch of each request."""
        requests = [[n * 1_000_000_000, n * 1_000_000_000 + 100_000_000] for n in range(5)]

        def overlapping(_machine, _kind, _length, _count, low, _high):
            completed = [begin + round(1e6 * time) for begin, _ in requests for time in (completed_ms if low else range(100))]
            fake = mock.Mock(**{"result.return_value": requests, "finish.return_value": mock.Mock(values=[completed])})
            return original(fake, "kernel", 300, 5, low, None)
        original = preemption.overlapping
        with mock.patch.object(preemption, "overlapping", overlapping), mock.patch.object(preemption.ctypes, "CDLL"):
            return preemption.exclusive(mock.Mock(is_simulated=is_simulated, is_hip=True, quick=True, library="x"), 1.0)

    def test_no_operation_completes_on_a_device(self):
        self.run_stage(False, [1, 4])
        with self.assertRaisesRegex(Slow, r"5 operations \(kernel\) of the held program completed"):
            self.run_stage(False, [1, 6])

    def test_one_operation_for_each_request_may_be_noticed_late_on_a_simulated_device(self):
        self.run_stage(True, [1, 20])
        with self.assertRaisesRegex(Slow, r"10 operations \(kernel\)"):
            self.run_stage(True, [20, 21])


if __name__ == "__main__":
    unittest.main()
