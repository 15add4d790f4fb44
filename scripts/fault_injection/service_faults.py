"""Faults of the service: it is killed, crashed, stopped, and replaced, also by other versions."""
import contextlib
import os
import signal
import subprocess
import time

from . import other_versions
from .faults import REPEATED_STEPS, STEP_TIMEOUT_S, STEPS, fault, why_no_steps
from .machine import Failure, TOOL_TIMEOUT_S, wait_until


@fault("kill the service", weight=5)
def kill_service(i):
    program = i.start()
    time.sleep(i.rng.uniform(0, 0.1))
    i.machine.kill_service(i.rng.choice([signal.SIGKILL, signal.SIGABRT]))
    pause = i.rng.choice([0, 0, 0.05, 1.2])
    i.detail = f"restart after {pause} s"
    if pause:
        time.sleep(pause)
        i.checks.progress()
    i.machine.start_service()
    i.completes(program)


@fault("end the service")
def end_service(i):
    i.machine.kill_service(i.rng.choice([signal.SIGTERM, signal.SIGINT]))
    i.checks.progress()
    i.machine.start_service()


@fault("stop the service", weight=3)
def stop_service(i):
    program = i.start()
    time.sleep(i.rng.uniform(0, 0.1))
    i.machine.signal_service(signal.SIGSTOP)
    try:
        i.checks.progress()
        time.sleep(i.rng.choice([0, 0.3, 1]))
        i.checks.progress()
    finally:
        i.machine.signal_service(signal.SIGCONT)
    i.completes(program)


@fault("start tools and programs beside a stopped service", weight=1)
def tools_beside_stopped_service(i):
    i.machine.signal_service(signal.SIGSTOP)
    try:
        program = i.start()
        i.completes(program)
        for words in (["ps"], ["doctor"], ["policy"]):
            i.detail = " ".join(words)
            try:
                i.machine.tool(*words, timeout=TOOL_TIMEOUT_S if i.options.is_patient else 6)
            except subprocess.TimeoutExpired as expired:
                raise Failure(f"`xsched {i.detail}` hangs beside a stopped service") from expired
    finally:
        i.machine.signal_service(signal.SIGCONT)


@fault("replace the service", weight=3)
def replace_service(i):
    program = i.start()
    old = i.machine.service
    time.sleep(i.rng.uniform(0, 0.05))
    i.machine.start_service(waits=False)
    if old.wait(TOOL_TIMEOUT_S) != 0:
        raise Failure(f"the replaced service exited with {old.returncode}")
    wait_until("the service replies", i.machine.missing_reply)
    i.completes(program)


@fault("replace a stopped service", weight=1)
def replace_stopped_service(i):
    old = i.machine.service
    i.machine.signal_service(signal.SIGSTOP)
    try:
        i.machine.start_service(waits=False)
        end = time.monotonic() + i.options.short_timeout + 6
        while old.poll() is None and i.machine.service.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        if old.poll() is None:
            raise Failure("`serve --replace` did not replace a stopped service")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(old.pid, signal.SIGCONT)
            old.kill()
        old.wait()
    i.checks.progress()


@fault("kill, crash or stop the service at a step", weight=10, why_not=why_no_steps)
def service_at_step(i):
    step = i.rng.choice([step for process, _, step in STEPS if process == "service"])
    number = i.rng.choice([signal.SIGKILL, signal.SIGSTOP, signal.SIGABRT])
    what = f"{signal.Signals(number).name} at {step!r}"
    count = i.rng.choice([1, 2, 8]) if any(word in step for word in REPEATED_STEPS) else 1
    i.machine.kill_service()
    i.machine.start_service(step=(number, step, count), waits=False)
    report = i.machine.service_report
    program = i.start()
    i.detail = f"{what}, {program}"
    tool = None
    end = time.monotonic() + STEP_TIMEOUT_S
    while not report.reached.wait(0.05) and time.monotonic() < end and i.machine.service.poll() is None:
        # Requests, and the end of a client, are steps too.
        if tool is None or tool.poll() is not None:
            tool = subprocess.Popen([i.machine.build.xsched, "ps", "--json"], env=i.machine.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                    stderr=subprocess.DEVNULL)
        if program.rounds and time.monotonic() > end - STEP_TIMEOUT_S / 2:
            program.end_input()
        # The last steps of the service follow its signal to end.
        if step.endswith(("exit_group", "unlink")) and program.rounds:
            i.machine.signal_service(signal.SIGINT)
    i.cover("service", "-", step, report.reached.is_set())
    if not report.reached.is_set():
        i.detail += " (by time)"
        i.machine.signal_service(number)
    try:
        i.checks.progress()
        if number == signal.SIGSTOP and i.rng.random() < 0.5:
            i.machine.signal_service(signal.SIGCONT)
            i.checks.progress()
    finally:
        i.restart_service()
        if tool is not None:
            # A tool that waited for the service finds out that it has ended.
            with contextlib.suppress(subprocess.TimeoutExpired):
                tool.wait(TOOL_TIMEOUT_S)
            if tool.poll() is None:
                tool.kill()
                tool.wait()
                raise Failure("`xsched ps` hangs after the service has ended")
            tool.wait()
    i.completes(program)


# Other versions

@fault("a client of another version", weight=3)
def client_of_another_version(i):
    i.detail = other_versions.join(str(i.machine.socket), i.rng)


@fault("replace the service by another version", weight=3)
def service_of_another_version(i):
    i.machine.kill_service()
    with other_versions.Service(str(i.machine.socket), i.rng) as service:
        i.detail = service.behavior
        program = i.start()
        i.checks.progress()
        i.completes(program)
        wait_until("the programs try to connect", lambda: service.connections < len(i.machine.survivors) and f"{service.connections} connections", 10)
        i.checks.progress()
    i.machine.start_service()


@fault("replace the service by an earlier build and back", weight=3,
       why_not=lambda _, options: "" if options.earlier else "--earlier names no earlier build")
def service_of_an_earlier_build(i):
    i.machine.start_service(program=i.options.earlier / "xsched")
    program = i.start()
    i.checks.progress()
    earlier_program = i.start(library=i.options.earlier / "libxsched.so")
    i.completes(program)
    i.machine.start_service()
    i.completes(earlier_program)
