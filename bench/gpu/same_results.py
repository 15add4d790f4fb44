"""Do programs compute the same under XSched? Bit for bit, with a load competing for the GPU.

  python3 bench/gpu/same_results.py --xsched target/release/xsched [--only resnet152,bert] [--out FILE.json]

Runs each program without and with `xsched run` and compares the sha256 of what it computed. While it runs under XSched, the
scheduler is asked whether it really knows it: a program that is not scheduled proves nothing. A program that cannot run here
without XSched either is left out, with the reason.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from harness import HERE, Clock, Failure, Missing, Stage, end_on_signals

PROGRAMS = os.path.join(HERE, "same_results_programs.py")
PYTHON = ["resnet152", "bert", "graph", "training", "compile", "dataloader", "spawn", "cupy", "jax"]
C_PROGRAMS = {"cuda-c-static": "static", "cuda-c-shared": "shared"}
PATIENCE = 90
# XLA tries kernels out and takes the fastest, which depends on who else uses the GPU: not here.
VARIABLES = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
             "XLA_FLAGS": "--xla_gpu_autotune_level=0"}


def build_c(stage, kind):
    """With nvcc, which links the runtime either way."""
    nvcc = shutil.which("nvcc") or ("/usr/local/cuda/bin/nvcc" if os.path.exists("/usr/local/cuda/bin/nvcc") else None)
    if nvcc is None:
        raise Missing("nvcc is not installed")
    program = os.path.join(stage.directory, f"same_results_{kind}")
    done = subprocess.run([nvcc, "-O2", f"--cudart={kind}", "-o", program, os.path.join(HERE, "same_results.cu")],
                          capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise Failure(f"nvcc: {done.stderr[-800:]}")
    return [program]


def command_of(stage, name):
    if name in C_PROGRAMS:
        return build_c(stage, C_PROGRAMS[name])
    return [sys.executable, PROGRAMS, name]


class Watch:
    """Asks the scheduler, as long as a program runs, what it knows of it and of its children."""

    def __init__(self, stage, pid):
        self.stage, self.pid, self.seen, self.over = stage, pid, {}, threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self):
        while not self.over.is_set():
            try:
                for task in self.stage.ps().get("tasks", []):
                    if task["pid"] == self.pid or self.is_child(task["pid"]):
                        known = self.seen.setdefault(task["pid"], {"launches": 0, "preemptions": 0, "held_ms": 0})
                        known["launches"] = max(known["launches"], task["launches"])
                        known["preemptions"] = max(known["preemptions"], task["preemptions"])
                        known["held_ms"] = max(known["held_ms"], task["held_ns"] // 1_000_000)
            except (Failure, ValueError, KeyError):
                pass
            self.over.wait(0.05)

    def is_child(self, pid):
        """Every program is started in a session of its own, which its children are in too."""
        try:
            return os.getsid(pid) == self.pid
        except OSError:
            return False

    def end(self):
        self.over.set()
        self.thread.join(25)
        return list(self.seen.values())


def run(stage, name, command, options):
    """The sha256 that a program prints, how long it took, and what the scheduler knew of it."""
    began = time.monotonic()
    with stage.start(name, command, options, **VARIABLES) as program:
        watch = Watch(stage, program.pid) if options is not None else None
        try:
            result = program.expect("sha256", PATIENCE)
            known = watch.end() if watch else []
            status = program.end(30)
        finally:
            if watch:
                watch.over.set()
    if status != 0:
        raise Failure(f"{name} ended with {status}. {program.stderr()}")
    return {"sha256": result["sha256"], "seconds": round(time.monotonic() - began, 1), "tasks": known}


def compare(stage, name, report):
    command = command_of(stage, name)
    native = run(stage, name, command, None)
    scheduled = run(stage, name, command, ["--priority", "normal"])
    if native["sha256"] != scheduled["sha256"] and run(stage, name, command, None)["sha256"] != native["sha256"]:
        raise Failure(f"{name} gives another result every time, without XSched too")
    launches = sum(task["launches"] for task in scheduled["tasks"])
    report[name] = {"same": native["sha256"] == scheduled["sha256"], "scheduled": launches > 0, "launches": launches,
                    "native": native, "xsched": scheduled}
    verdict = "the same" if report[name]["same"] else "DIFFERENT"
    known = f"{launches} launches scheduled" if launches else "NOT SCHEDULED"
    print(f"    {name}: {verdict}, {known}, {native['seconds']} s and {scheduled['seconds']} s", flush=True)


def company(stage):
    """One more important than everybody else and one less, both without end: they interrupt, and are interrupted."""
    often = ["--kernels", 20, "--length-us", 100, "--requests", 1_000_000, "--period-ms", 15]
    for worker in (stage.worker("latency", *often, options=["--priority", "255"]),
                   stage.worker("load", "--length-us", 700, options=["--priority", "-255"])):
        stage.must_be_scheduled(worker, None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xsched", required=True)
    parser.add_argument("--only", default=",".join([*PYTHON, *C_PROGRAMS]))
    parser.add_argument("--together", type=int, default=4, help="how many at the same time: most of what they do is importing")
    parser.add_argument("--out")
    parser.add_argument("--budget-seconds", type=float, default=540)
    args = parser.parse_args()
    names = args.only.split(",")
    unknown = [name for name in names if name not in PYTHON and name not in C_PROGRAMS]
    if unknown:
        parser.error(f"there is no program {', '.join(unknown)}: there are {', '.join([*PYTHON, *C_PROGRAMS])}")
    end_on_signals()
    clock, stage, report = Clock(args.budget_seconds), Stage(args.xsched), {}
    try:
        stage.start_service()
        company(stage)
    except Failure as error:
        sys.exit(f"cannot compare: {error}")
    with ThreadPoolExecutor(args.together) as pool:
        list(pool.map(lambda name: clock.scene(name, 10, compare, stage, name, report), names))
    stage.close()
    different = [name for name in report if not report[name]["same"]]
    unscheduled = [name for name in report if not report[name]["scheduled"]]
    summary = {"same": sorted(set(report) - set(different)), "different": different, "not_scheduled": unscheduled,
               "failed": clock.errors, "skipped": clock.skipped, "programs": report}
    if args.out:
        with open(args.out, "w") as file:
            json.dump(summary, file, indent=1)
    print(json.dumps({key: value for key, value in summary.items() if key != "programs"}, indent=1))
    sys.exit(1 if different or unscheduled or not report else 0)


if __name__ == "__main__":
    main()
