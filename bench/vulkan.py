"""Measures XSched with Vulkan on the device of this machine, usually Mesa's CPU driver, and prints the results as JSON.

  python3 bench/vulkan.py --xsched target/release/xsched [--runs 3] > bench/results/vulkan.json

A CPU driver runs the work of all programs on the same cores as their host code and as everything else on the machine. The scenarios of a
run alternate, so that other load on the machine affects all of them.
"""
import argparse
import contextlib
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import local_machine

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAM = os.path.join(ROOT, "crates/xsched/tests/programs/vk_requests.c")
# Requests of 10 submissions of about 0.3 ms, 20 ms apart, beside endless submissions of the same length.
REQUEST = ["10", "50000", "20"]
BATCH = ["1000000", "50", "50000", "0"]
# A task that is almost always idle: submissions of another task are counted and marked.
MOSTLY_IDLE = ["1000000", "1", "1", "100"]
# The median of 2,000 submissions of almost no work.
COST = ["5", "2000", "1", "0", "cost"]


class Environment:
    """A separate service, and the program."""

    def __init__(self, xsched, directory):
        self.xsched, self.program = os.path.abspath(xsched), os.path.join(directory, "vk_requests")
        subprocess.run(["cc", "-std=gnu11", "-O1", "-o", self.program, PROGRAM, "-lvulkan"], check=True)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("XSCHED_")}
        self.environment |= {"XSCHED_SOCKET": os.path.join(directory, "socket")}

    def start(self, *command):
        return subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True)

    def program_with(self, priority, *arguments):
        """The program under the scheduler with this priority, or without it."""
        prefix = [] if priority is None else [self.xsched, "run", "--priority", priority, "--"]
        return self.start(*prefix, self.program, *map(str, arguments))

    def numbers(self, priority, *arguments):
        """What the program prints for its requests."""
        with self.program_with(priority, *arguments) as program:
            lines = program.stdout.read().split()
        if program.returncode != 0 or lines[-1] != "correct":
            sys.exit(f"{self.program} exited with {program.returncode}: {lines[-1:]}")
        return [float(line) for line in lines[1:-1]]

    @contextlib.contextmanager
    def beside(self, count, priority, arguments):
        """Starts programs; yields a function that returns how many requests they have served."""
        programs = [self.program_with(priority, *arguments) for _ in range(count)]
        served = []
        try:
            for program in programs:
                program.stdout.readline()
            yield served
        finally:
            for program in programs:
                program.kill()
                served.append(program.communicate()[0].count("\n"))


def percentiles(values):
    ordered = sorted(values)
    return {f"p{percent}": round(ordered[min(len(ordered) * percent // 100, len(ordered) - 1)] / 1000, 2) for percent in (50, 90, 99)}


def latency(environment, batches, turns, each):
    """Requests beside batches that never pause: in ms, and how many submissions per second the batches complete meanwhile."""
    took = {scenario: [] for scenario in ("alone", "native", "xsched")}
    rates = {scenario: [] for scenario in took if scenario != "alone"}
    for _ in range(turns):
        for scenario in took:
            low, high = ("low", "high") if scenario == "xsched" else (None, None)
            begin = time.monotonic()
            with environment.beside(0 if scenario == "alone" else batches, low, BATCH) as served:
                took[scenario] += environment.numbers(high, each, *REQUEST)
            if scenario != "alone":
                rates[scenario].append(sum(served) * int(BATCH[1]) / (time.monotonic() - begin))
    seen = {scenario: percentiles(values) for scenario, values in took.items()}
    for scenario, values in rates.items():
        seen[scenario]["batch submissions per second"] = round(statistics.median(values))
    return seen


def cost(environment, turns):
    """The median time of vkQueueSubmit, in ns: without XSched, under it alone, and under it beside another task."""
    took = {"native": [], "alone": [], "beside another task": []}
    for _ in range(turns):
        took["native"] += environment.numbers(None, *COST)
        took["alone"] += environment.numbers("normal", *COST)
        with environment.beside(1, "low", MOSTLY_IDLE):
            took["beside another task"] += environment.numbers("normal", *COST)
    return {scenario: {"median": statistics.median(values), "lowest": min(values), "highest": max(values)} for scenario, values in took.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xsched", required=True, help="the program; its library is expected beside it")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--turns", type=int, default=4, help="repetitions of every scenario in a run, with 25 requests each")
    parser.add_argument("--batches", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        environment = Environment(args.xsched, directory)
        service = environment.start(environment.xsched, "serve", "--quiet")
        try:
            time.sleep(0.5)
            seen = {"date": datetime.date.today().isoformat(), "machine": local_machine.machine(), "batches": args.batches, "runs": []}
            for _ in range(args.runs):
                run = {"load": os.getloadavg()[0], "submission ns": cost(environment, args.turns),
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
