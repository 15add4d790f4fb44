"""Faults of resources: descriptors, memory, disks and clocks."""
import contextlib
import os
import re
import signal
import socket
import subprocess
import time

from .checks import read
from .faults import EXIT_TIMEOUT_S, fault
from .machine import Failure, Skipped, TOOL_TIMEOUT_S

MB = 1 << 20


# The exit statuses of programs/rounds.h after a call of the driver has failed, and of the loader if it cannot map a library.
OUT_OF_MEMORY = [70, 127]


def limited(i, limit, own_failures=()):
    """A program under a limit: if it completes without XSched, it completes with XSched, or ends by itself with one of the statuses."""
    words, options = i.draw_program()
    for preload in (False, True):
        program = i.machine.start(*words, **options, preload=preload, inner=["prlimit", limit])
        i.detail = f"{limit}: {program}"
        program.end_input()
        status = program.wait(EXIT_TIMEOUT_S)
        if not preload and status != 0:
            i.machine.forget(program)
            raise Skipped("the limit is too low for the program without XSched")
        i.has_ended(program, [0, *own_failures])
        if status == 0 and program.rounds < 1:
            raise Failure(f"it completed no round: {program}")


@fault("few descriptors for a client")
def few_descriptors(i):
    number = i.rng.randint(4, 20)
    limited(i, f"--nofile={number}:{number}")


@fault("little memory for a client")
def little_memory(i):
    # The memory of the library counts, too: a call of the driver may fail that succeeds without XSched.
    limited(i, f"--as={i.rng.choice([i.rng.randint(8, 40), i.rng.randint(40, 300)]) * MB}", OUT_OF_MEMORY)


@fault("exhaust the descriptors of the service")
def exhaust_descriptors(i):
    # With 23 or fewer the service does not start, and says so.
    number = i.rng.randint(24, 64)
    i.detail = f"{number} descriptors"
    i.restart_service(wrap=["prlimit", f"--nofile={number}:{number}"])
    with contextlib.ExitStack() as connections:
        for _ in range(80):
            client = connections.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            client.settimeout(1)
            try:
                client.connect(str(i.machine.socket))
            except OSError:
                break
        i.checks.progress()
        i.completes(i.start())
    i.completes(i.start())
    i.restart_service()


@fault("exhaust the memory of the service", weight=1)
def exhaust_memory(i):
    pid = i.machine.service_pid
    size = int(re.search(rb"VmSize:\s*(\d+)", read(f"/proc/{pid}/status"))[1]) * 1024
    more = i.rng.choice([0, 100_000, MB])
    i.detail = f"{more} bytes more than it uses"
    subprocess.run(["prlimit", f"--pid={pid}", f"--as={size + more}"], check=True)
    # Of one priority: a program is held as long as one of higher priority has work, and these make no pauses.
    programs = [i.start(priority=0) for _ in range(4)]
    for program in programs:
        i.completes(program)
    i.checks.progress()
    died = i.machine.service.poll()
    i.restart_service()
    if died is not None:
        raise Failure(f"the service ended with {died}")


@fault("write a trace to a full disk", weight=1)
def full_disk(i):
    if os.geteuid() == 0 and i.rng.random() < 0.5:
        place = i.machine.directory / "full"
        place.mkdir(exist_ok=True)
        command = f"mount -t tmpfs -o size=4k none {place} && exec \"$@\""
        wrap, target = ["unshare", "-m", "sh", "-c", command, "sh"], place / "trace.json"
    else:
        wrap, target = [], "/dev/full"
    i.detail = str(target)
    result = i.machine.tool("trace", "--duration", "200ms", "-o", str(target), wrap=wrap)
    if result.returncode == 0 or not result.stderr:
        raise Failure(f"`xsched trace -o {target}` exited with {result.returncode} and printed {result.stderr!r}")


@fault("write a trace to a slow disk", weight=1)
def slow_disk(i):
    pipe = i.machine.directory / "slow"
    with contextlib.suppress(FileExistsError):
        os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    trace = subprocess.Popen([i.machine.build.xsched, "trace", "-o", str(pipe)], env=i.machine.environment, stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        # The pipe fills, then nothing is read.
        time.sleep(i.rng.uniform(0.2, 0.5))
        i.checks.progress()
        i.completes(i.start())
        trace.send_signal(i.rng.choice([signal.SIGKILL, signal.SIGINT]))
        # The rest of the trace.
        end = time.monotonic() + TOOL_TIMEOUT_S
        while trace.poll() is None and time.monotonic() < end:
            with contextlib.suppress(BlockingIOError):
                os.read(reader, 1 << 16)
            time.sleep(0.001)
        if trace.poll() is None:
            raise Failure("`xsched trace` did not end")
    finally:
        trace.kill()
        trace.wait()
        os.close(reader)


@fault("start a service on a full disk", weight=1, why_not=lambda *_: "" if os.geteuid() == 0 else "it needs root")
def service_on_full_disk(i):
    place = i.machine.directory / "tiny"
    place.mkdir(exist_ok=True)
    inodes = i.rng.choice([1, 2, 3])
    i.detail = f"{inodes} inodes"
    command = f"mount -t tmpfs -o size=4k,nr_inodes={inodes} none {place} && \"$@\"; status=$?; ls {place} >&2; exit $status"
    result = subprocess.run(["unshare", "-m", "sh", "-c", command, "sh", "timeout", "-s", "INT", "1", str(i.machine.build.xsched), "serve", "--quiet", "--socket",
                             str(place / "socket")], env=i.machine.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, timeout=TOOL_TIMEOUT_S, check=False)
    # 124: it ran until `timeout` ended it.
    if result.returncode in (0, 124) and inodes == 1 or result.returncode < 0 or result.returncode > 124:
        raise Failure(f"`xsched serve` on a full disk exited with {result.returncode} and printed {result.stderr!r}")


def in_time_namespace(offset_s):
    """The command line in front of a program whose clocks differ by so many seconds."""
    return ["unshare", "-T", "--monotonic", str(offset_s), "--boottime", str(offset_s)]


def why_no_time_namespace(*_):
    probe = subprocess.run([*in_time_namespace(1), "true"], stderr=subprocess.PIPE, text=True, check=False)
    return "" if probe.returncode == 0 else probe.stderr.strip()


@fault("run the service in another time namespace", weight=1, why_not=why_no_time_namespace)
def time_namespace(i):
    offset = i.rng.choice([-500, 100, 100000])
    offset = max(offset, -int(time.monotonic()) + 1)
    wrap = in_time_namespace(offset)
    i.detail = f"{offset} s"
    i.restart_service(wrap=wrap)
    try:
        i.completes(i.start())
        i.checks.progress()
        # A service that dies holds no program.
        i.machine.kill_service(i.rng.choice([signal.SIGKILL, signal.SIGABRT]))
        i.checks.progress()
        i.machine.start_service(wrap=wrap)
        held = [task for task in i.machine.status()["tasks"] if task["priority"] > 0 and task["state"] == "held"]
        if held:
            raise Failure(f"the service lists a task of the highest priority as held: {held}")
        # A service that is stopped holds no program.
        i.machine.signal_service(signal.SIGSTOP)
        i.checks.progress(i.options.short_timeout)
    finally:
        i.machine.signal_service(signal.SIGCONT)
        i.restart_service()
