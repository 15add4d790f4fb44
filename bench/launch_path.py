"""Measures what XSched adds to a launch and to a wait, on the stand-in for NVIDIA's driver, and prints what was seen as JSON.

  cargo build --release --workspace
  python3 bench/launch_path.py [--rounds 7] > bench/results/launch-path.json

Without XSched, alone under it, and as the more important of two of which the other has nothing to do: all take turns, so that what else the
machine does meets all of them. The launches are such that the driver refuses at once. On the default stream the driver is asked
for the current context, too.
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
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "standins/cuda/tests"))
from standin import BUILT, Standin  # noqa: E402

LAUNCHES, WAITS = 1_000_000, 4_000
MEASURED = {"a launch on a stream of its own, ns": ["launches", "own", LAUNCHES],
            "a launch on the default stream, ns": ["launches", "default", LAUNCHES],
            "a kernel of 5 us, launched and waited for, us": ["foreground", "stream", WAITS, 1, 5, 0],
            "the same, waited for by an event, us": ["foreground", "event", WAITS, 1, 5, 0]}


class Stage(Standin):
    """The stand-in, the programs and a service."""

    def __init__(self, place):
        super().__init__(place, {words[0] for words in MEASURED.values()})

    def start(self, *command):
        return subprocess.Popen([str(word) for word in command], env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, options, name, *arguments):
        """What a program says, under the scheduler with these options, or without."""
        under = [] if options is None else [BUILT / "xsched", "run", *options, "--"]
        return self.start(*under, self.place / name, *arguments)

    def median(self, options, *words):
        with self.run(options, *words) as program:
            said, _ = program.communicate("\n", timeout=120)
        if program.returncode != 0:
            sys.exit(f"{' '.join(map(str, words))} ended with {program.returncode}")
        return statistics.median(float(line) for line in said.split() if line != "idle")

    @contextlib.contextmanager
    def idle(self):
        """Beside a less important program that has nothing to do."""
        with self.run(["--priority", "low"], "foreground", "stream", 1, 1, 5, 0) as program:
            while program.stdout.readline().strip() != "idle":
                pass
            try:
                yield
            finally:
                program.communicate("\n", timeout=30)

    @contextlib.contextmanager
    def service(self):
        with self.start(BUILT / "xsched", "serve", "--quiet") as service:
            try:
                until = time.monotonic() + 30
                while not (self.place / "socket").exists():
                    if time.monotonic() > until:
                        sys.exit("the service does not begin")
                    time.sleep(0.05)
                yield
            finally:
                service.terminate()


def measure(stage, rounds):
    seen = {what: {"without XSched": [], "alone under it": [], "beside one that is idle": []} for what in MEASURED}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        for what, words in MEASURED.items():
            seen[what]["without XSched"].append(stage.median(None, *words))
            seen[what]["alone under it"].append(stage.median(["--priority", "high"], *words))
        with stage.idle():
            for what, words in MEASURED.items():
                seen[what]["beside one that is idle"].append(stage.median(["--priority", "high"], *words))
    return {what: {scene: {"median": statistics.median(all_), "low": min(all_), "high": max(all_)} for scene, all_ in scenes.items()}
            for what, scenes in seen.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="xsched-launches-") as place:
        stage = Stage(place)
        with stage.service():
            seen = measure(stage, args.rounds)
    with open("/proc/cpuinfo") as file:
        processor = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "unknown")
    print(json.dumps({"date": datetime.date.today().isoformat(), "processor": f"{len(os.sched_getaffinity(0))} cores of {processor}",
                      "command": f"python3 bench/launch_path.py --rounds {args.rounds}", "seen": seen}, indent=1))


main()
