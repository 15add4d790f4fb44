"""Measures XSched on an NVIDIA GPU in about seven minutes, and writes the results as JSON.

  python3 bench/gpu/run.py --xsched target/release/xsched

Starts its own service and ends it. The measured programs need PyTorch, torchvision and transformers; without these the rest is
measured. Skipped and failed scenarios are listed in the file.
"""
import argparse
import datetime
import json
import os
import re
import subprocess
import sys

import sections
from harness import HERE, Budget, Environment, Failure, end_on_signals

RESULTS = os.path.join(os.path.dirname(HERE), "results")
# Name -> (function, keys in the file, the programs it needs), most important first.
PARTS = {
    "table": [(sections.table, ("table",), sections.table_programs), (sections.micro, ("table", "micro"), None)],
    "tokens": [sections.services("tokens")],
    "latency": [(sections.latency, ("latency",), None)],
    "overhead": [(sections.overhead, ("overhead",), sections.overhead_programs)],
    "shares": [(sections.shares, ("shares",), None)],
    "backgrounds": [(sections.backgrounds, ("backgrounds",), sections.backgrounds_programs)],
    "eager": [sections.services("eager")],
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xsched", required=True, help="the program; its library is expected beside it")
    parser.add_argument("--out", help="the file for the results; by default bench/results/ with the name of the GPU")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="fewer requests: to check that everything works")
    parser.add_argument("--budget-seconds", type=float, default=440)
    args = parser.parse_args()
    args.only = [part for part in args.only.split(",") if part]
    unknown = [part for part in args.only if part not in PARTS]
    if unknown or not args.only:
        parser.error(f"unknown section {', '.join(unknown)}: use one of {', '.join(PARTS)}")
    if not os.access(args.xsched, os.X_OK):
        parser.error(f"{args.xsched} is not executable")
    return args


def output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def machine(args):
    driver = output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()
    try:
        with open("/proc/driver/nvidia/version") as file:
            text = file.read()
        kind = " (open kernel modules)" if "Open Kernel Module" in text else " (proprietary kernel modules)"
        driver = driver or re.findall(r"  (\d+\.[\d.]+)  ", text)[:1]
    except OSError:
        kind = ""
    return {"date": datetime.date.today().isoformat(), "gpu": None, "driver": (driver or ["unknown"])[0] + kind,
            "cuda": None, "pytorch": None, "python": sys.version.split()[0],
            "cpus": len(os.sched_getaffinity(0)),
            "xsched": output(args.xsched, "--version").removeprefix("xsched "),
            "command": "python3 bench/gpu/run.py --xsched PATH/TO/xsched"
                       + ("" if args.only == list(PARTS) else f" --only {','.join(args.only)}")
                       + (" --quick" if args.quick else "")
                       + ("" if args.budget_seconds == 440 else f" --budget-seconds {args.budget_seconds:g}"),
            "quick": args.quick}


def write(path, results):
    temporary = path + ".part"
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(temporary, "w") as file:
        json.dump(results, file, indent=1)
        file.write("\n")
    os.replace(temporary, path)


def calibrate(environment, results):
    with environment.worker("calibrate") as worker:
        seen = worker.expect(lambda event: "calibration" in event, 60)
    results.update(gpu=seen["gpu"], cuda=seen["cuda"], kernel_us_per_launch=seen["us_per_launch"])
    environment.calibration = ["--calibration", seen["calibration"]]
    print(f"{seen['gpu']}, driver {results['driver']}, CUDA {seen['cuda']}, xsched {results['xsched']}", flush=True)


def main():
    args = arguments()
    end_on_signals()
    budget, environment = Budget(args.budget_seconds), Environment(args.xsched)
    results = machine(args)
    try:
        environment.start_service()
        calibrate(environment, results)
    except Failure as error:
        sys.exit(f"cannot measure: {error}")
    path = args.out or os.path.join(RESULTS, re.sub("[^a-z0-9]+", "-", results["gpu"].lower()).strip("-") + ".json")
    results.update(skipped=budget.skipped, errors=budget.errors)
    pool = sections.ProgramPool(environment, budget)
    parts = [part for name in args.only for part in PARTS[name]]
    try:
        needed = {}
        for _, _, programs in parts:
            needed.update(programs(environment.directory) if programs else {})
        pool.start(needed)
        results["pytorch"] = pool.versions.get("torch")
        for function, keys, _ in parts:
            out = results
            for name in keys:
                out = out.setdefault(name, {})
            budget.run(keys[-1], 5, function, environment, budget, pool, out, args.quick)
            write(path, results)
    finally:
        results["seconds"] = round(budget.spent())
        write(path, results)
        environment.close()
    print(f"\n{len(budget.errors)} scenarios failed, {len(budget.skipped)} were skipped, {budget.spent():.0f} s: {path}")
    sys.exit(1 if budget.errors else 0)


if __name__ == "__main__":
    main()
