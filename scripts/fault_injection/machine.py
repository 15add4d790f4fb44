"""The machine that faults are injected into: devices, a service, and programs that have to survive every fault."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from .programs import LIBRARIES, Program
from .stepped import StepReport

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
STEPS_SOURCE = HERE / "programs/steps.c"

# How long a condition may take to become true on a machine with busy CPUs.
CONDITION_TIMEOUT_S = 30
TOOL_TIMEOUT_S = 20

# (platform, priority, kernels, microseconds of a kernel, pause in microseconds). All pause, so that programs of lower priority run.
SURVIVORS = [("cuda", 1, 4, 300, 9000), ("cuda", 0, 6, 300, 6000), ("xsim", 1, 4, 300, 9000), ("xsim", 0, 6, 300, 6000), ("hip", 0, 4, 300, 6000)]


class Failure(Exception):
    """A fault had a consequence that it must not have."""

    # The state of the machine, if it was recorded when the failure was found.
    state = ""


class Skipped(Exception):
    """The fault was not injected, for this reason."""


def wait_until(condition, is_true, timeout=CONDITION_TIMEOUT_S):
    """Waits until `is_true` returns an empty value: it returns what is missing."""
    end = time.monotonic() + timeout
    while missing := is_true():
        if time.monotonic() > end:
            raise Failure(f"not within {timeout} s: {condition}: {missing}")
        time.sleep(0.01)


class Build:
    """The libraries and the test programs."""

    def __init__(self, directory, build):
        self.directory, self.build = pathlib.Path(directory), pathlib.Path(build).resolve()
        missing = [name for name in ("xsched", "libxsched.so", *LIBRARIES) if not (self.build / name).exists()]
        if missing:
            sys.exit(f"{self.build} has no {' and no '.join(missing)}: run cargo build --workspace, with --release for target/release")
        self.xsched = self.build / "xsched"
        standins, compiler = ROOT / "standins", os.environ.get("CC", "cc")
        (self.directory / "libcuda.so.1").symlink_to(self.build / "libstandin_cuda.so")
        subprocess.run([standins / "hip/link.sh", self.build / "libhip_standin.a", self.directory / "libamdhip64.so.6"], check=True)
        include = {"cuda": [standins / "cuda", standins / "cuda/tests/programs"], "hip": [ROOT / "crates/xsched/tests/programs/hip"], "xsim": [standins / "xsim"]}
        libraries = {"cuda": self.directory / "libcuda.so.1", "hip": self.directory / "libamdhip64.so.6", "xsim": self.build / "libxsim.so"}
        for platform, library in libraries.items():
            flags = [f"-I{directory}" for directory in include[platform]]
            subprocess.run([compiler, "-std=gnu11", "-O1", "-Wall", "-Werror", *flags, "-o", self.directory / platform, HERE / f"programs/{platform}.c",
                            library, "-ldl", "-lpthread"], check=True)
        subprocess.run([compiler, "-std=gnu11", "-O1", "-Wall", "-Werror", "-o", self.directory / "steps", STEPS_SOURCE], check=True)
        # Some containers do not allow to filter system calls.
        probe = subprocess.run([self.directory / "steps", "2", "0", "none", "0", "true"], stderr=subprocess.PIPE, text=True, check=False)
        self.why_no_steps = "" if probe.returncode == 0 else probe.stderr.strip()


class Machine:
    """One socket, one set of devices, one service, and the programs that have to survive."""

    def __init__(self, build, directory):
        self.build, self.directory = build, pathlib.Path(directory)
        self.socket = self.directory / "socket"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("XSCHED_", "LD_", "XLOG_"))}
        self.environment = kept | {
            "XSCHED_SOCKET": str(self.socket), "LD_LIBRARY_PATH": f"{build.directory}:{build.build}", "XSIM_DEVICE": str(self.directory / "xsim"),
            "XSCHED_STANDIN_CUDA": str(self.directory / "cuda"), "HIP_STANDIN_DEVICE": str(self.directory / "hip"),
            "KFD_STANDIN_LOG": str(self.directory / "kfd.log"),
        }
        self.service, self.service_report, self.programs, self.survivors = None, None, [], []

    # The service

    def start_service(self, wrap=(), program=None, options=(), step=None, waits=True):
        """Starts a service in place of the one that runs, if one runs. `wrap` is a command line in front of it, `step` is (signal, name of the
        step, count)."""
        self.service_report = StepReport(self.build, *step) if step else None
        command = [*map(str, wrap), str(program or self.build.xsched), "serve", "--quiet", "--replace", *options]
        if step:
            command = [*self.service_report.wrap, *command]
        with open(self.directory / "service.log", "ab") as log:
            self.service = subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                                            pass_fds=[self.service_report.write_end] if step else [])
        if step:
            self.service_report.start()
        if waits:
            wait_until("the service replies", self.missing_reply)

    @property
    def service_pid(self):
        """The process of the service, not of the program that sends it a signal at a step."""
        if self.service_report:
            self.service_report.has_pid.wait(10)
            return self.service_report.pid
        return self.service.pid

    def missing_reply(self):
        if self.service.poll() is not None:
            raise Failure(f"the service exited with {self.service.returncode}: {self.log_tail()}")
        try:
            reply = self.tool("ps", "--json")
        except subprocess.TimeoutExpired:
            return "no reply"
        if reply.returncode != 0:
            return "no reply"
        pid = json.loads(reply.stdout)["pid"]
        return None if pid == self.service_pid else f"the service is {pid} instead of {self.service_pid}"

    def log_tail(self):
        return (self.directory / "service.log").read_text(errors="replace")[-2000:]

    def signal_service(self, number):
        if self.service.poll() is None and (pid := self.service_pid):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def kill_service(self, number=signal.SIGKILL):
        """Ends the service and waits for its exit."""
        if self.service is not None:
            self.signal_service(number)
            self.service.wait(TOOL_TIMEOUT_S)

    def tool(self, *words, timeout=TOOL_TIMEOUT_S, wrap=(), **options):
        options.setdefault("stdout", subprocess.PIPE)
        return subprocess.run([*map(str, wrap), str(self.build.xsched), *words], env=self.environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                              timeout=timeout, check=False, **options)

    def status(self, timeout=TOOL_TIMEOUT_S):
        """The tasks and queues that the service lists."""
        try:
            result = self.tool("ps", "--json", timeout=timeout)
        except subprocess.TimeoutExpired as expired:
            raise Failure("`xsched ps --json` hangs") from expired
        if result.returncode != 0:
            raise Failure(f"`xsched ps --json` exited with {result.returncode}: {result.stderr.strip()}")
        return json.loads(result.stdout)

    # Programs

    def start(self, platform, priority, kernels, kernel_us, pause_us, **options):
        program = Program(self, platform, priority, kernels, kernel_us, pause_us, **options)
        self.programs.append(program)
        return program

    def start_survivors(self):
        for platform, priority, kernels, kernel_us, pause_us in SURVIVORS:
            self.survivors.append(Program(self, platform, priority, kernels, kernel_us, pause_us))

    def forget(self, program):
        """The program has ended, or ends now."""
        program.kill()
        if program in self.programs:
            self.programs.remove(program)

    def close(self):
        for program in self.survivors + self.programs:
            program.kill()
        self.kill_service()
        own = f"XSCHED_SOCKET={self.socket}".encode()
        return [pid for pid in pids() if own in read(f"/proc/{pid}/environ")]


def pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read(path):
    try:
        return pathlib.Path(path).read_bytes()
    except OSError:
        return b""
