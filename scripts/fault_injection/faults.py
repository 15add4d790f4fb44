"""The kinds of faults. Each injects one fault into a machine, repairs what it broke, and raises Failure if something did not hold meanwhile. The caller then
checks everything that has to hold after every fault (checks.py)."""
import dataclasses
import pathlib
import signal
import time
import typing

from .machine import Failure, wait_until

STEP_TIMEOUT_S = 2
# Threads pass these steps again and again, and all further steps when they start or end, and when they connect to another service.
REPEATED_STEPS = ("futex", "sendto", "clock_nanosleep", "recvmsg", "munmap", "epoll", "accept4", "memfd", "status", "welcome", "timerfd")
# How long a program may take to exit after its input has ended.
EXIT_TIMEOUT_S = 30
# For clients. A Rust program, as the service, ignores the first SIGSEGV and SIGBUS that no access to memory has caused.
SIGNALS_THAT_CRASH = [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS]
POLICIES = ["HPF", "UP", "PUP", "CFS", "MLFQ", "LOT"]
STEPS = [line.split(maxsplit=2) for line in (pathlib.Path(__file__).parent / "steps.txt").read_text().splitlines() if line and not line.startswith("#")]

# The faults that fail at present, by kind, with the reason. Such a failure does not fail the run; a success is reported, so that the line can go.
EXPECTED_TO_FAIL = {
    "little memory for a client": "if less than about 100 bytes are left, Rust's standard library aborts the program when it registers a thread, in the library or in a stand-in",
}


@dataclasses.dataclass(frozen=True)
class Kind:
    name: str
    inject: typing.Callable
    # How often it is drawn relative to the other kinds.
    weight: int
    # Returns why it cannot be injected with this build and these options on this computer; empty if it can.
    why_not: typing.Callable


KINDS = []


def why_no_steps(build, _):
    return build.why_no_steps


def fault(name, weight=2, why_not=lambda build, options: ""):
    def add(function):
        KINDS.append(Kind(name, function, weight, why_not))
        return function
    return add


class Injection:
    """One fault: the machine, the checks, the random numbers, and what was hit."""

    def __init__(self, machine, checks, rng, coverage, options):
        self.machine, self.checks, self.rng, self.coverage, self.options = machine, checks, rng, coverage, options
        self.detail = ""

    def draw_program(self, platform=None, priority=None):
        """A platform, and the options of a program on it. A program of high priority pauses, so that programs of lower priority run."""
        rng = self.rng
        platform = platform or rng.choice(["cuda", "xsim", "hip"])
        priority = rng.choice([-2, 0, 2]) if priority is None else priority
        pause = rng.choice([4000, 9000]) if priority > 0 else rng.choice([0, 0, 2000])
        level = rng.choice([None, None, 1, 2, 3]) if platform != "hip" else rng.choice([None, 1])
        return (platform, priority, rng.choice([2, 6, 12]), rng.choice([100, 300, 700]), pause), {"level": level}

    def start(self, platform=None, priority=None, **more):
        words, options = self.draw_program(platform, priority)
        program = self.machine.start(*words, **options | more)
        self.detail = str(program)
        return program

    def start_at_step(self, number, priority=None):
        """A program that gets a signal at a step. If it does not come to the step, it gets the signal at some time."""
        platform, step = self.rng.choice([(platform, step) for process, platform, step in STEPS if process == "client"])
        count = self.rng.choice([1, 2, 4]) if any(word in step for word in REPEATED_STEPS) else 1
        reconnects = step.startswith("link") and self.rng.random() < 0.3
        if reconnects:
            # The first connection has passed the step, except when it ends.
            count = 1 if "shutdown" in step else 2
        program = self.start(platform, priority, step=(number, step, count))
        end = time.monotonic() + STEP_TIMEOUT_S
        if reconnects:
            wait_until(f"the program starts: {program}",
                       lambda: not program.report.reached.is_set() and program.process.poll() is None and program.rounds < 1 and "no round")
            self.restart_service()
        while not program.report.reached.wait(0.02) and time.monotonic() < end and program.process.poll() is None:
            # Its last steps follow the end of the input.
            if program.rounds >= 1 and time.monotonic() > end - STEP_TIMEOUT_S / 2 or "exit" in step and program.rounds >= 1:
                program.end_input()
        self.cover("client", platform, step, program.report.reached.is_set())
        if not program.report.reached.is_set():
            self.detail += " (by time)"
            program.send(number)
        return program

    def cover(self, process, platform, step, reached):
        self.coverage[process, platform, step if reached else "(by time)"] += 1

    def stop(self, program):
        """Stops the program, but not while it holds the lock of a device: that is memory of the stand-in, which a GPU does not have."""
        end = time.monotonic() + STEP_TIMEOUT_S
        while program.process.poll() is None and time.monotonic() < end:
            program.send(signal.SIGSTOP)
            while program.state() not in "TtZX" and time.monotonic() < end:
                time.sleep(0.001)
            if not program.holds_device_lock():
                return
            program.send(signal.SIGCONT)
            time.sleep(0.001)

    def has_ended(self, program, statuses):
        """The program ends with one of the statuses, and with right results."""
        status = program.wait(EXIT_TIMEOUT_S)
        if status is None:
            raise Failure(f"it did not exit: {program}")
        if program.wrong:
            raise Failure(f"it has a wrong result: {program}: {program.wrong}")
        if status not in statuses:
            raise Failure(f"it ended with {status}: {program}")
        self.machine.forget(program)

    def completes(self, program, rounds=2):
        """The program completes more rounds and exits when its input ends."""
        target = program.rounds + rounds
        if not program.process.stdin.closed:
            wait_until(f"the program completes {rounds} rounds: {program}",
                       lambda: program.process.poll() is None and program.rounds < target and f"{target - program.rounds} rounds")
        program.end_input()
        self.has_ended(program, [0])

    def restart_service(self, **options):
        self.machine.kill_service()
        self.machine.start_service(**options)


# Clients

@fault("kill a client at a step", weight=10, why_not=why_no_steps)
def kill_at_step(i):
    program = i.start_at_step(signal.SIGKILL)
    i.has_ended(program, [-signal.SIGKILL, 0])


@fault("crash a client at a step", weight=8, why_not=why_no_steps)
def crash_at_step(i):
    number = i.rng.choice(SIGNALS_THAT_CRASH)
    program = i.start_at_step(number)
    if program.wait(0.5) is None:
        # It was still `xsched run`, a Rust program.
        program.send(number)
    i.has_ended(program, [-number, 0])


def stop_at_step(i, priority):
    program = i.start_at_step(signal.SIGSTOP, priority)
    try:
        i.stop(program)
        i.checks.progress(i.options.short_timeout)
    finally:
        program.send(signal.SIGCONT)
    if i.rng.random() < 0.3:
        program.send(signal.SIGKILL)
        i.has_ended(program, [-signal.SIGKILL, 0])
    else:
        i.completes(program)


@fault("stop a client at a step", weight=8, why_not=why_no_steps)
def stop_unimportant_at_step(i):
    stop_at_step(i, -2)


@fault("stop an important client at a step", weight=3, why_not=why_no_steps)
def stop_important_at_step(i):
    stop_at_step(i, i.rng.choice([0, 2]))


def run_a_while(i, program):
    wait_until(f"the program starts: {program}", lambda: program.process.poll() is None and program.rounds < 1 and "no round")
    time.sleep(i.rng.uniform(0, 0.1))


@fault("kill a client", weight=6)
def kill_client(i):
    program = i.start()
    if i.rng.random() < 0.7:
        run_a_while(i, program)
    else:
        time.sleep(i.rng.uniform(0, 0.08))
    number = i.rng.choice([signal.SIGKILL, signal.SIGTERM, *SIGNALS_THAT_CRASH])
    program.send(number)
    i.detail += f" with {number.name}"
    if program.wait(0.5) is None:
        # It was still `xsched run`, a Rust program.
        program.send(number)
    i.has_ended(program, [-number])


def stop_client(i, priority):
    program = i.start(priority=priority)
    run_a_while(i, program)
    for _ in range(i.rng.choice([1, 1, 3])):
        try:
            i.stop(program)
            i.checks.progress(i.options.short_timeout)
        finally:
            program.send(signal.SIGCONT)
    i.completes(program)


@fault("stop a client", weight=4)
def stop_unimportant_client(i):
    stop_client(i, -2)


@fault("stop an important client")
def stop_important_client(i):
    stop_client(i, i.rng.choice([0, 2]))


@fault("start and end many clients at once")
def many_clients(i):
    programs = [i.start() for _ in range(i.rng.choice([4, 8]))]
    i.detail = f"{len(programs)} programs"
    time.sleep(i.rng.uniform(0, 0.3))
    killed = [program for program in programs if i.rng.random() < 0.5]
    for program in programs:
        if program in killed:
            program.send(signal.SIGKILL)
        else:
            # All of them: one that runs on without a pause would hold those of lower priority.
            program.end_input()
    for program in programs:
        i.has_ended(program, [-signal.SIGKILL] if program in killed else [0])


# Requests of users

@fault("suspend and kill a client")
def suspend_client(i):
    program = i.start()
    run_a_while(i, program)
    wait_until("the program can be suspended", lambda: i.machine.tool("set", "--suspend", str(program.pid)).returncode and "not suspended")
    time.sleep(i.rng.uniform(0, 0.1))
    if i.rng.random() < 0.5:
        program.send(signal.SIGKILL)
        i.has_ended(program, [-signal.SIGKILL])
        return
    i.machine.tool("set", "--resume", str(program.pid))
    i.completes(program)


@fault("change the policy while programs start")
def change_policy(i):
    program = i.start()
    i.detail = i.rng.choice(POLICIES)
    i.machine.tool("policy", i.detail)
    i.completes(program)


@fault("change priorities")
def change_priority(i):
    program = i.start()
    run_a_while(i, program)
    for _ in range(5):
        i.machine.tool("set", "--priority", str(i.rng.randint(-5, 0)), str(program.pid))
    i.completes(program)
