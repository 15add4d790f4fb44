"""Programs that compute in rounds on a simulated device, print every result, and end when their input ends."""
import os
import signal
import subprocess
import threading
import time

from .stepped import StepReport

# The libraries of the stand-ins that have to be built.
LIBRARIES = ["libstandin_cuda.so", "libxsim.so", "libhip_standin.a", "libkfd_standin.so"]
MASK = (1 << 32) - 1
# The byte of the stand-in's file that is locked during each access to the first device.
CUDA_DEVICE_LOCK = 1 << 24
# The word in the file of a simulated device that is its lock, and the part of it that is the owner's pid.
SIMULATED_DEVICE_LOCK = 12
LOCK_OWNER_MASK = (1 << 22) - 1


def expected(platform, kernels, round_number):
    """The result after a round, as programs/rounds.h defines it."""
    if platform != "cuda":
        return kernels * round_number & MASK
    rounds, of_kernels = round_number * (round_number + 1) // 2, kernels * (kernels - 1) // 2
    return (1000003 * rounds * kernels + 97 * of_kernels * round_number) & MASK


def owner_of_simulated_device(path):
    """The process that holds the lock of a simulated device; 0 if none does, or if the file is not one."""
    if not path.is_file():
        return 0
    with open(path, "rb") as file:
        file.seek(SIMULATED_DEVICE_LOCK)
        return int.from_bytes(file.read(4), "little") & LOCK_OWNER_MASK


class Program:
    def __init__(self, machine, platform, priority, kernels, kernel_us, pause_us, *, level=None, step=None, inner=(), preload=True, library=None):
        """`step` is (signal, name of the step, count). `inner` is a command line in front of the program. Without `preload` it runs unscheduled.
        `library` is another build of the preloaded library."""
        self.machine, self.platform, self.priority, self.kernels = machine, platform, priority, kernels
        preloads = {"cuda": machine.build.directory / "libcuda.so.1", "hip": machine.build.build / "libkfd_standin.so"}
        environment = dict(machine.environment)
        if platform in preloads:
            # Behind libxsched.so, so that the stand-in's `ioctl` replaces the C library's.
            environment["LD_PRELOAD"] = str(preloads[platform])
        if library:
            environment["XSCHED_LIBRARY"] = str(library)
        run = [str(machine.build.xsched), "run", "--priority", str(priority), *(["--level", str(level)] if level else []), "--"]
        self.words = [str(machine.build.directory / platform), str(kernels), str(kernel_us), str(pause_us)]
        command = [*(run if preload else []), *map(str, inner), *self.words]
        self.step = step
        self.report = StepReport(machine.build, *step) if step else None
        if step:
            command = [*self.report.wrap, *command]
        self.errors = open(machine.directory / "errors", "ab+")
        self.rounds, self.last_output, self.wrong = 0, time.monotonic(), None
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
                                        start_new_session=True, pass_fds=[self.report.write_end] if step else [])
        self.reader = threading.Thread(target=self.read_output, daemon=True)
        self.reader.start()
        if step:
            self.report.start()

    @property
    def pid(self):
        """The process of the program, not of the program that sends it a signal at a step."""
        if self.report:
            self.report.has_pid.wait(10)
            return self.report.pid
        return self.process.pid

    def __str__(self):
        with_step = f" with {signal.Signals(self.step[0]).name} at {self.step[1]!r}, passage {self.step[2]}" if self.step and self.step[0] else ""
        return f"{self.platform} {' '.join(self.words[1:])}, priority {self.priority}, pid {self.pid}{with_step}"

    def read_output(self):
        for line in self.process.stdout:
            try:
                number, result = map(int, line.split())
            except ValueError:
                self.wrong = self.wrong or f"printed {line!r}"
                continue
            right = expected(self.platform, self.kernels, number)
            if number != self.rounds + 1 or result != right:
                self.wrong = self.wrong or f"round {number} after {self.rounds} has the result {result} instead of {right}"
            self.rounds, self.last_output = number, time.monotonic()

    def send(self, number):
        """Sends a signal to the program."""
        if (pid := self.pid) and self.process.poll() is None:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def state(self):
        """The state of the process, as in /proc: T is stopped, X has ended."""
        try:
            with open(f"/proc/{self.pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0]
        except OSError:
            return "X"

    def holds_device_lock(self):
        """Whether it excludes all other processes from a device: inside the stand-in for NVIDIA's driver (standins/cuda/src/shared.rs), or from a
        simulated device, whose lock names its owner (crates/xsched-sim/src/lock.rs)."""
        with open("/proc/locks") as file:
            if any(f" {self.pid} " in line and f" {CUDA_DEVICE_LOCK} {CUDA_DEVICE_LOCK}" in line and "->" not in line for line in file):
                return True
        return any(owner_of_simulated_device(path) == self.pid for name in ("xsim*", "hip*") for path in self.machine.directory.glob(name))

    def end_input(self):
        try:
            self.process.stdin.close()
        except OSError:
            pass

    def wait(self, timeout):
        """Waits for the exit. Returns the status as Popen does, or none if the program runs on."""
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        self.reader.join(timeout)
        status = self.process.returncode
        if self.report:
            self.report.reader.join(timeout)
            if (raw := self.report.exit_status) is not None:
                status = -os.WTERMSIG(raw) if os.WIFSIGNALED(raw) else os.WEXITSTATUS(raw)
        return status

    def kill(self):
        """Ends the program, whatever it does."""
        self.send(signal.SIGKILL)
        if self.wait(10) is None:
            self.process.kill()
            self.process.wait()
        self.reader.join(10)
        self.end_input()
        self.process.stdout.close()
        self.errors.close()
