"""Checks that debuggers and profilers report the same about a program under XSched as without it.

  python3 bench/gpu/tools.py --xsched target/release/xsched [--out FILE.json]

Each tool is run without XSched, inside of `xsched run` and around it, and its findings are compared: kernels, errors, breakpoints. A tool that is
not installed, or that does not work without XSched either, is skipped with the reason.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from harness import HERE, Budget, Environment, Failure, Missing, end_on_signals

TIMEOUT_S = 60
PROFILE = """
import torch
from torch.profiler import ProfilerActivity, profile
x = torch.ones(256, 256, device="cuda")
torch.cuda.synchronize()
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
    for _ in range(40):
        x = torch.relu(x + 1)
    torch.cuda.synchronize()
kernels = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
print("kernels", len(kernels), "sum", int(x.sum()))
"""


def find(pattern, text):
    return re.findall(pattern, text, re.MULTILINE)


def compute_sanitizer(program):
    return ["compute-sanitizer", "--target-processes", "all"], [program, "wrong"], lambda text: {
        "errors": find(r"ERROR SUMMARY: (\d+) error", text), "invalid accesses": len(find(r"Invalid __global__", text)), "program": find(r"^sum .*", text)}


def racecheck(program):
    return ["compute-sanitizer", "--target-processes", "all", "--tool", "racecheck"], [program], lambda text: {
        "errors": find(r"RACECHECK SUMMARY: (.*)", text), "program": find(r"^sum .*", text)}


def ncu(program):
    return ["ncu", "--target-processes", "all", "--clock-control", "none", "--section", "LaunchStats", "--csv"], [program], lambda text: {
        "kernels": len(set(find(r'^"(\d+)","\d+"', text))), "program": find(r"^sum .*", text)}


def nsys(program):
    return ["nsys", "profile", "--trace", "cuda", "--stats", "true", "--force-overwrite", "true", "--output", f"{program}.%p"], [program], lambda text: {
        "kernels": find(r"^\s*[\d.]+\s+\d+\s+(\d+)\s.*add\(", text), "program": find(r"^sum .*", text)}


def cuda_gdb(program):
    commands = ["set pagination off", "set breakpoint pending on", "set cuda break_on_launch none", "break add", "run", "bt", "info cuda kernels", "delete", "continue"]
    return ["cuda-gdb", "--batch", *(word for command in commands for word in ("-ex", command)), "--args"], [program], lambda text: {
        "breakpoint": find(r"hit Breakpoint \d+(?:\.\d+)?, (add)", text)[:1], "frame": find(r"^#0 .*(add).*", text), "program": find(r"^sum .*", text),
        "exit": find(r"exited (normally|with code \d+)", text)}


def pytorch_profiler(_):
    return [], [sys.executable, "-c", PROFILE], lambda text: {"found": find(r"^kernels .*", text)}


TOOLS = {"compute-sanitizer memcheck": compute_sanitizer, "compute-sanitizer racecheck": racecheck, "ncu": ncu, "nsys": nsys,
         "cuda-gdb": cuda_gdb, "the profiler of PyTorch": pytorch_profiler}


def build(environment):
    """With line numbers, which change nothing else: cuda-gdb finds the kernel by its name."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not os.path.exists(nvcc):
        raise Failure("nvcc is not installed")
    program = os.path.join(environment.directory, "tools")
    done = subprocess.run([nvcc, "-g", "-G", "-o", program, os.path.join(HERE, "tools.cu")], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise Failure(f"nvcc: {done.stderr[-800:]}")
    return program


def findings(environment, command, read):
    try:
        done = subprocess.run(command, env=environment.environment, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, stdin=subprocess.DEVNULL,
                              cwd=environment.directory)
    except subprocess.TimeoutExpired:
        return {"status": None}, f"no exit within {TIMEOUT_S} s"
    text = done.stdout + done.stderr
    return {"status": done.returncode, **read(text)}, text


def compare(environment, name, program, report):
    tool, command, read = TOOLS[name](program)
    if tool and shutil.which(tool[0]) is None:
        raise Missing(f"{tool[0]} is not installed")
    xsched = [environment.xsched, "run", "--"]
    native, text = findings(environment, [*tool, *command], read)
    if not any(native[key] for key in native if key not in ("status", "program")):
        raise Missing(f"it finds nothing without XSched either: {' '.join(text.split())[-300:]}")
    cells = {"without": native, "inside": findings(environment, [*xsched, *tool, *command], read)}
    if tool:
        cells["around"] = findings(environment, [*tool, *xsched, *command], read)
    outputs = {way: cell[1] for way, cell in cells.items() if way != "without"}
    cells = {way: cell if way == "without" else cell[0] for way, cell in cells.items()}
    different = [way for way, found in cells.items() if found != native]
    report[name] = {"findings": cells, "different": different, "output": {way: outputs[way][-3000:] for way in different}}
    print(f"    {name}: {', '.join(f'{way} {found}' for way, found in cells.items())}: {'DIFFERENT ' + ', '.join(different) if different else 'the same'}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xsched", required=True)
    parser.add_argument("--only", default=",".join(TOOLS))
    parser.add_argument("--out")
    args = parser.parse_args()
    names = args.only.split(",")
    unknown = [name for name in names if name not in TOOLS]
    if unknown:
        parser.error(f"unknown tool {', '.join(unknown)}: use some of {', '.join(TOOLS)}")
    end_on_signals()
    budget, environment, report = Budget(300), Environment(args.xsched), {}
    try:
        environment.start_service()
        program = build(environment)
    except Failure as error:
        sys.exit(f"cannot compare: {error}")
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(lambda name: budget.run(name, 10, compare, environment, name, program, report), names))
    environment.close()
    different = [name for name in report if report[name]["different"]]
    summary = {"same": sorted(set(report) - set(different)), "different": different, "failed": budget.errors, "skipped": budget.skipped, "tools": report}
    if args.out:
        with open(args.out, "w") as file:
            json.dump(summary, file, indent=1)
    print(json.dumps({key: value for key, value in summary.items() if key != "tools"}, indent=1))
    sys.exit(1 if different or budget.errors or not report else 0)


if __name__ == "__main__":
    main()
