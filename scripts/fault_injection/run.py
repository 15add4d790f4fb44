"""Injects faults one after the other, and reports."""
import argparse
import collections
import dataclasses
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

from .checks import Checks, state
from .faults import EXPECTED_TO_FAIL, Injection, KINDS, STEPS
from .machine import Build, Failure, Machine, Skipped
from . import service_faults, resource_faults  # noqa: F401 (they add their kinds, in this order)

# So many faults hit one machine; then a new one starts.
FAULTS_PER_MACHINE = 25
REPORT_INTERVAL_S = 15
# The results of a fault, in the order of the table. A skipped fault was not injected and is not counted.
RESULTS = ["passed", "failed", "expected failure", "passed, expected to fail", "skipped"]
# Failures that are found when a machine ends, after its faults, are counted as this kind.
END_OF_MACHINE = "the end of all programs"


@dataclasses.dataclass
class Options:
    """What the kinds of faults need to know."""
    # The directory of an earlier build, or none.
    earlier: pathlib.Path | None
    # The kind is not expected to fail: it gets the usual time.
    is_patient: bool = True

    @property
    def short_timeout(self):
        return 30 if self.is_patient else 3


class Run:
    def __init__(self, build, args, directory):
        self.build, self.args, self.directory = build, args, pathlib.Path(directory)
        self.results = collections.defaultdict(collections.Counter)
        self.coverage, self.seconds, self.growth = collections.Counter(), collections.Counter(), 0
        self.failures, self.machine, self.checks, self.machines = [], None, None, 0
        options = Options(args.earlier)
        selected = {kind: kind.why_not(build, options) for kind in KINDS if args.kind in kind.name}
        self.kinds = [kind for kind, why_not in selected.items() if not why_not]
        self.unavailable = {kind.name: why_not for kind, why_not in selected.items() if why_not}
        self.injected, self.started = 0, time.monotonic()

    def new_machine(self):
        self.close_machine()
        self.machines += 1
        place = self.directory / str(self.machines)
        place.mkdir()
        self.machine = Machine(self.build, place)
        self.machine.start_service()
        self.machine.start_survivors()
        self.checks = Checks(self.machine)

    def close_machine(self):
        machine, self.machine = self.machine, None
        if machine is not None:
            if self.checks is not None:
                self.growth = max(self.growth, self.checks.growth)
            if left := machine.close():
                raise Failure(f"processes are left: {left}")

    def inject(self, number):
        """Injects the fault with this number. The seed, the number and the kinds that can be injected here determine the fault, not what happened
        before."""
        rng = random.Random(f"{self.args.seed}:{number}")
        kind = rng.choices(self.kinds, [kind.weight for kind in self.kinds])[0]
        reason = EXPECTED_TO_FAIL.get(kind.name)
        options = Options(self.args.earlier, reason is None)
        injection, start = None, time.monotonic()
        try:
            if self.machine is None:
                self.new_machine()
            injection = Injection(self.machine, self.checks, rng, self.coverage, options)
            if self.args.verbose:
                print(f"fault {number}: {kind.name}", flush=True)
            kind.inject(injection)
            self.checks.everything()
            result = "passed, expected to fail" if reason else "passed"
        except Skipped as why:
            result = "skipped"
            injection.detail += f": {why}"
        except (Failure, OSError, subprocess.SubprocessError) as failure:
            result = "expected failure" if reason else "failed"
            detail = injection.detail if injection else "start of the machine"
            if not reason:
                self.failures.append(f"fault {number}: {kind.name}: {detail}: {failure}")
                found = getattr(failure, "state", "") or (state(self.machine) if self.machine else "")
                print(f"FAILED {self.failures[-1]}\nrepeat it with: {self.command(number)}\n{found}", flush=True)
            elif self.args.verbose:
                print(f"expected: fault {number}: {kind.name}: {detail}: {failure}", flush=True)
            self.discard_machine()
        if self.args.verbose:
            print(f"    {result} in {time.monotonic() - start:.2f} s: {injection.detail if injection else ''}", flush=True)
        self.results[kind.name][result] += 1
        self.injected += result != "skipped"
        self.seconds[kind.name] += time.monotonic() - start

    def discard_machine(self):
        """Ends what a failed fault has left."""
        try:
            self.close_machine()
        except (Failure, OSError, subprocess.SubprocessError) as failure:
            self.failures.append(f"{END_OF_MACHINE}: {failure}")
            self.results[END_OF_MACHINE]["failed"] += 1
            print(f"FAILED {self.failures[-1]}", flush=True)

    def command(self, number):
        earlier = f" --earlier {self.args.earlier}" if self.args.earlier else ""
        kind = f" --kind {self.args.kind!r}" if self.args.kind else ""
        return f"scripts/faults --build {self.args.build}{earlier}{kind} --seed {self.args.seed} --first {number} --faults 1 --verbose"

    def run(self):
        """Injects the faults."""
        try:
            self.inject_all()
        finally:
            self.discard_machine()

    def inject_all(self):
        reported = self.started
        number = self.args.first
        while self.injected < self.args.faults and time.monotonic() < self.started + self.args.minutes * 60:
            if (number - self.args.first) % FAULTS_PER_MACHINE == 0:
                self.discard_machine()
            self.inject(number)
            number += 1
            if time.monotonic() > reported + REPORT_INTERVAL_S:
                reported = time.monotonic()
                print(f"{self.injected} faults in {reported - self.started:.0f} s, seed {self.args.seed}, {len(self.failures)} failed", flush=True)

    def table(self):
        names = [*(kind.name for kind in KINDS), END_OF_MACHINE]
        width = max(map(len, names))
        lines = [f"{'fault':{width}}  " + "  ".join(RESULTS) + "  seconds each"]
        for name in names:
            if counts := self.results[name]:
                each = self.seconds[name] / counts.total()
                lines.append(f"{name:{width}}  " + "  ".join(f"{counts[result]:{len(result)}}" for result in RESULTS) + f"  {each:12.2f}")
        return "\n".join(lines)

    def covered(self):
        known = [tuple(step) for step in STEPS]
        by_time = sum(count for (_, _, step), count in self.coverage.items() if step == "(by time)")
        missed = [" ".join(step) for step in known if not self.coverage[step]]
        hits = sum(self.coverage.values()) - by_time
        lines = [f"{hits} faults at {len(known) - len(missed)} of {len(known)} steps; {by_time} more at some time, because the program did not come to the step"]
        if self.args.coverage:
            lines += [f"{self.coverage[step]:5} {' '.join(step)}" for step in known]
        elif missed:
            lines.append(f"steps without a fault: {', '.join(missed[:12])}{' ...' if len(missed) > 12 else ''}")
        return "\n".join(lines)

    def document(self):
        """The results of this run, for bench/results."""
        steps = {" ".join(step): 0 for step in STEPS} | {" ".join(step): count for step, count in self.coverage.items()}
        return {
            "date": time.strftime("%Y-%m-%d", time.gmtime()), "seconds": round(time.monotonic() - self.started), "seed": self.args.seed, "first": self.args.first,
            "faults": self.injected, "skipped": sum(counts["skipped"] for counts in self.results.values()), "machines": self.machines,
            "kinds": {name: dict(counts) for name, counts in self.results.items() if counts}, "unavailable": self.unavailable,
            "expected_to_fail": EXPECTED_TO_FAIL, "steps": steps, "failures": self.failures,
        }


def skip(line):
    """Reports what cannot run here, also in the summary of scripts/test."""
    print(f"skipped {line}", flush=True)
    if path := os.environ.get("XSCHED_SKIPPED"):
        with open(path, "a") as file:
            print(f"scripts/faults: {line}", file=file)


def list_steps(build, directory):
    """Prints the steps of programs and of a service that runs without a fault."""
    found = set()
    machine = Machine(build, directory)
    machine.start_service(step=(0, "none", 0))
    programs = [machine.start(platform, priority, 4, 300, pause, level=level, step=(0, "none", 0))
                for platform in ("cuda", "xsim", "hip") for priority, pause, level in ((1, 4000, None), (0, 0, None), (0, 500, 1))]
    time.sleep(4)
    machine.kill_service()
    time.sleep(1)
    machine.start_service(step=(0, "none", 0))
    time.sleep(3)
    for program in programs:
        program.end_input()
        program.wait(20)
        found |= {("client", program.platform, step) for step in program.report.passed}
    time.sleep(0.5)
    report = machine.service_report
    machine.kill_service(2)
    report.reader.join(10)
    found |= {("service", "-", step) for step in report.passed}
    machine.close()
    for step in sorted(found):
        print(*step)


def main():
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=2000, help="how many faults (%(default)s)")
    parser.add_argument("--minutes", type=float, default=600, help="stop after this time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER", help="the number of the first fault: repeats a failure")
    parser.add_argument("--kind", default="", help="only kinds with this text in their names")
    parser.add_argument("--build", default="target/release", metavar="DIR", help="where cargo has built the workspace (%(default)s)")
    parser.add_argument("--earlier", type=pathlib.Path, metavar="DIR", help="an earlier build, by which the service is replaced")
    parser.add_argument("--coverage", action="store_true", help="print how often each step was hit")
    parser.add_argument("--list-steps", action="store_true", help="print the steps of programs and services, for fault_injection/steps.txt")
    parser.add_argument("--output", type=pathlib.Path, metavar="FILE", help="write the results of this run to this JSON document")
    parser.add_argument("--verbose", action="store_true", help="print every fault")
    args = parser.parse_args()
    # The programs are ended also when this is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="xsched-faults-") as directory:
        programs = pathlib.Path(directory) / "programs"
        programs.mkdir()
        build = Build(programs, args.build)
        if args.list_steps:
            list_steps(build, directory)
            return 0
        run = Run(build, args, directory)
        for name, why_not in run.unavailable.items():
            skip(f"{name}: {why_not}")
        if not run.kinds:
            print(f"no kind of fault with {args.kind!r} in its name can be injected here")
            return 1
        try:
            run.run()
        finally:
            # Also of a run that is ended.
            if args.output:
                args.output.write_text(json.dumps(run.document(), indent=1, sort_keys=True) + "\n")
    print(run.table())
    print(run.covered())
    skipped = sum(counts["skipped"] for counts in run.results.values())
    print(f"{run.injected} faults in {time.monotonic() - run.started:.0f} s on {run.machines} machines, seed {args.seed}: {len(run.failures)} failed, {skipped} skipped; "
          f"a service grew by {run.growth} kB at most")
    for failure in run.failures:
        print(f"failed: {failure}")
    return 1 if run.failures or not run.injected else 0
