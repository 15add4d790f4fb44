"""Measures XSched on an NVIDIA GPU while other processes keep the CPUs busy, and writes the results as JSON.

  python3 bench/gpu/busy_cpus.py --xsched target/release/xsched

Services of high priority beside training of low priority, with 0 to 48 processes that only compute. Repetitions of all settings are
interleaved. A scenario replaces the one of an earlier run in the file. "static" is the hardware's part alone: time slices of 10 ms and 1 us, set when the contexts are created, and no scheduler.
"""
import argparse
import json
import os
import subprocess
import sys
import time
from statistics import fmean

import run
from harness import HERE, Budget, Environment, Failure, Program, end_on_signals, median, percentile, rates

TRAINING = "resnet50-training-256"
SMALL_TRAINING = "resnet50-training"
# Scenario -> (foreground, request period in ms, requests of a repetition, backgrounds, settings, busy processes).
SCENARIOS = {
    "graph": ("resnet152-graph", 13.0, 150, 1, ("alone", "native", "static", "xsched"), (0, 16, 24, 48)),
    "two": ("resnet152-graph", 13.0, 150, 2, ("alone", "native", "xsched"), (24, 48)),
    "tokens": ("tokens-graph", 40.0, 40, 1, ("alone", "native", "static", "xsched"), (0, 24, 48)),
}
WHAT = {"graph": "ResNet-152 fp16 batch 1 as a CUDA graph, beside ResNet-50 training, batch 256",
        "two": "the same beside two trainings, batches 256 and 64",
        "tokens": "20 tokens as CUDA graphs, each waited for, beside ResNet-50 training, batch 256"}
DECISION_LOADS = (0, 16, 24, 48)


class BusyProcesses:
    """Processes that only compute."""

    def __init__(self, count):
        self.count, self.processes = count, []

    def __enter__(self):
        self.processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(self.count)]
        time.sleep(0.5 if self.count else 0)

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xsched", required=True, help="the program; its library is expected beside it")
    parser.add_argument("--out", default=os.path.join(run.RESULTS, "busy-cpus.json"))
    parser.add_argument("--only", default="graph,two,tokens,decisions")
    parser.add_argument("--loads", help="numbers of busy processes, instead of those of each scenario")
    parser.add_argument("--settings", help="some of alone,native,static,xsched; alone is needed")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--budget-seconds", type=float, default=500)
    args = parser.parse_args()
    args.only, args.quick = args.only.split(","), args.repeat < 5
    if args.quick and not read(args.out).get("quick", True):
        parser.error(f"{args.out} has complete measurements: name another file with --out")
    return args


def read(path):
    """The results of earlier runs."""
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        return json.load(file)


def merged(earlier, results):
    """The results of this run, and those of earlier runs for the scenarios that this run did not measure. None if it measured nothing."""
    measured = results.get("busy_cpus")
    if not measured:
        return None
    run_of_each = {"date": results["date"], "xsched": results["xsched"], "driver": results["driver"], "command": results["command"]}

    def kept(entries):
        return [entry for entry in entries if entry["what"].partition(": ")[2].partition(",")[0] not in measured]
    return results | {
        "busy_cpus": earlier.get("busy_cpus", {}) | measured,
        "runs": earlier.get("runs", {}) | dict.fromkeys(measured, run_of_each),
        "skipped": kept(earlier.get("skipped", [])) + results.get("skipped", []),
        "errors": kept(earlier.get("errors", [])) + results.get("errors", []),
    }


class Measurement:
    def __init__(self, args):
        self.args, self.budget, self.environment = args, Budget(args.budget_seconds), Environment(args.xsched)
        self.results = run.machine(args)
        options = [f"--{name} {value}" for name, value in (("only", ",".join(args.only)), ("loads", args.loads), ("settings", args.settings), ("repeat", args.repeat)) if value]
        self.results["command"] = " ".join(["python3 bench/gpu/busy_cpus.py --xsched PATH/TO/xsched", *options])
        self.earlier, self.programs = read(args.out), {}

    def write(self):
        """Writes the file, unless nothing was measured."""
        if document := merged(self.earlier, self.results):
            run.write(self.args.out, document)

    def start_programs(self):
        """Imports PyTorch in all programs at the same time."""
        library = os.path.join(self.environment.directory, "static_slices.so")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, os.path.join(HERE, "static_slices.c"), "-ldl"], check=True)
        needed = {"native low 1": (TRAINING, "native", "low"), "native low 2": (SMALL_TRAINING, "native", "low"),
                  "static low 1": (TRAINING, "static", "low"), "xsched low 1": (TRAINING, "xsched", "low"),
                  "xsched low 2": (SMALL_TRAINING, "xsched", "low")}
        if "two" not in self.args.only:
            needed = {name: program for name, program in needed.items() if name.endswith("1")}
        for model in {SCENARIOS[name][0] for name in self.args.only if name in SCENARIOS}:
            for setting in ("native", "static", "xsched"):
                needed[f"{setting} {model}"] = (model, setting, "high")
        for name, (program, setting, priority) in needed.items():
            options = ["--priority", priority] if setting == "xsched" else None
            slices = {"LD_PRELOAD": library, "STATIC_SLICE_US": 10_000 if priority == "high" else 1}
            variables = slices if setting == "static" else {}
            self.programs[name] = self.environment.python(program, options, **variables)
        for program in self.programs.values():
            self.results["pytorch"] = program.expect("imported", 120)["torch"]

    def prepare(self, *names):
        for name in names:
            self.programs[name].send(do="prepare")
        for name in names:
            self.programs[name].expect("ready", 90)

    def beside(self, high, lows, requests, period):
        """One repetition: figures of the foreground, and the rate of each background."""
        lows = [self.programs[low] for low in lows]
        for low in lows:
            low.send(do="start")
        time.sleep(0.7 if lows else 0)
        high.send(do="serve", requests=requests, period_ms=period, all=True)
        result = high.expect("result", 90)
        for low in lows:
            low.send(do="stop")
        background = []
        for low in lows:
            steps = [(at, done) for done, at in enumerate(low.expect("stopped", 30)["ends"])]
            background.append(round(fmean(rates(steps, result["begin"], result["end"])), 3))
        keys = ("p50_ms", "p90_ms", "p99_ms", "max_ms")
        return {**{key: result[key] for key in keys}, "background_it_per_s": background}, result["latencies_ms"]

    def scenario(self, name):
        model, period, requests, backgrounds, settings, loads = SCENARIOS[name]
        loads = [int(load) for load in self.args.loads.split(",")] if self.args.loads else loads
        settings = [setting for setting in settings if not self.args.settings or setting in self.args.settings.split(",")]
        for load in loads:
            cells = {}
            latencies = {setting: [] for setting in settings}
            took = self.args.repeat * len(settings) * (requests * period / 1e3 + 1)
            if self.budget.left() < took + 5:
                self.budget.skip(f"busy_cpus: {name}, {load} busy processes", f"needs {took:.0f} s")
                continue
            with BusyProcesses(load):
                for _ in range(self.args.repeat):
                    for setting in settings:
                        side = "native" if setting == "alone" else setting
                        lows = [] if setting == "alone" else [f"{side} low {n + 1}" for n in range(backgrounds)]
                        figures, values = self.beside(self.programs[f"{side} {model}"], lows, requests, period)
                        cells.setdefault(setting, {"repetitions": []})["repetitions"].append(figures)
                        latencies[setting] += values
            for setting in settings:
                self.summarize(cells[setting], latencies[setting])
                self.show(f"{name} {load:2} {setting}", cells[setting], cells["alone"])
            part = self.results.setdefault("busy_cpus", {}).setdefault(name, {"what": WHAT[name], "loads": {}})
            part["loads"][str(load)] = cells
            self.write()

    @staticmethod
    def summarize(cell, latencies):
        """The median of the repetitions with their spread, and percentiles of the requests of all of them."""
        for key in ("p50_ms", "p90_ms", "p99_ms"):
            values = [figures[key] for figures in cell["repetitions"]]
            cell[key] = {"median": median(values), "low": min(values), "high": max(values)}
        cell["all_requests"] = {f"p{part}_ms": percentile(latencies, part) for part in (50, 90, 99)} | {"n": len(latencies)}
        sums = [sum(figures["background_it_per_s"]) for figures in cell["repetitions"]]
        if any(sums):
            cell["background_it_per_s"] = {"median": round(median(sums), 3), "low": round(min(sums), 3), "high": round(max(sums), 3)}

    @staticmethod
    def show(what, cell, alone):
        cells = "  ".join(f"{key[:3]} {cell[key]['median']:6.2f} ({cell[key]['low']:.2f}-{cell[key]['high']:.2f})"
                          for key in ("p50_ms", "p90_ms", "p99_ms"))
        background = cell.get("background_it_per_s")
        print(f"{what:20} {cells}  all p99 {cell['all_requests']['p99_ms']:6.2f}"
              f"  p99 / alone {cell['p99_ms']['median'] / alone['p99_ms']['median']:.2f}"
              + (f"  background {background['median']:.2f} ({background['low']:.2f}-{background['high']:.2f})" if background else ""), flush=True)

    def decisions(self):
        """The time from a leader's launch to the orders of all other clients, without the GPU."""
        part = {}
        for load in DECISION_LOADS:
            with BusyProcesses(load):
                done = subprocess.run([self.args.xsched, "bench", "service", "--clients", "8", "--rounds", "1000", "--json"],
                                      capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
            if done.returncode != 0:
                raise Failure(f"xsched bench service: {done.stderr.strip()}")
            part[str(load)] = json.loads(done.stdout)["decision"]
            print(f"decisions {load:2} busy: {part[str(load)]}", flush=True)
        self.results.setdefault("busy_cpus", {})["decisions"] = part

    def run(self):
        self.environment.start_service()
        run.calibrate(self.environment, self.results)
        self.results.update(skipped=self.budget.skipped, errors=self.budget.errors)
        self.start_programs()
        self.budget.log("imported")
        for number in (1, 2):
            self.prepare(*(name for name in self.programs if name.endswith(f"low {number}")))
        shown = None
        for name in [name for name in SCENARIOS if name in self.args.only]:
            model = SCENARIOS[name][0]
            if model != shown:
                # Two services of the same priority would share the GPU as peers.
                for program in [program for program in self.programs if shown and program.endswith(shown)]:
                    self.programs.pop(program).end(0.5)
                self.prepare(*(program for program in self.programs if program.endswith(model)))
                shown = model
            self.budget.run(f"busy_cpus: {name}", 10, self.scenario, name)
        if "decisions" in self.args.only:
            self.environment.close()
            self.budget.run("busy_cpus: decisions", 40, self.decisions)


def main():
    args = arguments()
    end_on_signals()
    measurement = Measurement(args)
    try:
        measurement.run()
    except Failure as error:
        sys.exit(f"cannot measure: {error}")
    finally:
        measurement.results["seconds"] = round(measurement.budget.spent())
        measurement.write()
        measurement.environment.close()
        for program in list(Program.alive):
            program.end(0.5)
    sys.exit(1 if measurement.budget.errors else 0)


if __name__ == "__main__":
    main()
