"""Checks that programs compute the same results under XSched, bit for bit, with a competing load on the GPU.

  python3 bench/gpu/same_results.py --xsched target/release/xsched [--only resnet152,bert] [--out FILE.json]

Runs each program without and with `xsched run` and compares the sha256 of its results. While it runs under XSched, the scheduler is
queried for its task: a program that is not scheduled proves nothing. A program that does not run without XSched either is skipped,
with the reason.
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

from harness import HERE, Budget, Failure, Missing, Environment, end_on_signals

PROGRAMS = os.path.join(HERE, "same_results_programs.py")
PYTHON = ["resnet152", "bert", "graph", "training", "compile", "dataloader", "spawn", "cupy", "jax"]
C_PROGRAMS = {"cuda-c-static": "static", "cuda-c-shared": "shared"}
RESULT_TIMEOUT_S = 90
# XLA measures kernels and selects the fastest, which depends on the other load on the GPU: disabled.
VARIABLES = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
             "XLA_FLAGS": "--xla_gpu_autotune_level=0"}


def build_c(environment, kind):
    """Compiles with nvcc, which links the runtime statically or dynamically."""
    nvcc = shutil.which("nvcc") or ("/usr/local/cuda/bin/nvcc" if os.path.exists("/usr/local/cuda/bin/nvcc") else None)
    if nvcc is None:
        raise Missing("nvcc is not installed")
    program = os.path.join(environment.directory, f"same_results_{kind}")
    done = subprocess.run([nvcc, "-O2", f"--cudart={kind}", "-o", program, os.path.join(HERE, "same_results.cu")],
                          capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise Failure(f"nvcc: {done.stderr[-800:]}")
    return [program]


def command_of(environment, name):
    if name in C_PROGRAMS:
        return build_c(environment, C_PROGRAMS[name])
    return [sys.executable, PROGRAMS, name]


class Watch:
    """Queries the scheduler for the tasks of a program and its children while the program runs."""

    def __init__(self, environment, pid):
        self.environment, self.pid, self.seen, self.over = environment, pid, {}, threading.Event()
        self.thread = threading.Thread(target=self.poll, daemon=True)
        self.thread.start()

    def poll(self):
        while not self.over.is_set():
            try:
                for task in self.environment.ps().get("tasks", []):
                    if task["pid"] == self.pid or self.is_child(task["pid"]):
                        known = self.seen.setdefault(task["pid"], {"launches": 0, "preemptions": 0, "held_ms": 0})
                        known["launches"] = max(known["launches"], task["launches"])
                        known["preemptions"] = max(known["preemptions"], task["preemptions"])
                        known["held_ms"] = max(known["held_ms"], task["held_ns"] // 1_000_000)
            except (Failure, ValueError, KeyError):
                pass
            self.over.wait(0.05)

    def is_child(self, pid):
        """Every program is started in its own session, which its children inherit."""
        try:
            return os.getsid(pid) == self.pid
        except OSError:
            return False

    def end(self):
        self.over.set()
        self.thread.join(25)
        return list(self.seen.values())


def run(environment, name, command, options):
    """Runs a program. Returns its sha256, its duration, and the tasks that the scheduler reported."""
    began = time.monotonic()
    with environment.start(name, command, options, **VARIABLES) as program:
        watch = Watch(environment, program.pid) if options is not None else None
        try:
            result = program.expect("sha256", RESULT_TIMEOUT_S)
            known = watch.end() if watch else []
            status = program.end(30)
        finally:
            if watch:
                watch.over.set()
    if status != 0:
        raise Failure(f"{name} exited with {status}. {program.stderr()}")
    return {"sha256": result["sha256"], "seconds": round(time.monotonic() - began, 1), "tasks": known}


def compare(environment, name, report):
    command = command_of(environment, name)
    native = run(environment, name, command, None)
    scheduled = run(environment, name, command, ["--priority", "normal"])
    if native["sha256"] != scheduled["sha256"] and run(environment, name, command, None)["sha256"] != native["sha256"]:
        raise Failure(f"{name} gives different results in every run, without XSched too")
    launches = sum(task["launches"] for task in scheduled["tasks"])
    report[name] = {"same": native["sha256"] == scheduled["sha256"], "scheduled": launches > 0, "launches": launches,
                    "native": native, "xsched": scheduled}
    verdict = "the same" if report[name]["same"] else "DIFFERENT"
    known = f"{launches} launches scheduled" if launches else "NOT SCHEDULED"
    print(f"    {name}: {verdict}, {known}, {native['seconds']} s and {scheduled['seconds']} s", flush=True)


def start_competitors(environment):
    """Starts one program with the highest and one with the lowest priority, both endless: the tested programs are preempted and preempt."""
    often = ["--kernels", 20, "--length-us", 100, "--requests", 1_000_000, "--period-ms", 15]
    for worker in (environment.worker("latency", *often, options=["--priority", "255"]),
                   environment.worker("load", "--length-us", 700, options=["--priority", "-255"])):
        environment.wait_until_scheduled(worker, None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xsched", required=True)
    parser.add_argument("--only", default=",".join([*PYTHON, *C_PROGRAMS]))
    parser.add_argument("--together", type=int, default=4, help="how many run at the same time: importing takes most of their time")
    parser.add_argument("--out")
    parser.add_argument("--budget-seconds", type=float, default=540)
    args = parser.parse_args()
    names = args.only.split(",")
    unknown = [name for name in names if name not in PYTHON and name not in C_PROGRAMS]
    if unknown:
        parser.error(f"unknown program {', '.join(unknown)}: use one of {', '.join([*PYTHON, *C_PROGRAMS])}")
    end_on_signals()
    budget, environment, report = Budget(args.budget_seconds), Environment(args.xsched), {}
    try:
        environment.start_service()
        start_competitors(environment)
    except Failure as error:
        sys.exit(f"cannot compare: {error}")
    with ThreadPoolExecutor(args.together) as pool:
        list(pool.map(lambda name: budget.run(name, 10, compare, environment, name, report), names))
    environment.close()
    different = [name for name in report if not report[name]["same"]]
    unscheduled = [name for name in report if not report[name]["scheduled"]]
    summary = {"same": sorted(set(report) - set(different)), "different": different, "not_scheduled": unscheduled,
               "failed": budget.errors, "skipped": budget.skipped, "programs": report}
    if args.out:
        with open(args.out, "w") as file:
            json.dump(summary, file, indent=1)
    print(json.dumps({key: value for key, value in summary.items() if key != "programs"}, indent=1))
    sys.exit(1 if different or unscheduled or not report else 0)


if __name__ == "__main__":
    main()
