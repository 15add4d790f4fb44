"""Runs one client: directly, under XSched, and beside a second one of another priority."""

import itertools
import json
import os
import re
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from .clients import Client
from .ledger import Ledger
from .machine import Machine

# A client that takes longer hangs.
CLIENT_TIMEOUT = 300.0
# How long a service or a task may take to appear.
APPEARANCE_TIMEOUT = 180.0
SAMPLE_INTERVAL = 0.01
LIBRARY_LINE = re.compile(r"(?m)^xsched\[\d+\]: .*\n")
WAYS = {"names": "the names of its functions", "table": "the runtime's own table"}


class Failure(Exception):
    """A client behaved differently under XSched; the text says how."""


class Processes:
    """The processes that were started and have not exited. Each is the leader of a session, which is killed as a whole."""

    def __init__(self) -> None:
        self.running: list[subprocess.Popen] = []

    def start(self, words: list[str], environment: dict[str, str], output=subprocess.PIPE) -> subprocess.Popen:
        process = subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True
        )
        self.running.append(process)
        return process

    def kill(self, process: subprocess.Popen) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(timeout=5)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        if process in self.running:
            self.running.remove(process)

    def kill_all(self) -> None:
        for process in list(self.running):
            self.kill(process)

    def wait(self, process: subprocess.Popen) -> tuple[int, str]:
        try:
            output, _ = process.communicate(timeout=CLIENT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill(process)
            raise Failure(f"no exit within {CLIENT_TIMEOUT:.0f} s") from None
        self.running.remove(process)
        return process.returncode, output or ""


@dataclass
class Run:
    """One run of a client."""

    status: int
    output: str
    log: str
    seconds: float
    kernels: dict[str, int] = field(default_factory=dict)


@dataclass
class Pair:
    """A run of high priority, and those of low priority that were repeated beside it."""

    high: Run
    was_high_listed: bool
    low_status: int
    # Of each run.
    low_outputs: list[str]
    low_kernels: dict[str, int]
    # Those that the one of low priority launched while the one of high priority had work.
    launches_during_high: int
    # The time during which such a launch would have been counted.
    checked_seconds: float
    ranks_held_together: int


class Service:
    """A scheduler of its own for one trial, and what it lists."""

    def __init__(self, machine: Machine, processes: Processes, directory: Path) -> None:
        self.machine, self.processes = machine, processes
        self.socket = directory / "socket"
        self.environment = {**os.environ, "XSCHED_SOCKET": str(self.socket)}
        self.tasks: dict[int, dict] = {}
        # The processes of each job, by the names of the client and of the job. They leave the job when they destroy the communicator.
        self.jobs: dict[tuple[str, str], set[int]] = {}
        self.stopping = threading.Event()
        self.process = processes.start([machine.xsched, "serve", "--quiet"], self.environment, subprocess.DEVNULL)
        self.wait_for(lambda: self.listed() is not None, "the service does not answer")
        self.thread = threading.Thread(target=self.sample, daemon=True)
        self.thread.start()

    def wait_for(self, condition, complaint: str) -> None:
        deadline = time.monotonic() + APPEARANCE_TIMEOUT
        while not condition():
            if time.monotonic() > deadline:
                raise Failure(complaint)
            time.sleep(SAMPLE_INTERVAL)

    def listed(self) -> list[dict] | None:
        """The tasks that `xsched ps --json` lists; None without a service."""
        done = subprocess.run([self.machine.xsched, "ps", "--json", "--sample", "1ms"], env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return None
        status = json.loads(done.stdout)
        levels = {queue["task"]: queue["level"] for queue in status["queues"]}
        return [dict(task, level=levels.get(task["task"])) for task in status["tasks"]]

    def sample(self) -> None:
        while not self.stopping.is_set():
            listed = self.listed() or []
            self.tasks |= {task["pid"]: task for task in listed}
            for task in listed:
                if task.get("job"):
                    self.jobs.setdefault((task["name"], task["job"]), set()).add(task["pid"])
            self.stopping.wait(SAMPLE_INTERVAL)

    def named(self, name: str) -> list[dict]:
        return [task for task in list(self.tasks.values()) if task["name"] == name]

    def ranks_held_together(self, name: str, trace: Path) -> int:
        """The most ranks of one job of this client that a trace shows as held at the same time."""
        jobs = [pids for (client, _), pids in list(self.jobs.items()) if client == name]
        held = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X" and event["name"] == "held"]
        return max((most_at_once(event for event in held if event["pid"] in pids) for pids in jobs), default=0)

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join()
        self.processes.kill(self.process)


def most_at_once(slices) -> int:
    """The most slices of a trace that overlap."""
    changes = sorted((at, change) for one in slices for at, change in ((one["ts"], 1), (one["ts"] + one["dur"], -1)))
    return max(itertools.accumulate(change for _, change in changes), default=0)


class Trial:
    """The runs of one client."""

    def __init__(self, machine: Machine, client: Client, processes: Processes, directory: Path) -> None:
        self.machine, self.client, self.processes, self.directory = machine, client, processes, directory
        directory.mkdir(parents=True)

    def words(self, way: str, prefix: list[str], label: str, environment: dict[str, str], loop_until: Path | None = None) -> list[str]:
        """The command line of one run. With `loop_until` the client is run repeatedly until the file exists, each time with a log of its own."""
        client, machine = self.client, self.machine
        places = {"root": machine.root(client.root), "standins": machine.standins, "directory": machine.directory}
        places |= {f"root{version}": place for version, place in machine.roots.items() if place}
        preload = [text.format(**places) for text in client.preload]
        if way == "table":
            preload.append(str(machine.standins / "libregister_adapter.so"))
        variables = {name: value.format(**places) for name, value in client.environment.items()}
        variables |= {"ROCR_STANDIN_DEVICE": str(self.directory / "gpu"), "ROCR_STANDIN_DEVICES": str(client.gpus), "ROCR_STANDIN_LEDGER": str(self.directory / f"{label}.ledger")}
        variables |= environment
        binds = [text.format(**places) for text in client.binds]
        command = [*prefix, *client.command]
        if loop_until:
            log = f"{self.directory}/{label}-$number.log"
            script = f"number=0; while [ ! -e {loop_until} ]; do number=$((number + 1)); \"$@\" >{log} 2>&1 || exit $?; done"
            command = ["/bin/bash", "-c", script, "bash", *command]
        # The loop's shell must not be scheduled, and has no preloaded library but those of the stand-ins.
        return machine.inside(client.root, client.gpus, binds, preload, variables, command)

    def finish(self, process: subprocess.Popen, label: str, started: float) -> Run:
        status, output = self.processes.wait(process)
        seconds = time.monotonic() - started
        log = "".join(LIBRARY_LINE.findall(output))
        (self.directory / f"{label}.log").write_text(output)
        text = self.text_of(output)
        (self.directory / f"{label}.txt").write_text(text)
        return Run(status, text, log, seconds, Ledger.read(self.directory / f"{label}.ledger").kernel_counts())

    def text_of(self, output: str) -> str:
        """The client's output without the library's messages and without times."""
        return self.client.filtered(LIBRARY_LINE.sub("", output))

    def repeated_outputs(self, label: str) -> list[str]:
        """The outputs of a client that was run repeatedly."""
        logs = (self.directory / f"{label}-{number}.log" for number in itertools.count(1))
        return [self.text_of(log.read_text(errors="replace")) for log in itertools.takewhile(Path.exists, logs)]

    def direct(self) -> Run:
        started = time.monotonic()
        words = self.words("table" if self.client.ways == ("table",) else "names", [], "direct", {})
        return self.finish(self.processes.start(words, dict(os.environ)), "direct", started)

    def xsched_run(self, name: str, priority: str, level: str) -> list[str]:
        return [self.machine.xsched, "run", "--name", name, "--priority", priority, "--level", level, "--"]

    def scheduled(self, way: str, level: str) -> tuple[Run, list[dict]]:
        """One run under XSched. Returns it and the tasks that were listed while it ran."""
        label = f"scheduled-{way}"
        service = Service(self.machine, self.processes, self.directory)
        try:
            started = time.monotonic()
            environment = {"XSCHED_SOCKET": str(service.socket), "XLOG_LEVEL": "INFO"}
            words = self.words(way, self.xsched_run(self.client.name, "normal", level), label, environment)
            run = self.finish(self.processes.start(words, dict(os.environ)), label, started)
            return run, service.named(self.client.name)
        finally:
            service.stop()

    def pair(self, way: str, level: str, high_kernel_us: int) -> Pair:
        """A run of high priority, with kernels of this length, beside one of low priority that is repeated."""
        # Of an earlier pair.
        for pattern in (f"stop-{way}", f"low-{way}*", f"high-{way}*"):
            for path in self.directory.glob(pattern):
                path.unlink()
        service = Service(self.machine, self.processes, self.directory)
        stop, trace = self.directory / f"stop-{way}", self.directory / f"trace-{way}.json"
        try:
            # A rank may be held for less time than `xsched ps` takes.
            tracer = self.processes.start([self.machine.xsched, "trace", "--output", str(trace)], service.environment) if self.client.ranks > 1 else None
            environment = {"XSCHED_SOCKET": str(service.socket)}
            low_words = self.words(way, self.xsched_run("low", "low", level), f"low-{way}", environment, stop)
            with open(self.directory / f"low-{way}.log", "w", encoding="utf-8") as log:
                low = self.processes.start(low_words, dict(os.environ), log)
            service.wait_for(lambda: service.named("low") or low.poll() is not None, "the program of low priority was not listed")
            if tracer:
                # Before that its ranks are not held together.
                is_job = lambda: any(len(pids) == self.client.ranks for pids in list(service.jobs.values()))
                service.wait_for(lambda: is_job() or low.poll() is not None, "the ranks of low priority did not become a job")
            started = time.monotonic()
            words = self.words(way, self.xsched_run("high", "high", level), f"high-{way}", environment | {"ROCR_STANDIN_KERNEL_US": str(high_kernel_us)})
            high = self.finish(self.processes.start(words, dict(os.environ)), f"high-{way}", started)
            stop.touch()
            low_status, _ = self.processes.wait(low)
            if tracer:
                tracer.send_signal(signal.SIGINT)
                self.processes.wait(tracer)
            high_ledger, low_ledger = (Ledger.read(self.directory / f"{label}-{way}.ledger") for label in ("high", "low"))
            return Pair(
                high, bool(service.named("high")), low_status, self.repeated_outputs(f"low-{way}"), low_ledger.kernel_counts(),
                low_ledger.launched_during_work_of(high_ledger), high_ledger.checked_seconds(),
                service.ranks_held_together("low", trace) if tracer else 0,
            )
        finally:
            stop.touch()
            service.stop()
