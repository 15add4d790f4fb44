"""Measures what XSched adds to a launch and to a wait, on the stand-in for NVIDIA's driver, and prints the results as JSON.

  cargo build --release --workspace
  python3 bench/launch_path.py [--rounds 7] > bench/results/launch-path.json

Compares three settings: without XSched, alone under XSched, and with the higher priority beside an idle program. They alternate, so that
other load on the machine affects all of them. The driver rejects the launches at once. On the default stream the library also queries the
current context.
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import local_machine

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "standins/cuda/tests"))
from standin import BUILT, Standin  # noqa: E402

LAUNCHES, WAITS = 1_000_000, 4_000
MEASURED = {"a launch on a stream of its own, ns": ["launches", "own", LAUNCHES],
            "a launch on the default stream, ns": ["launches", "default", LAUNCHES],
            "a kernel of 5 us, launched and waited for, us": ["foreground", "stream", WAITS, 1, 5, 0],
            "the same, waited for by an event, us": ["foreground", "event", WAITS, 1, 5, 0]}


class Environment(Standin):
    """The stand-in, the programs and a service."""

    def __init__(self, directory):
        super().__init__(directory, {arguments[0] for arguments in MEASURED.values()})

    def start(self, *command):
        return subprocess.Popen([str(word) for word in command], env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, options, name, *arguments):
        """Starts a program, under the scheduler with these options, or without."""
        prefix = [] if options is None else [BUILT / "xsched", "run", *options, "--"]
        return self.start(*prefix, self.directory / name, *arguments)

    def median(self, options, *arguments):
        with self.run(options, *arguments) as program:
            output, _ = program.communicate("\n", timeout=120)
        if program.returncode != 0:
            sys.exit(f"{' '.join(map(str, arguments))} exited with {program.returncode}")
        return statistics.median(float(line) for line in output.split() if line != "idle")

    @contextlib.contextmanager
    def idle(self):
        """Runs the measurement beside an idle program of lower priority."""
        with self.run(["--priority", "low"], "foreground", "stream", 1, 1, 5, 0) as program:
            while program.stdout.readline().strip() != "idle":
                pass
            try:
                yield
            finally:
                program.communicate("\n", timeout=30)

    def service(self):
        return local_machine.service(BUILT / "xsched", self.environment, self.directory / "socket")


def measure(environment, rounds):
    seen = {what: {"without XSched": [], "alone under XSched": [], "beside an idle program": []} for what in MEASURED}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        for what, arguments in MEASURED.items():
            seen[what]["without XSched"].append(environment.median(None, *arguments))
            seen[what]["alone under XSched"].append(environment.median(["--priority", "high"], *arguments))
        with environment.idle():
            for what, arguments in MEASURED.items():
                seen[what]["beside an idle program"].append(environment.median(["--priority", "high"], *arguments))
    return {what: {scenario: {"median": statistics.median(all_), "low": min(all_), "high": max(all_)} for scenario, all_ in scenarios.items()}
            for what, scenarios in seen.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="xsched-launches-") as directory:
        environment = Environment(directory)
        with environment.service():
            seen = measure(environment, args.rounds)
    with open("/proc/cpuinfo") as file:
        processor = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "unknown")
    print(json.dumps({"date": datetime.date.today().isoformat(), "processor": f"{len(os.sched_getaffinity(0))} cores of {processor}",
                      "command": f"python3 bench/launch_path.py --rounds {args.rounds}", "seen": seen}, indent=1))


main()
