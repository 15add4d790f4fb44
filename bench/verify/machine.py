"""The build, the service, and the programs that the verification runs on a platform."""

import collections
import json
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import time

from .budget import BUILD_LIMIT_S, OutOfTime
from .guard import die_with_parent

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WORKER = ROOT / "bench/verify/worker.py"
WORKER_TIMEOUT_S = 120
SERVICE_START_TIMEOUT_S = 60
# How often the progress of a build is read.
BUILD_POLL_S = 0.5

PLATFORMS = ["hip", "hip-standin", "hip-rocr", "cuda"]
# The packages of the build that a platform needs.
PACKAGES = {
    "hip": ["xsched", "xsched-lib"],
    "cuda": ["xsched", "xsched-lib"],
    "hip-standin": ["xsched", "xsched-lib", "hip-standin", "kfd-standin"],
    "hip-rocr": ["xsched", "xsched-lib", "rocr-standin", "kfd-standin"],
}
# Where programs keep compiled kernels: below the directory that is removed at the end.
CACHES = ["XDG_CACHE_HOME", "MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR",
          "PYTORCH_KERNEL_CACHE_PATH", "AMD_COMGR_CACHE_DIR", "CUDA_CACHE_PATH", "NUMBA_CACHE_DIR", "CUPY_CACHE_DIR"]


class Failed(Exception):
    """A wrong result. The second argument, if any, are the metrics, the third what the user can do."""


class Slow(Failed):
    """A comparison of times failed. Other load on the machine may be the cause, so the stage is repeated."""


class Skipped(Exception):
    """A stage cannot run on this machine."""


class NoBuild(Exception):
    """There is no build and none can be made."""


Output = collections.namedtuple("Output", "values messages")


def find_build(options, progress, directory):
    """The directory of the programs: the one that was given, the release build, brought up to date, or an installation."""
    if options.build:
        build = pathlib.Path(options.build).resolve()
        missing = [name for name in ("xsched", "libxsched.so") if not (build / name).exists()]
        if missing:
            raise NoBuild(f"{build} has no {' and no '.join(missing)}: cargo build --release -p xsched -p xsched-lib")
        return build
    build = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "release"
    cargo = shutil.which("cargo") or shutil.which("cargo", path=os.path.expanduser("~/.cargo/bin"))
    if cargo and (ROOT / "Cargo.toml").exists():
        run_cargo(cargo, PACKAGES[options.platform], progress, directory)
        return build
    if (build / "xsched").exists() and (build / "libxsched.so").exists():
        return build
    installed = shutil.which("xsched")
    if installed:
        return pathlib.Path(installed).resolve().parent
    raise NoBuild("XSched is not built, and cargo is not installed: install Rust, or give a build with --build DIRECTORY")


def run_cargo(cargo, packages, progress, directory):
    """Brings the release build of these packages up to date."""
    words = ["build", "--release", *(word for package in packages for word in ("-p", package))]
    command = f"cargo {' '.join(words)}"
    log = pathlib.Path(directory) / "build.log"
    deadline = time.monotonic() + BUILD_LIMIT_S
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.Popen([cargo, *words], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=dict(os.environ, TMPDIR=str(directory)),
                                   start_new_session=True, preexec_fn=die_with_parent)
    while True:
        compiled = log.read_text(encoding="utf-8", errors="replace").count(" Compiling ")
        progress.begin(0, f"building XSched (minutes if it was not built before): {compiled} packages compiled")
        try:
            status = process.wait(timeout=min(BUILD_POLL_S, max(0.0, deadline - time.monotonic())))
            break
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                stop(process)
                raise NoBuild(f"building took longer than {BUILD_LIMIT_S / 60:.0f} minutes: {command}") from None
    if status != 0:
        raise NoBuild(f"{command} failed:\n" + "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:]))


def stop(process):
    """Kills a program with its children, and collects its exit status."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.kill()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream:
            stream.close()
    process.wait()


class Machine:
    """Runs workers on a platform, with and without the scheduler."""

    def __init__(self, options, build, directory, budget):
        self.platform, self.quick, self.budget = options.platform, options.quick, budget
        self.build, self.directory = build, pathlib.Path(directory)
        self.xsched = build / "xsched"
        self.library = next((path for path in (build / "libxsched.so", build.parent / "lib/libxsched.so") if path.exists()), build / "libxsched.so")
        self.is_release = build.name != "debug"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("XSCHED_", "XLOG_", "LD_PRELOAD"))}
        self.environment |= {"XSCHED_SOCKET": str(self.directory / "socket"), "PYTHONDONTWRITEBYTECODE": "1", "VERIFY_CODE": str(self.directory / "kernels"),
                             "TMPDIR": str(self.directory)}
        for name in CACHES:
            self.environment[name] = str(self.directory / "cache" / name.lower())
            os.makedirs(self.environment[name], exist_ok=True)
        self.python = [sys.executable]
        self.inside = []
        self.running = []
        self.service = None
        self.second_runtime = None
        # The files that `xsched doctor` examines, if they are not those of this machine.
        self.tree = None
        # The preemption level that programs get; None until it is known.
        self.level = None
        if self.platform == "hip-standin":
            self.use_hip_standin()
        elif self.platform == "hip-rocr":
            self.use_rocr_standin(options.root)

    @property
    def is_simulated(self):
        return self.platform in ("hip-standin", "hip-rocr")

    @property
    def is_hip(self):
        return self.platform != "cuda"

    def link(self, what, library, *outputs):
        for output in outputs:
            output.parent.mkdir(parents=True, exist_ok=True)
            # In this environment, because the compiler's temporary files must be removed too if it is stopped.
            subprocess.run([ROOT / "standins" / what / "link.sh", self.build / library, output], env=self.environment, check=True)

    def use_hip_standin(self):
        runtime, second = self.directory / "libamdhip64.so.6", self.directory / "second/libamdhip64.so.6"
        self.link("hip", "libhip_standin.a", runtime)
        second.parent.mkdir()
        shutil.copy(runtime, second)
        self.second_runtime = str(second)
        self.environment |= {"VERIFY_RUNTIME": str(runtime), "HIP_STANDIN_DEVICE": str(self.directory / "gpu"),
                             "LD_PRELOAD": str(self.build / "libkfd_standin.so")}

    def use_rocr_standin(self, root):
        """AMD's real HIP runtime in an unpacked system, on the stand-in for ROCr."""
        root = pathlib.Path(root or os.environ.get("XSCHED_ROCM_7") or os.environ.get("XSCHED_ROCM_6") or "").resolve()
        libraries = root / "root/usr/lib/x86_64-linux-gnu"
        runtimes = sorted(path.name for path in libraries.glob("libamdhip64.so.?"))
        compilers = sorted(path.name for path in libraries.glob("libhiprtc.so.?"))
        if not runtimes or not compilers or not (root / "root/usr/bin/python3").exists():
            raise NoBuild("hip-rocr needs a system with AMD's runtime and Python: `scripts/rocm-root 7 DIR` makes one, and --root DIR, "
                          "XSCHED_ROCM_6=DIR or XSCHED_ROCM_7=DIR names it")
        standins = self.directory / "standins"
        self.link("rocr", "librocr_standin.a", standins / "libhsa-runtime64.so.1")
        shutil.copy(self.build / "libkfd_standin.so", standins)
        self.inside = [str(ROOT / "scripts/rocm-root"), "exec", str(root), "--standins", str(standins), "--bind", str(self.build),
                       "--bind", str(self.directory), "--"]
        self.make_tree(root)
        self.python = ["/usr/bin/python3"]
        self.environment |= {"VERIFY_RUNTIME": runtimes[-1], "VERIFY_HIPRTC": compilers[-1], "ROCR_STANDIN_DEVICE": str(self.directory / "gpu"),
                             "HOME": "/root"}

    def make_tree(self, root):
        """The files of the simulated machine, for `xsched doctor`. The stand-in for the driver writes those below /sys."""
        self.tree = self.directory / "machine"
        (self.tree / "dev/dri").mkdir(parents=True)
        (self.tree / "dev/kfd").touch()
        for minor in range(128, 192):
            (self.tree / f"dev/dri/renderD{minor}").touch()
        links = {"sys": self.directory / "gpu.driver/sys", "usr": root / "root/usr", "proc": "/proc", "etc": "/etc"}
        for name, target in links.items():
            (self.tree / name).symlink_to(target)

    def start_service(self):
        self.service = self.spawn([self.xsched, "serve", "--quiet"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + SERVICE_START_TIMEOUT_S
        while self.tool("policy").returncode != 0:
            if time.monotonic() > end or self.service.poll() is not None:
                raise Failed("the service does not reply")
            time.sleep(0.02)

    def set_clock(self, clock):
        """Sets the rate of the clock that kernels read, which determines how long they run."""
        if clock:
            self.environment["VERIFY_TICKS_PER_NS"] = repr(clock["reported"] or clock["measured"])

    def tool(self, *words):
        """Runs a subcommand of xsched to its end."""
        return subprocess.run([self.xsched, *words], env=self.environment, capture_output=True, text=True, check=False, timeout=60)

    def spawn(self, command, env=None, **streams):
        streams = {"stdin": subprocess.DEVNULL, **streams}
        process = subprocess.Popen([str(word) for word in command], env=env or self.environment, cwd=self.directory, text=True,
                                   start_new_session=True, preexec_fn=die_with_parent, **streams)
        self.running.append(process)
        return process

    def stop(self, process):
        stop(process)
        if process in self.running:
            self.running.remove(process)

    def close(self):
        for process in list(self.running):
            self.stop(process)

    def command(self, words, options):
        """The command line of a worker. `options` are those of `xsched run`; None runs the worker without the scheduler."""
        worker = [*self.python, str(WORKER), self.platform, *map(str, words)]
        if options is not None:
            worker = [str(self.xsched), "run", *map(str, options), "--", *worker]
        return [*self.inside, *worker]

    def start(self, *words, run=None, more=None, stdin=subprocess.DEVNULL):
        """Starts a worker. `more` are further environment variables."""
        return self.spawn(self.command(words, run), env={**self.environment, **(more or {})}, stdin=stdin,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def output(self, *words, run=None, more=None):
        """The output and the messages of a worker that must exit successfully."""
        return self.finish(self.start(*words, run=run, more=more))

    def result(self, *words, run=None, more=None):
        """The output of a worker that must exit successfully."""
        return self.output(*words, run=run, more=more).values

    def finish(self, process):
        """Waits for a worker that must exit successfully."""
        try:
            timeout = self.budget.timeout(WORKER_TIMEOUT_S)
            out, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            if timeout < WORKER_TIMEOUT_S:
                raise OutOfTime(f"the time of {self.budget.limit_s / 60:.0f} minutes was used up while a program ran") from None
            raise self.hung(process, "exit") from None
        finally:
            self.stop(process)
        if process.returncode != 0:
            # The last line of a traceback is the error.
            last = (errors.strip().splitlines() or ["no message"])[-1]
            raise Failed(f"exit status {process.returncode}: {last[-400:]}", {"stderr": errors.strip().splitlines()[-20:]})
        return Output([json.loads(line) for line in out.splitlines()], errors)

    def first_line(self, process):
        """The first line of a worker, which it prints when it has used the device."""
        has_output = select.select([process.stdout], [], [], self.budget.timeout(WORKER_TIMEOUT_S))[0]
        if not has_output:
            self.budget.timeout(WORKER_TIMEOUT_S)
            error = self.hung(process, "output")
            self.stop(process)
            raise error
        line = process.stdout.readline()
        if not line:
            errors = process.stderr.read()[-400:]
            self.stop(process)
            raise Failed(f"a program did not start: {errors.strip()}")
        return json.loads(line)

    def hung(self, process, what):
        """The failure of a program that hangs, with the state of its threads and of all tasks."""
        threads = {}
        for status in pathlib.Path("/proc", str(process.pid), "task").glob("*"):
            try:
                threads[status.name] = f"{(status / 'comm').read_text().strip()}: {(status / 'wchan').read_text().strip()}"
            except OSError:
                pass
        try:
            status = json.loads(self.tool("ps", "--json").stdout)
        except (ValueError, subprocess.SubprocessError):
            status = {}
        metrics = {"pid": process.pid, "threads": threads, "tasks": status.get("tasks"), "queues": status.get("queues")}
        return Failed(f"no {what} within {WORKER_TIMEOUT_S} s: {' '.join(process.args[-6:])}", metrics)

    def beside(self, batch, batch_run, words, run):
        """The output of a worker beside a batch that has completed its first round."""
        background = self.start(*batch, run=batch_run)
        try:
            self.first_line(background)
            return self.result(*words, run=run)
        finally:
            self.stop(background)

    def queues(self, pid):
        """The queues of a process, as the service reports them."""
        status = json.loads(self.tool("ps", "--json", "--sample", "1ms").stdout or "{}")
        return [queue for queue in status.get("queues", []) if queue["pid"] == pid]

    def clocks(self):
        """The present clocks of AMD's GPUs that are busy, as `xsched doctor` reads them."""
        try:
            checks = json.loads(self.tool("doctor", "--json").stdout)["checks"]
        except (ValueError, KeyError):
            return []
        found = [check["facts"] for check in checks if check["name"].startswith("amd clocks")]
        return [clock for clock in found if clock["clock_mhz"] and clock["max_clock_mhz"] and (clock["busy_percent"] or 0) > 50]

    def version(self):
        """The version of this build."""
        return self.tool("--version").stdout.split()[-1:] or ["unknown"]


def library_messages(errors):
    """The messages of the library among the lines of a program's stderr."""
    return re.findall(r"^xsched\[\d+\]: (.*)$", errors, re.MULTILINE)
