"""Measures XSched on an NVIDIA GPU, in one command and about seven minutes, and keeps what was seen as JSON.

  python3 bench/gpu/run.py --xsched target/release/xsched

Starts a service of its own and ends it. Needs PyTorch, torchvision and transformers for the programs that are measured; without
them the rest is measured. What was left out, and what failed, is in the file too.
"""
import argparse
import datetime
import json
import os
import re
import subprocess
import sys

import sections
from harness import HERE, Clock, Failure, Stage, end_on_signals

RESULTS = os.path.join(os.path.dirname(HERE), "results")
# Name -> (function, place in the file, the programs it needs), in the order of what matters most.
PARTS = {
    "table": [(sections.table, ("table",), sections.table_crew), (sections.micro, ("table", "micro"), None)],
    "tokens": [sections.services("tokens")],
    "latency": [(sections.latency, ("latency",), None)],
    "overhead": [(sections.overhead, ("overhead",), sections.overhead_crew)],
    "shares": [(sections.shares, ("shares",), None)],
    "backgrounds": [(sections.backgrounds, ("backgrounds",), sections.backgrounds_crew)],
    "eager": [sections.services("eager")],
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xsched", required=True, help="the program; its library is looked for beside it")
    parser.add_argument("--out", help="where to write the results; else bench/results/, by the name of the GPU")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="fewer requests: to see that everything works")
    parser.add_argument("--budget-seconds", type=float, default=440)
    args = parser.parse_args()
    args.only = [part for part in args.only.split(",") if part]
    unknown = [part for part in args.only if part not in PARTS]
    if unknown or not args.only:
        parser.error(f"there is no section {', '.join(unknown)}: there are {', '.join(PARTS)}")
    if not os.access(args.xsched, os.X_OK):
        parser.error(f"{args.xsched} cannot be run")
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
    draft = path + ".draft"
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(draft, "w") as file:
        json.dump(results, file, indent=1)
        file.write("\n")
    os.replace(draft, path)


def calibrate(stage, results):
    with stage.worker("calibrate") as worker:
        seen = worker.expect(lambda event: "calibration" in event, 60)
    results.update(gpu=seen["gpu"], cuda=seen["cuda"], kernel_us_per_launch=seen["us_per_launch"])
    stage.calibration = ["--calibration", seen["calibration"]]
    print(f"{seen['gpu']}, driver {results['driver']}, CUDA {seen['cuda']}, xsched {results['xsched']}", flush=True)


def main():
    args = arguments()
    end_on_signals()
    clock, stage = Clock(args.budget_seconds), Stage(args.xsched)
    results = machine(args)
    try:
        stage.start_service()
        calibrate(stage, results)
    except Failure as error:
        sys.exit(f"cannot measure: {error}")
    path = args.out or os.path.join(RESULTS, re.sub("[^a-z0-9]+", "-", results["gpu"].lower()).strip("-") + ".json")
    results.update(skipped=clock.skipped, errors=clock.errors)
    crew = sections.Crew(stage, clock)
    parts = [part for name in args.only for part in PARTS[name]]
    try:
        needed = {}
        for _, _, programs in parts:
            needed.update(programs(stage.directory) if programs else {})
        crew.call(needed)
        results["pytorch"] = crew.versions.get("torch")
        for function, place, _ in parts:
            out = results
            for name in place:
                out = out.setdefault(name, {})
            clock.scene(place[-1], 5, function, stage, clock, crew, out, args.quick)
            write(path, results)
    finally:
        results["seconds"] = round(clock.spent())
        write(path, results)
        stage.close()
    print(f"\n{len(clock.errors)} scenes failed, {len(clock.skipped)} were left out, {clock.spent():.0f} s: {path}")
    sys.exit(1 if clock.errors else 0)


if __name__ == "__main__":
    main()
