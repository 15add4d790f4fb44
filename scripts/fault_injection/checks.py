"""What has to hold after every fault: progress, results, the status of the service, and no resource left behind."""
import collections
import json
import os
import re
import subprocess
import time

from .machine import CONDITION_TIMEOUT_S, Failure, pids, read, wait_until

# How much more memory than at the beginning a service may use, in kB: its buffers grow to what the programs needed at once.
SERVICE_GROWTH_KB = 16 * 1024

# How many pages a program may have: that of its service, and the last two that it has left (`KEPT_PAGES` in former_pages.rs).
MAX_PROGRAM_PAGES = 3


def descriptors(pid):
    """The open descriptors of a process by kind. Those of processes that live are as many as the service wants."""
    kinds = collections.Counter()
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError:
            continue
        if target != "anon_inode:[pidfd]":
            kinds[re.sub(r":\[?\d+\]?$", "", target)] += 1
        elif b"\nPid:\t-1" in read(f"/proc/{pid}/fdinfo/{number}"):
            kinds["descriptors of ended processes"] += 1
    return kinds


def threads(pid):
    """The names of the threads of the library or the service."""
    names = [read(f"/proc/{pid}/task/{thread}/comm").decode().strip() for thread in os.listdir(f"/proc/{pid}/task")]
    return collections.Counter(name for name in names if name.startswith("xsched"))


def pages(pid):
    """How many pages of schedulers a process has mapped."""
    return read(f"/proc/{pid}/maps").count(b"/memfd:xsched-page")


def memory_kb(pid):
    found = re.search(rb"VmRSS:\s*(\d+)", read(f"/proc/{pid}/status"))
    return int(found[1]) if found else 0


def children(pid):
    """The children of a process, with their states."""
    found = []
    for other in pids():
        fields = read(f"/proc/{other}/stat").rpartition(b")")[2].split()
        if len(fields) > 1 and int(fields[1]) == pid:
            found.append(f"{other} ({fields[0].decode()})")
    return found


def difference(now, before):
    """What differs between two counters, as text; empty if nothing does."""
    kinds = (kind for kind in sorted(now | before) if now[kind] != before[kind])
    return ", ".join(f"{kind}: {now[kind]} instead of {before[kind]}" for kind in kinds)


def differences(now, before):
    """What differs between two results of `Checks.of_program` or `Checks.of_service`, as text."""
    (descriptors_now, threads_now, pages_now), (descriptors_before, threads_before, pages_before) = now, before
    # A thread that starts when it is needed first, and stays, is not a leak; a second one of the name is.
    started = {name for name, count in threads_now.items() if count == 1 and name not in threads_before}
    threads_now = collections.Counter({name: count for name, count in threads_now.items() if name not in started})
    parts = difference(descriptors_now, descriptors_before), difference(threads_now, threads_before), difference(pages_now, pages_before)
    return "; ".join(part for part in parts if part)


class Checks:
    def __init__(self, machine):
        self.machine, self.service, self.programs, self.memory, self.growth = machine, None, {}, {}, 0
        wait_until("all programs run", self.missing_progress(self.rounds()))
        wait_until("the service lists all programs", self.status_differs)
        wait_until("all threads run", self.missing_threads)
        # The service closes the connection of the tool that read the status only in its next round: take the smallest of several samples.
        samples = []
        for _ in range(20):
            samples.append(self.of_service())
            time.sleep(0.02)
        self.service = min(samples, key=lambda sample: sample[0].total())
        self.programs = {program: self.of_program(program) for program in machine.survivors}

    def missing_threads(self):
        return [str(program) for program in self.machine.survivors if len(threads(program.pid)) < 3]

    def rounds(self):
        return {program: program.rounds for program in self.machine.survivors}

    def missing_progress(self, since):
        def missing():
            self.survivors_live()
            return [str(program) for program, rounds in since.items() if program.rounds <= rounds]
        return missing

    def survivors_live(self):
        for program in self.machine.survivors:
            if program.process.poll() is not None:
                raise Failure(f"a program that has to survive ended with {program.process.returncode}: {program}")
            if program.wrong:
                raise Failure(f"a program has a wrong result: {program}: {program.wrong}")

    def progress(self, timeout=CONDITION_TIMEOUT_S):
        """Every surviving program completes a round. Returns how many seconds that took."""
        start = time.monotonic()
        try:
            wait_until("every program completes a round", self.missing_progress(self.rounds()), timeout)
        except Failure as failure:
            # Before the fault is repaired.
            failure.state = state(self.machine)
            raise
        return time.monotonic() - start

    def status_differs(self):
        """The service lists exactly the processes that run and have a queue."""
        status = self.machine.status()
        if status["pid"] != self.machine.service_pid:
            return f"the service is {status['pid']} instead of {self.machine.service_pid}"
        running = {program.pid for program in self.machine.survivors}
        listed = {task["pid"] for task in status["tasks"]} | {queue["pid"] for queue in status["queues"]}
        if listed != running:
            return f"ended but listed: {sorted(listed - running)}, running but not listed: {sorted(running - listed)}"
        counted = collections.Counter(queue["task"] for queue in status["queues"])
        wrong = [task for task in status["tasks"] if counted[task["task"]] != task["queues"]]
        return f"queues of tasks: {wrong}" if wrong else ""

    def of_service(self):
        pid = self.machine.service_pid
        return descriptors(pid), threads(pid), collections.Counter(pages=pages(pid))

    def of_program(self, program):
        # Fewer pages than the maximum are no difference: the number depends on how often the service was replaced.
        return descriptors(program.pid), threads(program.pid), collections.Counter(pages=max(pages(program.pid), MAX_PROGRAM_PAGES))

    def service_differs(self):
        parts = [differences(self.of_service(), self.service), *(f"child {child}" for child in children(self.machine.service_pid))]
        return "; ".join(part for part in parts if part)

    def programs_differ(self):
        found = {program: differences(self.of_program(program), before) for program, before in self.programs.items()}
        return "; ".join(f"{program}: {what}" for program, what in found.items() if what)

    def everything(self):
        """Raises Failure if something does not hold."""
        self.progress()
        wait_until("the service lists what runs", self.status_differs)
        wait_until("the service uses what it used before", self.service_differs)
        wait_until("the programs use what they used before", self.programs_differ)
        pid = self.machine.service_pid
        # The memory of each service counts from its first check.
        first = self.memory.setdefault(pid, memory_kb(pid))
        self.growth = max(self.growth, memory_kb(pid) - first)
        if memory_kb(pid) - first > SERVICE_GROWTH_KB:
            raise Failure(f"the service uses {memory_kb(pid)} kB instead of {first} kB")


def stacks(pid):
    try:
        return subprocess.run(["gdb", "-q", "-batch", "-p", str(pid), "-ex", "thread apply all bt 12"], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=60, check=False).stdout[-8000:]
    except (OSError, subprocess.SubprocessError) as error:
        return f"no stacks: {error}"


def state(machine):
    """The state of a machine on which a check failed."""
    lines = []
    try:
        lines.append(json.dumps(json.loads(machine.tool("ps", "--json", timeout=5).stdout)))
    except (subprocess.TimeoutExpired, ValueError):
        lines.append("`xsched ps --json` fails")
    for program in machine.survivors + machine.programs:
        if program.process.poll() is None:
            idle = time.monotonic() - program.last_output
            lines.append(f"{program}: round {program.rounds}, last output {idle:.1f} s ago\n{stacks(program.pid) if idle > 2 else ''}")
    if machine.service is not None and machine.service.poll() is None:
        lines.append(f"service {machine.service_pid}:\n{stacks(machine.service_pid)}")
    lines.append(f"messages of the service: {machine.log_tail()}")
    errors = read(machine.directory / "errors").decode(errors="replace")
    lines.append(f"messages of the programs: {errors[-2000:]}")
    return "\n".join(lines)
