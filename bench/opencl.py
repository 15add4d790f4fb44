"""Measures XSched with OpenCL on PoCL, which runs kernels on the CPU, and prints the results as JSON.

  python3 bench/opencl.py --xsched target/release/xsched [--runs 3] > bench/results/opencl.json

On a CPU, programs compete for the cores with everything they do. So the device is one core, on which only PoCL's worker thread of each
program runs (POCL_MAX_PTHREAD_COUNT, POCL_AFFINITY); all other threads and the service share a second core. The scenarios of a run
alternate, so that other load on the machine affects all of them.
"""
import argparse
import contextlib
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time

import local_machine

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAM = os.path.join(ROOT, "crates/xsched/tests/programs/cl_requests.c")
DEVICE_CORE, HOST_CORE = 0, 1
KERNELS, STEPS, PAUSE_MS = 20, 5000, 20
BATCH = ["1000000", "200", "500", "0"]
SCENES = {"alone": None, "native": [], "level 1": ["--level", "1"], "level 2": ["--level", "2"]}


class Environment:
    """A separate service, and the program."""

    def __init__(self, xsched, directory):
        self.xsched, self.program = os.path.abspath(xsched), os.path.join(directory, "cl_requests")
        subprocess.run(["cc", "-O1", "-o", self.program, PROGRAM, "-lOpenCL", "-ldl", "-lpthread"], check=True)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("XSCHED_")}
        self.environment |= {"POCL_MAX_PTHREAD_COUNT": "1", "POCL_AFFINITY": "1", "XSCHED_SOCKET": os.path.join(directory, "socket")}

    def start(self, *command):
        return subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True,
                                preexec_fn=lambda: os.sched_setaffinity(0, {HOST_CORE}))

    def requests(self, options, *arguments):
        """The durations that the program prints for its requests, under the scheduler with these options, or without."""
        prefix = [] if options is None else [self.xsched, "run", *options, "--"]
        with self.start(*prefix, self.program, *map(str, arguments)) as program:
            lines = program.stdout.read().split("\n")[1:-1]
        if program.returncode != 0:
            sys.exit(f"{self.program} exited with {program.returncode}")
        return [[float(part) for part in line.split()] for line in lines]

    @contextlib.contextmanager
    def batches(self, count, options):
        prefix = [] if options is None else [self.xsched, "run", "--priority", "low", *options, "--"]
        batches = [self.start(*prefix, self.program, *BATCH) for _ in range(count)]
        try:
            for batch in batches:
                batch.stdout.readline()
            yield
        finally:
            for batch in batches:
                batch.kill()
                batch.communicate()


def percentiles(values):
    ordered = sorted(values)
    return {f"p{percent}": round(ordered[min(len(ordered) * percent // 100, len(ordered) - 1)] / 1000, 2) for percent in (50, 90, 99)}


def latency(environment, batches, turns, each):
    """Requests beside batches that never pause: in ms, and as multiples of alone."""
    took = {scenario: [] for scenario in SCENES}
    for _ in range(turns):
        for scenario, level in SCENES.items():
            # None: without the scheduler.
            options = None if scenario in ("alone", "native") else level
            high = None if options is None else ["--priority", "high"]
            with environment.batches(0 if scenario == "alone" else batches, options):
                time.sleep(0.3)
                took[scenario] += [line[0] for line in environment.requests(high, each, KERNELS, STEPS, PAUSE_MS)]
    seen = {scenario: percentiles(values) for scenario, values in took.items()}
    for values in seen.values():
        values["times alone"] = {name: round(value / seen["alone"][name], 2) for name, value in values.items()}
    return seen


def overhead(environment, turns):
    """A program alone, 50 kernels per request: the fastest request, and the CPU time of the cheapest tenth, because that clock is
    occasionally wrong."""
    direct, scheduled = [], []
    for _ in range(turns):
        direct += environment.requests(None, 20, 50, STEPS // 5, 0, "cost")
        scheduled += environment.requests([], 20, 50, STEPS // 5, 0, "cost")
    seen = {}
    for directory, (what, part) in enumerate((("clock", 0), ("processor", 0.1))):
        without, under = (sorted(line[directory] for line in lines)[int(part * len(lines))] for lines in (direct, scheduled))
        seen[what] = {"without us": without, "scheduled us": under, "ratio": round(under / without, 4)}
    return seen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xsched", required=True, help="the program; its library is expected beside it")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--turns", type=int, default=4, help="repetitions of every scenario in a run, with 25 requests each")
    parser.add_argument("--batches", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        environment = Environment(args.xsched, directory)
        service = environment.start(environment.xsched, "serve", "--quiet")
        try:
            time.sleep(0.5)
            seen = {"date": datetime.date.today().isoformat(), "machine": local_machine.machine(), "batches": args.batches, "runs": []}
            for _ in range(args.runs):
                run = {"load": os.getloadavg()[0], "overhead": overhead(environment, 2 * args.turns),
                       "latency ms": latency(environment, args.batches, args.turns, 25)}
                print(json.dumps(run), file=sys.stderr)
                seen["runs"].append(run)
        finally:
            service.kill()
            service.wait()
    json.dump(seen, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
