"""Measures XSched on AMD's real HIP runtimes over the stand-in for ROCr.

  cargo build --release --workspace
  XSCHED_ROCM_6=DIR [XSCHED_ROCM_7=DIR] python3 bench/hip_runtime.py

The variables name root directories with AMD's runtimes that scripts/rocm-root made. Each runtime's results are written as JSON:
hip-runtime.json for HIP 6, hip-runtime-7.json for HIP 7. The program has the shape of PyTorch
(crates/xsched/tests/programs/torch_shape); AMD's compiler is in the first root directory. Real are the runtime, its libraries and every
packet; the device and the duration of kernels are simulated. The runtimes, and all scenarios of a repetition, alternate, so that other
load on the machine affects all of them. Ratios compare measurements of one repetition.
"""
import argparse
import contextlib
import datetime
import glob
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading

import local_machine
from reaction import REACTION_NS

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIBRARIES = "usr/lib/x86_64-linux-gnu"
ROCM_ROOT = ROOT / "scripts/rocm-root"
# A request is so many kernels of so many microseconds, and the next one arrives after so many milliseconds.
KERNELS, KERNEL_US, PERIOD_MS = 8, 1000, 25
LOW_KERNELS_US = (500, 2000)
# The in-flight window of level 1.
BUDGET_MS = 1.0
# Launches of the low-priority program are counted separately from this time after the start of a request.
REACTION_MS = REACTION_NS / 1e6
# The first requests are reported by themselves: the library connects to the service with the first launch, and what the other program launched
# while it was alone is ahead of them.
WARM_UP = 4
PROGRAM_TIMEOUT = 60
# One process with and one without XSched differ by up to 300 ns a launch, both ways, because of where their memory and threads are. So
# several processes of each kind alternate.
COST_PROCESSES = 8
# The options, the environment, and the machine: a driver that saves running waves, or one that does not.
LEVELS = {3: (["--level", "3"], {}, "gpu"),
          2: (["--level", "2"], {"GPU_STREAMOPS_CP_WAIT": "1", "KFD_STANDIN_CWSR": "0"}, "gpu-without-saved-waves"),
          1: (["--level", "1"], {}, "gpu")}
# The file of the results, by the variable that names the root directory.
RESULTS = {"XSCHED_ROCM_6": "hip-runtime.json", "XSCHED_ROCM_7": "hip-runtime-7.json"}


def percentile(values, percent):
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def spread(values):
    return {"median": round(statistics.median(values), 4), "low": round(min(values), 4), "high": round(max(values), 4)}


class Packet:
    """A kernel in the stand-in's ledger."""

    def __init__(self, fields):
        self.pid, self.kernel = int(fields[0]), fields[4]
        self.start, self.end, self.submitted = int(fields[6]), int(fields[7]), int(fields[10])


def read_ledger(text):
    """The kernels of the program; copies, barriers and the runtime's own kernels do not count."""
    lines = (line.split(" ") for line in text.splitlines())
    return [Packet(fields) for fields in lines if len(fields) >= 11 and fields[3] == "kernel" and fields[4].startswith("spin_")]


def busy_spans(packets):
    """The spans in which a program has work, from the first submission of a request to the end of its last kernel."""
    spans = []
    for packet in sorted(packets, key=lambda packet: packet.submitted):
        if spans and packet.submitted <= spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], packet.end)
        else:
            spans.append([packet.submitted, packet.end])
    return spans


def intrusions(high, low, reaction_ns):
    """How many kernels of the low-priority program were submitted, and how many started, while the other one had work: in all, and
    later than the reaction time."""
    spans = busy_spans(high)
    counts = {"requests": len(spans), "submitted": 0, "submitted_later": 0, "started": 0, "started_later": 0, "last_start_ms": 0.0}
    for packet in low:
        for what, at in (("submitted", packet.submitted), ("started", packet.start)):
            span = next((span for span in spans if span[0] < at < span[1]), None)
            if span:
                counts[what] += 1
                counts[what + "_later"] += at - span[0] > reaction_ns
                if what == "started":
                    counts["last_start_ms"] = max(counts["last_start_ms"], round((at - span[0]) / 1e6, 3))
    return counts


def check_mechanism(level, levels, driver_log, low_ledger):
    """Exits unless the queues had the level, and the low-priority program was stopped in the way of that level: by the driver at level 3,
    at stop points at level 2. A stop point waits for a signal that the host stores to; the runtime's own barriers of this type wait for none."""
    stops = driver_log.count(" share 0 ")
    packets = (line.split(" ") for line in low_ledger.splitlines())
    stop_points = sum(1 for fields in packets if fields[3:4] == ["barrier-value"] and fields[5:6] != ["-"])
    if set(levels) != {level} or (stops > 0) != (level == 3) or (stop_points > 0) != (level == 2):
        sys.exit(f"measured at level {level}: the queues had the levels {levels}, the driver was told to stop {stops} queues, and the "
                 f"low-priority program had {stop_points} stop points")


class Environment:
    """The root directory, the stand-ins, the program and a service, in a directory with the same path on both sides."""

    def __init__(self, root, compiler_root, built, directory):
        self.root, self.directory, self.built = pathlib.Path(root).resolve(), pathlib.Path(directory), pathlib.Path(built).resolve()
        standins = self.directory / "standins"
        standins.mkdir()
        # The runtime looks itself up by the name that only development packages install.
        runtime = self.library("libamdhip64.so.[0-9]")
        os.symlink(f"/{LIBRARIES}/{os.path.basename(runtime)}", standins / "libamdhip64.so")
        shutil.copy(self.built / "libkfd_standin.so", standins)
        subprocess.run([ROOT / "standins/rocr/link.sh", self.built / "librocr_standin.a", standins / "libhsa-runtime64.so.1"], check=True)
        found = [self.library(name) for name in ("librocblas.so.[0-9]", "libhipblaslt.so.[0-9]", "libMIOpen.so.[0-9]", "librocrand.so.[0-9]")]
        subprocess.run([ROOT / "crates/xsched/tests/programs/torch_shape/build.sh", self.directory / "program", runtime, *filter(None, found)], check=True,
                       env={**os.environ, "ROOT": str(pathlib.Path(compiler_root).resolve())})
        self.runtime = os.path.basename(os.path.realpath(runtime))

    def library(self, pattern):
        return next(iter(sorted(glob.glob(str(self.root / "root" / LIBRARIES / pattern)))), None)

    def variables(self):
        keep = {name: value for name, value in os.environ.items() if not name.startswith(("XSCHED_", "LD_", "ROCR_", "KFD_", "HSA_", "HIP_"))}
        return {**keep, "XSCHED_SOCKET": str(self.directory / "socket"), "ROCR_STANDIN_DEVICE": str(self.directory / "gpu")}

    def levels(self):
        """The preemption levels of the queues that are scheduled now."""
        listed = subprocess.run([self.built / "xsched", "ps", "--json", "--sample", "1ms"], env=self.variables(), capture_output=True, text=True, check=True)
        return [queue["level"] for queue in json.loads(listed.stdout)["queues"]]

    def start(self, options, arguments, more=None, ledger=None):
        """Starts the program in the root directory: under the scheduler with these options, or without."""
        words = [str(self.directory / "program/python"), *map(str, arguments)]
        if options is not None:
            words = [str(self.built / "xsched"), "run", *options, "--", *words]
        inside = {**(more or {}), **({"ROCR_STANDIN_LEDGER": str(ledger)} if ledger else {})}
        command = [str(ROCM_ROOT), "exec", str(self.root), "--standins", str(self.directory / "standins"), "--bind", str(self.built),
                   "env", *(f"{name}={value}" for name, value in inside.items()), *words]
        return subprocess.Popen(command, env=self.variables(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def output(self, options, arguments, more=None, ledger=None):
        with self.start(options, arguments, more, ledger) as program:
            try:
                output, errors = program.communicate(timeout=PROGRAM_TIMEOUT)
            except subprocess.TimeoutExpired:
                program.kill()
                sys.exit(f"{options} {arguments} did not exit within {PROGRAM_TIMEOUT} s")
        if program.returncode != 0:
            sys.exit(f"{options} {arguments} exited with {program.returncode}: {output}{errors}")
        # The program first prints what it found on the device.
        return [line.split() for line in output.splitlines() if line[:1].isdigit()]

    @contextlib.contextmanager
    def low(self, options, length_us, more=None, ledger=None):
        """Runs the measurement beside a program that always has work."""
        options = None if options is None else ["--priority", "low", "--name", "low", *options]
        with self.start(options, ["loop", 8, length_us, 0, 1], more, ledger) as program:
            try:
                if not any(line.startswith("round 3") for line in program.stdout):
                    sys.exit(f"the low-priority program exited: {program.stderr.read()}")
                # The program would block when the pipe is full.
                threading.Thread(target=program.stdout.read, daemon=True).start()
                yield
            finally:
                program.kill()
                program.wait()

    def service(self):
        return local_machine.service(self.built / "xsched", self.variables(), self.directory / "socket")


def launch_cost(environment, batches):
    """Nanoseconds for one launch: on the clock and of the launching thread's CPU time; the median and the cheapest of the batches of a process. Each value
    is the median of several processes."""
    kinds = {"without XSched": None, "alone under XSched": ["--priority", "high"]}
    seen = {name: {"clock": [], "clock_min": [], "cpu": [], "cpu_min": []} for name in kinds}
    for number in range(COST_PROCESSES):
        for name in sorted(kinds, reverse=number % 2 == 1):
            clock, cpu = zip(*((float(part) for part in line) for line in environment.output(kinds[name], ["cost", batches])))
            for kind, value in (("clock", statistics.median(clock)), ("clock_min", min(clock)), ("cpu", statistics.median(cpu)), ("cpu_min", min(cpu))):
                seen[name][kind].append(value)
    return {name: {kind: statistics.median(values) for kind, values in of_kind.items()} for name, of_kind in seen.items()}


def requests(environment, options, count, more=None, ledger=None):
    high = None if options is None else ["--priority", "high", "--name", "high", *options]
    lines = environment.output(high, ["requests", WARM_UP + count, KERNELS, KERNEL_US, PERIOD_MS], more, ledger)
    return [int(line[0]) / 1e6 for line in lines]


def latencies(environment, count, number):
    """The latency of requests in ms, by scenario, and what the ledger says about both programs."""
    took, seen = {"alone": requests(environment, None, count)}, {}
    for length_us in LOW_KERNELS_US:
        beside = f"beside kernels of {length_us / 1000:g} ms"
        with environment.low(None, length_us):
            took[f"native, {beside}"] = requests(environment, None, count)
        for level, (options, more, machine) in LEVELS.items():
            scenario = f"level {level}, {beside}"
            files = {name: environment.directory / f"{number}-{level}-{length_us}-{name}" for name in ("high", "low", "driver")}
            more = {**more, "ROCR_STANDIN_DEVICE": str(environment.directory / machine), "KFD_STANDIN_LOG": str(files["driver"])}
            with environment.low(options, length_us, more, files["low"]):
                levels = environment.levels()
                took[scenario] = requests(environment, options, count, more, files["high"])
            texts = {name: file.read_text() for name, file in files.items()}
            check_mechanism(level, levels, texts["driver"], texts["low"])
            high, low = (read_ledger(texts[name]) for name in ("high", "low"))
            if not high or not low:
                sys.exit(f"{scenario}: the ledgers contain no kernels of the program")
            seen[scenario] = intrusions(high, low, REACTION_MS * 1e6)
            for file in files.values():
                file.unlink()
    return took, seen


class Measurement:
    """The repetitions with one runtime."""

    def __init__(self, environment):
        self.environment, self.costs, self.took, self.first, self.seen, self.loads = environment, [], [], [], [], []

    def repeat(self, number, count, batches):
        self.loads.append(round(os.getloadavg()[0], 2))
        print(f"{self.environment.runtime}: repetition {number + 1}, load {self.loads[-1]}", file=sys.stderr)
        self.costs.append(launch_cost(self.environment, batches))
        took, seen = latencies(self.environment, count, number)
        self.first.append({name: max(values[:WARM_UP]) for name, values in took.items()})
        self.took.append({name: values[WARM_UP:] for name, values in took.items()})
        self.seen.append(seen)
        p99 = {name: round(percentile(values, 99), 3) for name, values in self.took[-1].items()}
        print(json.dumps({"cost": self.costs[-1], "p99 ms": p99, "low kernels": seen}), file=sys.stderr)

    def results(self):
        costs, took, seen = self.costs, self.took, self.seen
        cost = {name: {kind: spread([one[name][kind] for one in costs]) for kind in costs[0][name]} for name in costs[0]}
        cost["added"] = {kind: spread([one["alone under XSched"][kind] - one["without XSched"][kind] for one in costs]) for kind in costs[0]["without XSched"]}
        latency = {}
        for name in took[0]:
            p50, p99 = ([percentile(one[name], percent) for one in took] for percent in (50, 99))
            alone = [percentile(one["alone"], 99) for one in took]
            latency[name] = {"first_ms": spread([one[name] for one in self.first]), "p50_ms": spread(p50), "p99_ms": spread(p99),
                             "p99_of_alone": spread([own / other for own, other in zip(p99, alone)]), "p99_added_ms": spread([own - other for own, other in zip(p99, alone)])}
            if name in seen[0]:
                totals = {key: sum(one[name][key] for one in seen) for key in ("requests", "submitted", "submitted_later", "started", "started_later")}
                latency[name]["low_kernels"] = {**totals, "last_start_ms": max(one[name]["last_start_ms"] for one in seen)}
        return {"load_average": spread(self.loads), "launch_ns": cost, "latency": latency}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--built", default=str(ROOT / "target/release"), help="the directory of xsched, its library and the stand-ins")
    parser.add_argument("--results", default=str(ROOT / "bench/results"), help="the directory of the results")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--requests", type=int, default=100, help="requests of each scenario in a repetition")
    parser.add_argument("--batches", type=int, default=200, help="batches of 1000 launches of each process that measures their cost")
    args = parser.parse_args()
    roots = {variable: os.environ[variable] for variable in RESULTS if os.environ.get(variable)}
    if not roots:
        parser.error("XSCHED_ROCM_6 and XSCHED_ROCM_7 name no root directory (scripts/rocm-root)")
    version = subprocess.run([pathlib.Path(args.built) / "xsched", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    with contextlib.ExitStack() as contexts:
        measurements = {}
        for variable, root in roots.items():
            directory = contexts.enter_context(tempfile.TemporaryDirectory(prefix="xsched-hip-runtime-"))
            environment = Environment(root, next(iter(roots.values())), args.built, directory)
            contexts.enter_context(environment.service())
            measurements[variable] = Measurement(environment)
        for number in range(args.repetitions):
            for measurement in measurements.values():
                measurement.repeat(number, args.requests, args.batches)
    for variable, measurement in measurements.items():
        described = {"date": datetime.date.today().isoformat(), "machine": local_machine.machine(), "runtime": measurement.environment.runtime, "version": version,
                     "repetitions": args.repetitions, "requests": args.requests, "batches": args.batches,
                     "request": f"{KERNELS} kernels of {KERNEL_US / 1000:g} ms every {PERIOD_MS} ms", "warm_up": WARM_UP, "budget_ms": BUDGET_MS, "reaction_ms": REACTION_MS}
        file = pathlib.Path(args.results) / RESULTS[variable]
        file.write_text(json.dumps({**described, **measurement.results()}, indent=1) + "\n")
        print(f"wrote {file}", file=sys.stderr)


if __name__ == "__main__":
    main()
