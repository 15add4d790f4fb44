"""Shared by the measurements: a separate service, child programs that are always ended, statistics, and a time budget."""
import atexit
import fcntl
import json
import os
import queue
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = os.path.join(HERE, "programs.py")


class Failure(Exception):
    """A measurement that failed; the remaining measurements continue."""


class Missing(Failure):
    """A requirement that this machine lacks: the measurement is skipped."""


class Program:
    """A process in its own process group that prints lines of JSON and receives commands as lines of JSON."""

    alive = set()

    def __init__(self, name, command, environment):
        self.name, self.command = name, command
        self.events, self.received, self.ended = queue.Queue(), [], False
        self.errors = tempfile.TemporaryFile("w+", errors="replace")
        # Parent and child share the file offset, so the child must append.
        fcntl.fcntl(self.errors, fcntl.F_SETFL, fcntl.fcntl(self.errors, fcntl.F_GETFL) | os.O_APPEND)
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                        env=environment, start_new_session=True, text=True, errors="replace")
        Program.alive.add(self)
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self):
        return self.process.pid

    def _read(self):
        for line in self.process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                self.received.append(event)
                self.events.put(event)
        self.events.put(None)

    def stderr(self, limit=1500):
        self.errors.seek(0)
        return self.errors.read()[-limit:].strip()

    def send(self, **command):
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except (OSError, ValueError):
            raise Failure(f"{self.name} has exited: {self.stderr()}") from None

    def expect(self, expected, timeout):
        """Waits for an event: by name, or for one that satisfies a predicate."""
        test = expected if callable(expected) else lambda event: event.get("event") == expected
        until = time.monotonic() + timeout
        while True:
            try:
                event = self.events.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise Failure(f"{self.name}: no such event within {timeout:.0f} s. {self.stderr()}") from None
            if event is None:
                raise Failure(f"{self.name} exited early with {self.process.wait(10)}. {self.stderr()}")
            if event.get("event") == "error":
                raise Failure(f"{self.name}: {event.get('what')}")
            if test(event):
                return event

    def result(self, timeout):
        """The final line of a `gpu-worker`, which has no event name."""
        return self.expect(lambda event: "mode" in event, timeout)

    def end(self, timeout=5.0):
        """Ends it and everything that it started: by closing its input, then by SIGTERM, then by SIGKILL."""
        if self.ended:
            return self.process.returncode
        self.ended = True
        try:
            self.process.stdin.close()
        except OSError:
            pass
        for number, wait in ((None, timeout), (signal.SIGTERM, 2.0)):
            try:
                if number is not None:
                    os.killpg(self.pid, number)
                self.process.wait(wait)
                break
            except (subprocess.TimeoutExpired, OSError):
                continue
        # Its children may outlive it, so the process group is killed in any case.
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except OSError:
            pass
        self.process.wait()
        Program.alive.discard(self)
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


class Environment:
    """A separate service in a temporary directory, and the programs that use it."""

    def __init__(self, xsched):
        self.xsched = os.path.abspath(xsched)
        self.directory = tempfile.mkdtemp(prefix="xsched-bench-")
        self.environment = dict(os.environ, XSCHED_SOCKET=os.path.join(self.directory, "socket"))
        for name in ("LD_PRELOAD", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_CLIENT_PRIORITY"):
            self.environment.pop(name, None)
        # Shows errors of the library; disables downloads.
        self.environment.update(XLOG_LEVEL="ERRO", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
        self.service = None
        self.calibration = []
        # For trying the programs out without a GPU.
        self.program_arguments = os.environ.get("BENCH_PROGRAM_ARGUMENTS", "").split()
        atexit.register(self.close)

    def start_service(self, *options):
        # Exits by itself if this process is killed, but not while programs are being imported.
        command = [self.xsched, "serve", "--quiet", "--idle-exit", "600", *options]
        self.service = Program("the service", command, self.environment)
        until = time.monotonic() + 15
        while time.monotonic() < until:
            if self.service.process.poll() is not None:
                raise Failure(f"the service exited: {self.service.stderr()}")
            if self.tool("policy", "--json", check=False).returncode == 0:
                return
            time.sleep(0.05)
        raise Failure("the service did not reply within 15 s")

    def kill_service(self):
        """Kills the service with SIGKILL."""
        try:
            os.killpg(self.service.pid, signal.SIGKILL)
        except OSError:
            pass
        self.service.end(1.0)

    def tool(self, *arguments, check=True, timeout=20):
        try:
            done = subprocess.run([self.xsched, *arguments], env=self.environment, capture_output=True, text=True,
                                  errors="replace", timeout=timeout, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            raise Failure(f"xsched {' '.join(arguments)}: no reply within {timeout} s") from None
        if check and done.returncode != 0:
            raise Failure(f"xsched {' '.join(arguments)}: {done.stderr.strip()}")
        return done

    def ps(self):
        return json.loads(self.tool("ps", "--json", "--sample", "1ms").stdout)

    def start(self, name, command, options=None, **variables):
        """Starts a program, directly or under `xsched run` with these options."""
        if options is not None:
            command = [self.xsched, "run", *options, "--", *command]
        environment = {**self.environment, **{key: str(value) for key, value in variables.items()}}
        return Program(name, command, environment)

    def python(self, name, options=None, **variables):
        """Starts a program of `programs.py`."""
        return self.start(name, [sys.executable, PROGRAMS, name, *self.program_arguments], options, **variables)

    def worker(self, mode, *arguments, options=None, **variables):
        """Starts `xsched bench gpu-worker`."""
        command = [self.xsched, "bench", "gpu-worker", mode, *map(str, arguments), *self.calibration]
        return self.start(f"gpu-worker {mode}", command, options, **variables)

    def wait_until_scheduled(self, program, expected):
        """The preemption level of a scheduled program; fails unless it is the expected one."""
        until = time.monotonic() + 15
        while True:
            levels = {queue["level"] for queue in self.ps().get("queues", []) if queue["pid"] == program.pid}
            rejected = "unscheduled" in program.stderr()
            if program.process.poll() is not None:
                raise Failure(f"{program.name} exited with {program.process.returncode}. {program.stderr()}")
            if levels or rejected or time.monotonic() > until:
                break
            time.sleep(0.05)
        if not levels and "supports level" in program.stderr():
            raise Missing(program.stderr().splitlines()[-1])
        if not levels:
            raise Failure(f"{program.name} is not scheduled. {program.stderr()}")
        if expected is not None and max(levels) != expected:
            raise Failure(f"{program.name} is scheduled at level {max(levels)}, not {expected}. {program.stderr()}")
        return max(levels)

    def close(self):
        for program in list(Program.alive):
            if program is not self.service:
                program.end(1.0)
        if self.service is not None:
            self.service.end(0.0)
        shutil.rmtree(self.directory, ignore_errors=True)


def end_on_signals():
    """Exits on signals, so that the child programs are ended."""
    def stop(number, _):
        sys.exit(128 + number)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)


class Budget:
    """The time budget, and the scenarios that were skipped or failed."""

    def __init__(self, budget):
        self.began, self.budget = time.monotonic(), budget
        self.skipped, self.errors = [], []

    def spent(self):
        return time.monotonic() - self.began

    def left(self):
        return self.budget - self.spent()

    def log(self, text):
        print(f"[{self.spent():5.0f} s, {max(0, self.left()):4.0f} s left] {text}", flush=True)

    def run(self, name, seconds, function, *arguments):
        """Runs one scenario if there is time for it. Returns None if there was not, or if it failed; both are recorded."""
        if self.left() < seconds:
            self.skip(name, f"needs about {seconds:.0f} s, {max(0, self.left()):.0f} s left")
            return None
        self.log(name)
        try:
            return function(*arguments)
        except Missing as reason:
            self.skip(name, str(reason)[:500])
            return None
        except (Failure, OSError, LookupError, TypeError, ValueError, ArithmeticError,
                subprocess.SubprocessError) as error:
            text = str(error) if isinstance(error, Failure) else f"{type(error).__name__}: {error}"
            print(f"    FAILED: {text[:600]}", flush=True)
            self.errors.append({"what": name, "why": text[:2000]})
            return None

    def skip(self, name, why):
        print(f"    skipped: {name}: {why}", flush=True)
        self.skipped.append({"what": name, "why": why})


def percentile(values, percent):
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


median = statistics.median


def latency_figures(values):
    """Statistics of latencies in milliseconds, as `xsched bench gpu-worker` prints them."""
    def of(part):
        return {"n": len(part), "p50_ms": round(percentile(part, 50), 4), "p90_ms": round(percentile(part, 90), 4),
                "p99_ms": round(percentile(part, 99), 4), "max_ms": round(max(part), 4),
                "mean_ms": round(sum(part) / len(part), 4)}
    middle = (len(values) + 1) // 2
    return {**of(values), "halves": [of(part) for part in (values[:middle], values[middle:]) if part]}


def progress_at(steps, at):
    """The progress at a time, interpolated linearly, given (time, done) in order."""
    if at <= steps[0][0]:
        return steps[0][1]
    for (earlier, done), (later, more) in zip(steps, steps[1:]):
        if at <= later:
            return done + (more - done) * (at - earlier) / max(later - earlier, 1e-9)
    return steps[-1][1]


def rates(steps, begin, end, pieces=None):
    """The rate per second, in intervals of about a second between begin and end."""
    if not steps:
        raise Failure("the background made no progress")
    pieces = pieces or max(2, round(end - begin))
    width = (end - begin) / pieces
    marks = [progress_at(steps, begin + piece * width) for piece in range(pieces + 1)]
    return [round((later - earlier) / width, 3) for earlier, later in zip(marks, marks[1:])]


def steps_of_load(program):
    """The progress of a `gpu-worker load` with --report-ms."""
    return [(event["at"], event["kernels"]) for event in list(program.received) if "at" in event]
