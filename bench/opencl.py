"""Measures XSched with OpenCL on PoCL, which runs kernels on the processor, and prints what was seen as JSON.

  python3 bench/opencl.py --xsched target/release/xsched [--runs 3] > bench/results/opencl.json

On a processor, programs compete for the cores with all they do. So the device is made of one core, on which PoCL's thread of
every program runs and nothing else of theirs (POCL_MAX_PTHREAD_COUNT, POCL_AFFINITY), and everybody's other threads and the
service share another. The scenes of a run take turns, so that what else the machine does meets all of them.
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

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAM = os.path.join(ROOT, "crates/xsched/tests/programs/cl_requests.c")
DEVICE_CORE, HOST_CORE = 0, 1
KERNELS, STEPS, PAUSE_MS = 20, 5000, 20
BATCH = ["1000000", "200", "500", "0"]
SCENES = {"alone": None, "native": [], "level 1": ["--level", "1"], "level 2": ["--level", "2"]}


class Stage:
    """A service of its own, and the program."""

    def __init__(self, xsched, place):
        self.xsched, self.program = os.path.abspath(xsched), os.path.join(place, "cl_requests")
        subprocess.run(["cc", "-O1", "-o", self.program, PROGRAM, "-lOpenCL", "-ldl", "-lpthread"], check=True)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("XSCHED_")}
        self.environment |= {"POCL_MAX_PTHREAD_COUNT": "1", "POCL_AFFINITY": "1", "XSCHED_SOCKET": os.path.join(place, "socket")}

    def start(self, *command):
        return subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True,
                                preexec_fn=lambda: os.sched_setaffinity(0, {HOST_CORE}))

    def requests(self, options, *arguments):
        """What the program says of each request, under the scheduler with these options, or without."""
        under = [] if options is None else [self.xsched, "run", *options, "--"]
        with self.start(*under, self.program, *map(str, arguments)) as program:
            said = program.stdout.read().split("\n")[1:-1]
        if program.returncode != 0:
            sys.exit(f"{self.program} ended with {program.returncode}")
        return [[float(part) for part in line.split()] for line in said]

    @contextlib.contextmanager
    def batches(self, count, options):
        under = [] if options is None else [self.xsched, "run", "--priority", "low", *options, "--"]
        batches = [self.start(*under, self.program, *BATCH) for _ in range(count)]
        try:
            for batch in batches:
                batch.stdout.readline()
            yield
        finally:
            for batch in batches:
                batch.kill()
                batch.communicate()


def percentiles(all_of_them):
    ordered = sorted(all_of_them)
    return {f"p{percent}": round(ordered[min(len(ordered) * percent // 100, len(ordered) - 1)] / 1000, 2) for percent in (50, 90, 99)}


def latency(stage, batches, turns, each):
    """Requests beside batches that never pause: in ms, and as multiples of alone."""
    took = {scene: [] for scene in SCENES}
    for _ in range(turns):
        for scene, level in SCENES.items():
            # None: without the scheduler.
            options = None if scene in ("alone", "native") else level
            high = None if options is None else ["--priority", "high"]
            with stage.batches(0 if scene == "alone" else batches, options):
                time.sleep(0.3)
                took[scene] += [line[0] for line in stage.requests(high, each, KERNELS, STEPS, PAUSE_MS)]
    seen = {scene: percentiles(values) for scene, values in took.items()}
    for values in seen.values():
        values["times alone"] = {name: round(value / seen["alone"][name], 2) for name, value in values.items()}
    return seen


def overhead(stage, turns):
    """A program alone, 50 kernels each: the quickest request, and what the cheapest tenth took of the processor's time, for
    that clock goes wrong now and then."""
    direct, scheduled = [], []
    for _ in range(turns):
        direct += stage.requests(None, 20, 50, STEPS // 5, 0, "cost")
        scheduled += stage.requests([], 20, 50, STEPS // 5, 0, "cost")
    seen = {}
    for place, (what, part) in enumerate((("clock", 0), ("processor", 0.1))):
        without, under = (sorted(line[place] for line in lines)[int(part * len(lines))] for lines in (direct, scheduled))
        seen[what] = {"without us": without, "scheduled us": under, "ratio": round(under / without, 4)}
    return seen


def machine():
    with open("/proc/cpuinfo") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "a processor")
    return f"{os.cpu_count()} cores of {model}, {os.uname().sysname} {os.uname().release}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xsched", required=True, help="the program; its library is looked for beside it")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--turns", type=int, default=4, help="of every scene in a run, with 25 requests each")
    parser.add_argument("--batches", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        stage = Stage(args.xsched, place)
        service = stage.start(stage.xsched, "serve", "--quiet")
        try:
            time.sleep(0.5)
            seen = {"date": datetime.date.today().isoformat(), "machine": machine(), "batches": args.batches, "runs": []}
            for _ in range(args.runs):
                run = {"load": os.getloadavg()[0], "overhead": overhead(stage, 2 * args.turns),
                       "latency ms": latency(stage, args.batches, args.turns, 25)}
                print(json.dumps(run), file=sys.stderr)
                seen["runs"].append(run)
        finally:
            service.kill()
            service.wait()
    json.dump(seen, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
