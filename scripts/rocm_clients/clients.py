"""The clients: how each is started, and which figures in its output are times."""

import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from .machine import PROGRAMS, REPOSITORY, Machine, MissingRequirement

LIBEXEC = "/usr/libexec/rocm"
NUMBER = r"[-+]?[0-9][0-9.,]*(?:e[-+]?[0-9]+)?"
# Google Test prints how long each test took.
GTEST = [(r"\(\d+ ms( total)?\)", "(ms)")]
ROCBLAS = [
    # A line about its start follows an empty one, and appears only if the start was slow.
    (r"(?m)^\n?rocBLAS info: .*\n", ""),
    # The last two columns: operations per second, and microseconds.
    (rf"(?m)^([NT],[NT],.*, *\d+, *\d+), *{NUMBER}, *{NUMBER}$", r"\1, RATE, TIME"),
]
HIPBLASLT = [(rf"(?m)^( *[NT],[NT],.*),{NUMBER},{NUMBER},{NUMBER}$", r"\1,RATE,RATE,TIME")]
MIGRAPHX = [
    (rf"{NUMBER}ms", "TIME"), (rf"{NUMBER}s\)", "TIME)"), (rf"Rate: {NUMBER}", "Rate: RATE"), (rf"{NUMBER}%", "PERCENT"),
    (r"\[\d{4}-\d\d-\d\d [\d:]+\]", "[DATE]"), (r"(?m)^gpu::.*: TIME / .*\n", ""),
    # The summary is sorted by time.
    (r"(?ms)^Summary:\n.*?\n\n", "Summary:\n\n"), (r"/tmp/[\w./-]+", "FILE"),
]
LLAMA = [(rf" *{NUMBER} ± {NUMBER}", " RATE"), (r"(?m)^load_backend: .*\n", "")]
MIOPEN = [
    (rf"(Elapsed|Time|GWSS|calls):? ?{NUMBER}( ms)?", r"\1 TIME"), (r"/tmp/miopen-[\w.-]+/", "DIRECTORY/"),
    (rf"(?m)^(stats: fwd-conv.*,) *{NUMBER}, *{NUMBER}, *{NUMBER}$", r"\1 RATE, RATE, TIME"),
    # It selects an algorithm by measured time.
    (r"Algorithm: \d+, Solution: \S+", "Algorithm: SELECTED"),
]
# A test searches the file system, where processes come and go.
RCCL = [*GTEST, (r"(?m)^find: .*\n", ""), (r"(?m)^\[ TIMING   \].*\n", ""), (r"(?m)^.*(NCCL (INFO|WARN)|RCCL version|librccl path).*\n", ""), (r"0x[0-9a-f]+", "ADDRESS"), (r"\b\d+:\d+ \[", "PID [")]
XLA = [(r"(?m)^[IWE]\d{4} [\d:.]+ +\d+ ", "LOG "), (r"(?m)^LOG .*\n", "")]
TENSORFLOW = [(r"(?m)^\d{4}-\d\d-\d\d [^\n]*\n", ""), (r"(?m)^(WARNING|I\d{4}|E\d{4}|W\d{4})[^\n]*\n", "")]
GDB = [
    (r"0x[0-9a-f]+", "ADDRESS"), (r"\(LWP \d+\)|LWP \d+", "LWP"), (r"process \d+", "process"), (r"\[(New|Thread|Switching)[^\n]*\n", ""), *GTEST,
    (r"(?m)^warning: .*\n", ""),
]


@dataclass
class Client:
    """A program that uses AMD's runtime."""

    name: str
    root: str
    package: str
    command: list[str]
    filters: list[tuple[str, str]] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    binds: list[str] = field(default_factory=list)
    preload: list[str] = field(default_factory=list)
    requires: list[str] = field(default_factory=list)
    # Further roots that it needs.
    other_roots: tuple[str, ...] = ()
    gpus: int = 1
    # How many processes of the client use GPUs. Several are one job: they are held together.
    ranks: int = 1
    expected_status: int = 0
    # What the output must contain in every run.
    expected_output: str = ""
    is_light: bool = False
    has_pair: bool = True
    ways: tuple[str, ...] = ("names", "table")
    # The reason, if its kernels never keep the GPU busy for longer than the time to react: no launch beside it is counted.
    short_work: str = ""
    # The reason, if the number of its kernels differs from run to run even without XSched.
    kernels_vary: str = ""
    # The reason, if the client cannot run.
    missing: str = ""

    def filtered(self, output: str) -> str:
        for pattern, replacement in self.filters:
            output = re.sub(pattern, replacement, output)
        return output

    def check_requirements(self, machine: Machine) -> None:
        if self.missing:
            raise MissingRequirement(self.missing)
        root = machine.root(self.root)
        for version in self.other_roots:
            machine.root(version)
        for path in self.requires:
            place = Path(path.format(root=root)) if path.startswith("{root}") else root / "root" / path.lstrip("/")
            if not place.exists():
                raise MissingRequirement(f"XSCHED_ROCM_{self.root} names a directory without {place.relative_to(root)} (scripts/rocm-root)")


def rocrand(root: str, program: str) -> Client:
    path = f"{LIBEXEC}/librocrand1-tests/{program}"
    return Client(
        f"rocrand-{program.removeprefix('test_rocrand_')}-{root}", root, "librocrand1-tests", [path], GTEST, requires=[path], expected_output="PASSED",
        # Not light: beside the tests of graphs launches of low priority are late in most pairs (bench/README.md).
        is_light=root == "6" and program == "test_rocrand_basic",
    )


def rocblas(root: str, package: str) -> Client:
    path = f"{LIBEXEC}/{package}/rocblas-bench"
    # Not light: reading its kernels takes 4 s of each of its nine runs or more.
    words = "-f gemm -r f32_r -m 128 -n 128 -k 128 -i 2000 -j 2".split()
    return Client(f"rocblas-bench-{root}", root, package, [path, *words], ROCBLAS, requires=[path], expected_output="rocblas-Gflops")


def hipblaslt(root: str) -> Client:
    path = f"{LIBEXEC}/libhipblaslt1-bench/hipblaslt-bench"
    words = "-m 128 -n 128 -k 128 -i 2000 -j 2".split()
    return Client(f"hipblaslt-bench-{root}", root, "libhipblaslt1-bench", [path, *words], HIPBLASLT, requires=[path], expected_output="hipblaslt-Gflops", is_light=root == "6")


def python(name: str, package: str, program: str, *arguments: str, **values) -> Client:
    environment = {"PYTHONPATH": "{root}/python/packages", "ROCM_HOME": "/usr", "MORE_LIBRARIES": "{directory}/missing-7", "HOME": "{directory}", "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment |= values.pop("environment", {})
    return Client(
        name, "7", package, ["python3", str(PROGRAMS / program), *arguments], environment=environment,
        requires=[f"{{root}}/python/packages/{name}", "/usr/bin/python3"], **values,
    )


def tensorflow(machine: Machine) -> Client:
    """The newest version is built for Python 3.11, which Debian's newest suites lack: it runs with the host's."""
    # The libraries look for their kernels beside the file by which they were opened: here a link.
    libraries = "/usr/lib/x86_64-linux-gnu"
    client = Client(
        "tensorflow", "6", "tensorflow-rocm", [], TENSORFLOW, expected_output="copies are right: True",
        environment={"PYTHONPATH": "{root7}/python/tensorflow", "MORE_LIBRARIES": "{directory}/missing-6", "HOME": "{directory}", "TF_CPP_MIN_LOG_LEVEL": "3",
                     "ROCBLAS_TENSILE_LIBPATH": f"{libraries}/rocblas/4.4.1/library", "HIPBLASLT_TENSILE_LIBPATH": f"{libraries}/hipblaslt/library"},
    )
    packages = machine.roots["7"] and machine.roots["7"] / "python/tensorflow"
    if not packages or not (packages / "tensorflow").exists():
        client.missing = "it is not installed (scripts/rocm-root python DIR, and XSCHED_ROCM_7=DIR)"
    elif sys.version_info[:2] != (3, 11):
        client.missing = f"its newest version is for Python 3.11, and this is {sys.version_info[0]}.{sys.version_info[1]}"
    else:
        client.command = [os.path.realpath(sys.executable), str(PROGRAMS / "tensorflow_client.py")]
        client.binds = [sys.base_prefix, str(packages)]
    return client


def all_clients(machine: Machine) -> list[Client]:
    directory = machine.directory
    gdb_commands = [
        "set pagination off", "set print thread-events off", "set print inferior-events off", "set breakpoint pending on",
        "break rocrand_create_generator", "run", "backtrace 1", "delete", "continue", "print $_exitcode",
    ]
    gdb = ["gdb", "-batch", "-nx", *(word for command in gdb_commands for word in ("-ex", command)), "--args"]
    miopen = f"{LIBEXEC}/libmiopen1-tests/MIOpenDriver"
    rccl = f"{LIBEXEC}/librccl1-tests/rccl-UnitTests"
    basic = f"{LIBEXEC}/librocrand1-tests/test_rocrand_basic"
    # The directory in which Debian built MIOpen is compiled in as the place of the OpenCL compiler.
    miopen_compiler = "mkdir -p /build/reproducible-path/miopen-6.4.3+dfsg/build && ln -sf /usr/bin/clang-21 /build/reproducible-path/miopen-6.4.3+dfsg/build/ && exec \"$@\""
    return [
        rocrand("6", "test_rocrand_basic"),
        rocrand("6", "test_rocrand_hipgraphs"),
        rocblas("6", "librocblas4-bench"),
        hipblaslt("6"),
        Client(
            "llama-bench", "6", "llama.cpp", ["llama-bench", "-m", f"{directory}/random.gguf", "-ngl", "99", "-p", "64", "-n", "32", "-r", "3"], LLAMA,
            requires=["/usr/bin/llama-bench"], expected_output="ROCm", is_light=True,
        ),
        Client(
            "migraphx", "6", "migraphx", ["migraphx-driver", "perf", f"{directory}/small.onnx", "-n", "100"], MIGRAPHX,
            requires=["/usr/bin/migraphx-driver"], expected_output="Complete", is_light=True,
        ),
        Client(
            "miopen", "6", "libmiopen1-tests",
            ["/bin/bash", "-c", miopen_compiler, "bash", miopen, *"conv -W 32 -H 32 -c 3 -n 1 -k 4 -y 3 -x 3 -F 1 -V 0 -i 200 -w 1 -t 1".split()], MIOPEN,
            # Its compiler option -isystem /usr/include hides the C headers from the C++ library.
            environment={"CCC_OVERRIDE_OPTIONS": "# x-isystem x/usr/include", "HOME": "{directory}"},
            requires=[miopen, "/usr/bin/clang++-21"], expected_output="Forward Conv",
            kernels_vary="it selects an algorithm by measured time",
        ),
        Client(
            "gdb", "6", "gdb", [*gdb, basic], GDB, requires=["/usr/bin/gdb", basic], expected_output="= 0", has_pair=False,
        ),
        Client(
            "gdb-attach", "6", "gdb", [str(PROGRAMS / "attach.sh"), basic], GDB, requires=["/usr/bin/gdb", basic],
            expected_output="the program continued and exited with status 0", has_pair=False,
        ),
        rocrand("7", "test_rocrand_basic"),
        rocblas("7", "librocblas5-bench"),
        hipblaslt("7"),
        Client(
            "rccl-tests", "7", "librccl1-tests", [rccl, "--gtest_filter=Standalone.*:CollTraceUtilsTest.*-Standalone.RegressionTiming"], RCCL, gpus=2,
            environment={"NCCL_SOCKET_IFNAME": "lo", "UT_MIN_GPUS": "2"}, requires=[rccl], expected_output="PASSED",
            short_work="its kernels are fills and copies, which the processor carries out at once",
        ),
        Client(
            "rccl", "7", "librccl1", [f"{directory}/rccl_client"], RCCL, gpus=2, environment={"NCCL_SOCKET_IFNAME": "lo"},
            requires=["/usr/lib/x86_64-linux-gnu/librccl.so.1"], expected_output="300 collectives on 2 GPUs, 0 failures",
        ),
        Client(
            "rccl-ranks", "7", "librccl1", [f"{directory}/rccl_ranks"], RCCL, gpus=2, ranks=2, environment={"NCCL_SOCKET_IFNAME": "lo"},
            requires=["/usr/lib/x86_64-linux-gnu/librccl.so.1"], expected_output="24000 collectives of 2 processes",
            short_work="its processes wait for each of many short collectives",
        ),
        python("cupy", "cupy-rocm-7-0", "cupy_client.py", expected_output="fills and copies are right: True"),
        python("jax", "jax-rocm7-plugin", "jax_client.py", filters=XLA, expected_output="copies are right: True"),
        python("onnxruntime", "onnxruntime-rocm", "onnx_client.py", f"{directory}/small.onnx", expected_output="ROCMExecutionProvider"),
        Client(
            "both-runtimes", "7", "libamdhip64-6, libamdhip64-7", [f"{directory}/both_runtimes", "/opt/hip6/libamdhip64.so.6", "libamdhip64.so.7"],
            binds=["{root6}/root/usr/lib/x86_64-linux-gnu=/opt/hip6"], other_roots=("6",), expected_output="2 runtimes, 50 rounds", has_pair=False,
        ),
        Client(
            "profiler", "7", "librocprofiler-register-0", [basic], GTEST, preload=["{standins}/libprofiler.so"], requires=[basic], expected_output="profiled", ways=("table",), has_pair=False,
        ),
        Client("rocprofiler-sdk", "7", "rocprofiler-sdk", [], missing="neither Debian nor PyPI has rocprofiler-sdk"),
        tensorflow(machine),
    ]


__all__ = ["Client", "REPOSITORY", "all_clients"]
