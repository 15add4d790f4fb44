"""The command line."""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from .checks import run_client
from .clients import all_clients
from .machine import REPOSITORY, Machine
from .results import count, document, print_table, read_rows
from .trial import WAYS, Processes

def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/rocm-clients",
        description="Runs real clients of AMD's runtimes on the stand-ins for ROCr and the kernel driver: directly, under xsched run, and two at a "
        "time with priorities. Checks that output, status and kernels are the same, that XSched lists the client, and that the client of low "
        "priority launches nothing while the one of high priority has work.",
        epilog="XSCHED_ROCM_6 and XSCHED_ROCM_7 name the roots that scripts/rocm-root makes. A client that cannot run is skipped with the reason.",
    )
    parser.add_argument("--only", metavar="NAME", action="append", default=[], help="run this client only; may be repeated, or a list with commas")
    parser.add_argument("--light", action="store_true", help="run only the clients of the light root of HIP 6")
    parser.add_argument("--way", choices=[*WAYS], help="intercept only by the names of the functions, or by the runtime's table")
    parser.add_argument("--level", default="auto", help="the preemption level (default: auto)")
    parser.add_argument("--no-pairs", action="store_true", help="do not run two clients at a time")
    parser.add_argument("--kernel-us", type=int, default=100, help="how long a simulated kernel takes, in microseconds (default: 100)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results to this file; with --only, replace those of these clients in it")
    parser.add_argument("--keep", metavar="DIR", type=Path, help="keep outputs and ledgers in this directory")
    parser.add_argument("--build", metavar="DIR", type=Path, help="use the programs and libraries in this directory (default: build them in target/debug)")
    parser.add_argument("--list", action="store_true", help="list the clients")
    parser.add_argument("--rocr", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    options = arguments()
    started = time.monotonic()
    keep = options.keep.resolve() if options.keep else None
    directory = keep or Path(tempfile.gettempdir()) / f"rocm-clients-{os.getpid()}"
    roots = {version: Path(path).resolve() if (path := os.environ.get(f"XSCHED_ROCM_{version}")) else None for version in ("6", "7")}
    build = options.build or REPOSITORY / "target/debug"
    machine = Machine(directory, build.resolve(), roots, builds=not options.build, rocr=options.rocr)
    clients = all_clients(machine)
    wanted = {name for text in options.only for name in text.split(",")}
    if unknown := wanted - {client.name for client in clients}:
        say(f"unknown client {', '.join(sorted(unknown))}: scripts/rocm-clients --list lists them")
        return 64
    clients = [client for client in clients if (not wanted or client.name in wanted) and (client.is_light or not options.light)]
    if options.list:
        for client in clients:
            print(f"{client.name:24} HIP {client.root}  {client.package}{'  (light)' if client.is_light else ''}")
        return 0
    os.environ["ROCR_STANDIN_KERNEL_US"] = str(options.kernel_us)
    for name in [name for name in os.environ if name.startswith("XSCHED_") and not name.startswith("XSCHED_ROCM_")]:
        del os.environ[name]
    processes, rows = Processes(), []
    # The table shows what was done so far.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    status = 0
    try:
        if keep and keep.exists():
            shutil.rmtree(keep)
        directory.mkdir(parents=True, exist_ok=True)
        # A client in a user namespace is another user to the file system.
        directory.chmod(0o755)
        say("building the stand-ins and the programs")
        machine.prepare()
        for number, client in enumerate(clients, 1):
            say(f"[{number} of {len(clients)}] {client.name}, after {time.monotonic() - started:.0f} s")
            rows += run_client(machine, client, processes, options, say)
    except KeyboardInterrupt:
        say("interrupted")
        status = 130
    finally:
        processes.kill_all()
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
    print_table(rows)
    counts = count(rows)
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped in {time.monotonic() - started:.0f} s")
    if options.json:
        earlier = read_rows(options.json) if wanted else []
        report = document(rows, earlier, [client.name for client in all_clients(machine)], options.kernel_us, options.level)
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    # 77 is the status of a test that could not run.
    return status or (1 if counts["failed"] else 0 if counts["passed"] else 77)
