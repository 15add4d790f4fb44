"""The verification from its command line to its report."""

import argparse
import json
import os
import sys
import time
import traceback

from . import facts, guard, preemption, stages
from .budget import BUILD_LIMIT_S, TIME_LIMITS_S, Budget, OutOfTime
from .document import Document, summary
from .machine import PLATFORMS, Failed, Machine, NoBuild, Skipped, Slow, find_build
from .progress import Progress

# id, title, function, seconds that it requests (full, quick), the least with which it has a meaning.
STAGES = [
    ("build", "build and symbols", stages.build_and_symbols, (2, 2), 0),
    ("interception", "interception and level", stages.interception, (6, 4), 1),
    ("api", "every form of a launch", stages.api_coverage, (12, 8), 2),
    ("overhead", "cost of a launch", stages.overhead, (40, 10), 4),
    ("corun", "a service beside a batch", stages.corun, (130, 21), 8),
    ("preempt", "preemption latency by level", preemption.latency_by_level, (150, 18), 8),
    ("driver", "suspending a running kernel", preemption.driver_latency, (20, 6), 2),
    ("exclusive", "no work of a held program", preemption.exclusive, (60, 15), 6),
    ("results", "PyTorch's results, bit for bit", stages.results, (150, 40), 10),
    ("runtimes", "two runtimes in one process", stages.runtimes, (15, 6), 2),
    ("collectives", "collectives on all GPUs", stages.collectives, (40, 10), 4),
    ("lengths", "kernels of any length", stages.lengths, (60, 15), 8),
    ("priority-3", "three priorities", stages.three_priorities, (20, 5), 4),
    ("processes", "two processes", stages.two_processes, (15, 5), 2),
    ("resets", "the device is reset", stages.resets, (30, 8), 4),
]
MAX_ATTEMPTS = 3


def arguments(words=None):
    """The parsed command line."""
    description = "Verifies XSched on a machine and writes a report that can be sent. Leaves nothing behind but the report and the build."
    parser = argparse.ArgumentParser(prog="scripts/verify", description=description)
    parser.add_argument("--platform", choices=PLATFORMS, required=True,
                        help="hip: an AMD GPU; cuda: an NVIDIA GPU; hip-standin, hip-rocr: a simulated AMD GPU")
    parser.add_argument("--quick", action="store_true", help="about 3 minutes of measurements instead of at most 15")
    parser.add_argument("--output", help="the name of the report without its ending (xsched-verify-PLATFORM)")
    parser.add_argument("--build", help="the directory of xsched and libxsched.so; without it, the release build, which is brought up to date")
    parser.add_argument("--include-names", action="store_true", help="keep the names of the user, the host and other processes in the report")
    parser.add_argument("--only", action="append", choices=[stage[0] for stage in STAGES], metavar="STAGE",
                        help=f"run only this stage; may be repeated: {', '.join(stage[0] for stage in STAGES)}")
    parser.add_argument("--time-limit", type=int, metavar="SECONDS", help="how long the stages may take, without the build (900; with --quick 180)")
    parser.add_argument("--root", metavar="DIRECTORY", help="hip-rocr: the unpacked system with AMD's runtime")
    # For tests: the files that `xsched doctor` examines.
    parser.add_argument("--machine-files", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def stage_limit_s(options):
    """How long all stages may take."""
    return options.time_limit or TIME_LIMITS_S["quick" if options.quick else "full"]


def run_stage(function, machine, part, progress):
    """Runs a stage, again after a failed comparison of times, three times at most and only while it has time."""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        began = time.monotonic()
        try:
            return function(machine, part)
        except Slow as error:
            took = time.monotonic() - began
            if attempt == MAX_ATTEMPTS or machine.budget.left() < 2 * took:
                raise
            progress.message(f"repeated: {error.args[0]}: {json.dumps(error.args[1])}")
    raise AssertionError("unreachable")


def record_skipped(stage, reason):
    """Adds a skipped stage to the summary of scripts/test."""
    path = os.environ.get("XSCHED_SKIPPED")
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"scripts/verify {stage}: {reason}\n")


def verify(options, chosen, machine, document, progress):
    """Runs the chosen stages."""
    content = document.content
    content["host"] = facts.host()
    content["xsched_version"] = machine.version()[0]
    content["build"] = "release" if machine.is_release else "debug"
    if machine.tree:
        # The first scheduled program makes the stand-in write the files of the simulated machine.
        machine.start_service()
        machine.result("requests", 1, 1, 10, 0, run=stages.HIGH)
    content["findings"] = facts.doctor(machine, options.machine_files or machine.tree)
    document.write()
    content["findings"].append(facts.pytorch(machine))
    document.write()
    for check in content["findings"]:
        if check["state"] != "ok":
            progress.message(f" {check['state']:>7}  {check['name']}: {check['what']}\n          do: {check['do_next']}")
    if machine.service is None:
        machine.start_service()
    try:
        described, = machine.result("describe")
    except Failed as error:
        content["state"] = "failed"
        metrics = error.args[1] if len(error.args) > 1 else {}
        content["stages"].append(record("device", "the device without XSched", "fail", metrics, f"no device can be used, even without XSched: {error.args[0]}", 0))
        content["stages"][-1]["do_next"] = "the findings about the machine say what to do"
        return
    content["device"], content["devices"] = described["device"], described["devices"]
    content["runtime_version"], content["device_clock"] = described["version"], described["clock"]
    machine.set_clock(described["clock"])
    for number, (stage_id, name, function, _, least_s) in enumerate(chosen, 1):
        progress.begin(number, name)
        began = time.monotonic()
        metrics, notes, status, do_next = {}, "", "pass", None
        try:
            given, part = machine.budget.begin_stage(least_s)
            metrics, notes = run_stage(function, machine, part, progress)
            if part < 0.9:
                notes = f"{notes}; shortened to {given:.0f} s, because time ran short".strip("; ")
        except Skipped as reason:
            status, notes = "skipped", str(reason)
            record_skipped(stage_id, notes)
        except OutOfTime as reason:
            status, notes = "skipped", f"no time: {reason}"
            record_skipped(stage_id, notes)
        except Failed as error:
            status, notes = "fail", str(error.args[0])
            metrics = error.args[1] if len(error.args) > 1 else {}
            do_next = error.args[2] if len(error.args) > 2 else "send the report"
        except Exception as error:  # pylint: disable=broad-except
            # A fault of the verification itself ends this stage only.
            status, notes, do_next = "fail", f"the verification itself failed: {type(error).__name__}: {error}", "send the report"
            metrics = {"traceback": traceback.format_exc().splitlines()[-12:]}
        finally:
            for process in list(machine.running):
                if process is not machine.service:
                    machine.stop(process)
        content["stages"].append(record(stage_id, name, status, metrics, notes, time.monotonic() - began, do_next))
        content["seconds"] = round(machine.budget.used(), 1)
        document.write()
        progress.message(f"{status:>8}  {name}: {notes}")
    content["state"] = "complete"


def record(stage_id, name, status, metrics, notes, seconds, do_next=None):
    """One stage in the report."""
    return {"id": stage_id, "name": name, "status": status, "metrics": metrics, "notes": notes, "do_next": do_next, "seconds": round(seconds, 1)}


def work(options, directory):
    """The inner process: the whole verification. Returns the exit status."""
    chosen = [stage for stage in STAGES if not options.only or stage[0] in options.only]
    try:
        output = options.output or f"xsched-verify-{options.platform}"
        document = Document(output, options.platform, options.quick, facts.Redaction(options.include_names))
        document.write()
    except OSError as error:
        print(f"the report cannot be written: {error}. Choose another place with --output", file=sys.stderr)
        return 2
    build_budget = Budget(BUILD_LIMIT_S, [])
    progress = Progress(build_budget, len(chosen))
    machine, budget, status = None, None, 1
    try:
        build = find_build(options, progress, directory)
        document.content["build_seconds"] = round(build_budget.used(), 1)
        # The time of the stages begins when there is a build.
        budget = progress.budget = Budget(stage_limit_s(options), [stage[3][options.quick] for stage in chosen])
        machine = Machine(options, build, directory, budget)
        verify(options, chosen, machine, document, progress)
        status = 0 if document.content["state"] == "complete" and not document.failures() else 1
    except (NoBuild, Failed) as error:
        document.content["state"] = "failed"
        document.content["stages"].append(record("build", "build", "fail", {}, str(error.args[0]), 0))
        status = 2
    except OutOfTime as error:
        document.content["state"] = f"stopped: {error}"
    except guard.Interrupted as signal_name:
        document.content["state"] = f"interrupted by {signal_name}"
        status = 130
    finally:
        if machine:
            machine.close()
        document.content["seconds"] = round(budget.used(), 1) if budget else 0
        document.write()
        document.close()
        progress.end()
        conclude(document)
    return status


def conclude(document):
    """Prints the summary and what to send."""
    try:
        print()
        for line in summary(document.redaction.value(document.content)):
            print(line)
        if document.content["state"] != "complete":
            print(f"not complete: {document.content['state']}")
        print(f"\nPlease send these two files; they contain no names of users, hosts or programs:\n  {document.json_file}\n  {document.html_file}"
              if not document.redaction.include_names else f"\nThe report, with names:\n  {document.json_file}\n  {document.html_file}")
        sys.stdout.flush()
    except (OSError, ValueError):
        pass


def main():
    """Returns the exit status: 0 if every stage passed or was skipped."""
    options = arguments()
    return guard.run(lambda directory: work(options, directory), (0 if options.build else BUILD_LIMIT_S) + stage_limit_s(options) + 10)
