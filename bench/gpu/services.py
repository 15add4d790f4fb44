"""Measures services on an NVIDIA GPU beside trainings, natively and under XSched, and writes the results as JSON.

  python3 bench/gpu/services.py --xsched target/release/xsched

Repetitions of all settings are interleaved: alone, native, under XSched, and again. The services of the first scenarios are limited by
their host: they launch their kernels from Python one by one. Two processes of such a program differ by up to a third, so these are
also measured alone in the process that XSched schedules. A scenario replaces the one of an earlier run in the file.
"""
import argparse
import json
import os
import sys
import time
from statistics import fmean

import run
from harness import Budget, Environment, Failure, Program, end_on_signals, median, percentile, rates

LARGE, SMALL = "resnet50-training-256", "resnet50-training"
# Scenario -> (services with their periods in ms and their priorities, requests of the first one in a repetition, trainings).
# The first service is the one that is measured alone.
SCENARIOS = {
    "generate": ([("generate", 500.0, 100)], 8, [LARGE]),
    "bert": ([("bert-large-8", 33.0, 100)], 80, [LARGE]),
    "resnet": ([("resnet152-1", 36.0, 100)], 70, [LARGE]),
    "one": ([("resnet152-graph", 13.0, 100)], 130, [SMALL]),
    "two": ([("resnet152-graph", 13.0, 100)], 130, [SMALL] * 2),
    "four": ([("resnet152-graph", 13.0, 100)], 130, [SMALL] * 4),
    "three": ([("bert-large-8-graph", 23.0, 50), ("resnet152-graph", 13.0, 100)], 80, [SMALL]),
}
WHAT = {
    "generate": "GPT-2 with 24 layers, 20 tokens, eager, a request every 0.5 s, beside ResNet-50 training, batch 256",
    "bert": "BERT-large batch 8, eager, 50 % load, beside ResNet-50 training, batch 256",
    "resnet": "ResNet-152 batch 1, eager, 50 % load, beside ResNet-50 training, batch 256",
    "one": "ResNet-152 batch 1 as a CUDA graph beside ResNet-50 training, batch 64",
    "two": "the same beside two trainings",
    "four": "the same beside four trainings",
    "three": "BERT-large batch 8 as a CUDA graph, priority 50, beside ResNet-152 as a CUDA graph, priority 100, and training",
}
HOST_BOUND = ("generate", "bert", "resnet")
SETTINGS = ("alone", "native", "xsched", "alone under xsched")
KEYS = ("p50_ms", "p90_ms", "p99_ms", "max_ms")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xsched", required=True, help="the program; its library is expected beside it")
    parser.add_argument("--out", default=os.path.join(run.RESULTS, "h200-services.json"))
    parser.add_argument("--only", default=",".join(SCENARIOS), help=f"some of {','.join(SCENARIOS)}")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--budget-seconds", type=float, default=540)
    args = parser.parse_args()
    args.only, args.quick = args.only.split(","), args.repeat < 5
    unknown = [name for name in args.only if name not in SCENARIOS]
    if unknown:
        parser.error(f"unknown scenario {', '.join(unknown)}: use some of {', '.join(SCENARIOS)}")
    return args


def programs_of(scenario):
    """The programs that a scenario needs: key -> (program, the side it runs on, its priority)."""
    services, _, trainings = SCENARIOS[scenario]
    needed = {}
    for side in ("native", "xsched"):
        for model, _, priority in services:
            needed[f"{side} {model}"] = (model, side, priority)
        for number, training in enumerate(trainings):
            needed[f"{side} {training} {number}"] = (training, side, -100)
    return needed


def spread(values):
    return {"median": round(median(values), 3), "low": round(min(values), 3), "high": round(max(values), 3)}


def summary(repetitions):
    """The medians of the repetitions with their spread, and the percentiles of the requests of all of them."""
    cell = {key: spread([repetition["latencies"][key] for repetition in repetitions]) for key in KEYS}
    every = [latency for repetition in repetitions for latency in repetition["all_ms"]]
    cell["all_requests"] = {f"p{part}_ms": percentile(every, part) for part in (50, 90, 99)} | {"n": len(every)}
    if any(repetition["trainings_it_per_s"] for repetition in repetitions):
        cell["trainings_it_per_s"] = spread([sum(repetition["trainings_it_per_s"]) for repetition in repetitions])
    for repetition in repetitions:
        for model, latencies in repetition["others"].items():
            cell.setdefault("others", {}).setdefault(model, []).append(latencies["p99_ms"])
    cell["others"] = {model: {"p99_ms": spread(values)} for model, values in cell.get("others", {}).items()}
    cell["repetitions"] = [{key: value for key, value in repetition.items() if key != "all_ms"} for repetition in repetitions]
    return cell


def merged(earlier, results):
    """The results of this run, and those of earlier runs for the scenarios that this run did not measure. None if it measured nothing."""
    measured = results.get("services")
    if not measured:
        return None
    run_of_each = {key: results[key] for key in ("date", "xsched", "driver", "command")}
    return results | {"services": earlier.get("services", {}) | measured,
                      "runs": earlier.get("runs", {}) | dict.fromkeys(measured, run_of_each)}


class Measurement:
    def __init__(self, args):
        self.args, self.budget, self.environment = args, Budget(args.budget_seconds), Environment(args.xsched)
        self.results = run.machine(args)
        options = "" if args.only == list(SCENARIOS) else f" --only {','.join(args.only)}"
        options += "" if args.repeat == 5 else f" --repeat {args.repeat}"
        self.results["command"] = f"python3 bench/gpu/services.py --xsched PATH/TO/xsched{options}"
        self.results.update(skipped=self.budget.skipped, errors=self.budget.errors, services={})
        self.earlier = {}
        if os.path.exists(args.out):
            with open(args.out) as file:
                self.earlier = json.load(file)
        self.programs = {}

    def write(self):
        if document := merged(self.earlier, self.results):
            run.write(self.args.out, document)

    def start_programs(self):
        """Imports PyTorch in all programs at the same time."""
        needed = {}
        for scenario in self.args.only:
            needed.update(programs_of(scenario))
        for key, (program, side, priority) in needed.items():
            options = ["--priority", str(priority)] if side == "xsched" else None
            self.programs[key] = self.environment.python(program, options)
        for program in self.programs.values():
            self.results["pytorch"] = program.expect("imported", 120)["torch"]
        self.budget.log("imported")

    def prepare(self, keys):
        for key in keys:
            self.programs[key].send(do="prepare")
        for key in keys:
            self.programs[key].expect("ready", 120)

    def repetition(self, side, services, requests, trainings):
        """One repetition of one setting. The first service determines its length."""
        lows = [self.programs[f"{side} {training} {number}"] for number, training in enumerate(trainings)]
        for low in lows:
            low.send(do="start")
        time.sleep(0.8 if lows else 0)
        length = requests * services[0][1]
        for model, period, _ in services[1:]:
            self.programs[f"{side} {model}"].send(do="serve", requests=round(length / period), period_ms=period)
        model, period, _ = services[0]
        first = self.programs[f"{side} {model}"]
        first.send(do="serve", requests=requests, period_ms=period, all=True)
        result = first.expect("result", 120)
        others = {other: self.programs[f"{side} {other}"].expect("result", 120) for other, _, _ in services[1:]}
        for low in lows:
            low.send(do="stop")
        speeds = []
        for low in lows:
            steps = [(at, done) for done, at in enumerate(low.expect("stopped", 30)["ends"])]
            speeds.append(round(fmean(rates(steps, result["begin"], result["end"])), 3))
        return {"latencies": {key: result[key] for key in KEYS}, "all_ms": result["latencies_ms"], "trainings_it_per_s": speeds,
                "others": {other: {key: figures[key] for key in KEYS} for other, figures in others.items()}}

    def scenario(self, name):
        services, requests, trainings = SCENARIOS[name]
        self.prepare([key for key in programs_of(name) if key not in self.prepared])
        self.prepared.update(programs_of(name))
        settings = SETTINGS if name in HOST_BOUND else SETTINGS[:3]
        repetitions = {setting: [] for setting in settings}
        for _ in range(self.args.repeat):
            for setting in settings:
                side = "xsched" if "xsched" in setting else "native"
                beside = ([], services[:1]) if "alone" in setting else (trainings, services)
                repetitions[setting].append(self.repetition(side, beside[1], requests, beside[0]))
        cells = {setting: summary(values) for setting, values in repetitions.items()}
        for setting, cell in cells.items():
            # In the same process, where that was measured.
            alone = cells["alone under xsched" if setting == "xsched" and name in HOST_BOUND else "alone"]["p99_ms"]["median"]
            background = cell.get("trainings_it_per_s")
            print(f"{name:9} {setting:18} " + "  ".join(f"{key[:3]} {cell[key]['median']:7.2f} ({cell[key]['low']:.2f}-{cell[key]['high']:.2f})" for key in KEYS[:3])
                  + f"  p99 / alone {cell['p99_ms']['median'] / alone:.2f}  all p99 {cell['all_requests']['p99_ms']:.2f}"
                  + (f"  trainings {background['median']:.2f} ({background['low']:.2f}-{background['high']:.2f})" if background else "")
                  + "".join(f"  {model} p99 {other['p99_ms']['median']:.2f}" for model, other in cell["others"].items()), flush=True)
        self.results["services"][name] = {"what": WHAT[name], "settings": cells}
        self.write()

    def end_unneeded(self, left):
        """Ends programs that no scenario that is left needs: two services of the same priority would share the GPU as peers."""
        needed = {key for name in left for key in programs_of(name)}
        for key in [key for key in self.programs if key not in needed]:
            self.programs.pop(key).end(0.5)

    def run(self):
        self.environment.start_service()
        run.calibrate(self.environment, self.results)
        self.start_programs()
        self.prepared = set()
        for number, name in enumerate(self.args.only):
            services, requests, trainings = SCENARIOS[name]
            seconds = self.args.repeat * (4 if name in HOST_BOUND else 3) * (requests * services[0][1] / 1e3 + 1.2) + 8
            self.budget.run(f"services: {name}", seconds, self.scenario, name)
            self.end_unneeded(self.args.only[number + 1:])


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
