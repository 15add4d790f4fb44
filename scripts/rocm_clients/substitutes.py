"""Libraries that clients link but whose functions they do not need here, and that neither Debian nor PyPI has.

Each is generated from the symbols that the client imports: every function returns a fixed code.
"""

import re
import subprocess
from pathlib import Path

LIBRARIES = "/usr/lib/x86_64-linux-gnu"


def imported_symbols(files: list[Path], pattern: str) -> list[str]:
    listing = subprocess.run(["nm", "-D", "--undefined-only", *map(str, files)], capture_output=True, text=True, check=True).stdout
    return sorted(set(re.findall(rf" U ({pattern})", listing)))


def make_library(output: Path, symbols: list[str], result: int, version: str = "") -> None:
    source = "".join(f"int {name}(void) {{ return {result}; }}\n" for name in symbols)
    command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{output.name}", "-o", str(output), "-x", "c", "-"]
    if version:
        script = output.with_suffix(".map")
        script.write_text(f"{version} {{ global: *; }};\n")
        command.insert(1, f"-Wl,--version-script,{script}")
    subprocess.run(command, input=source, text=True, check=True)


def make_for_hip7(directory: Path, packages: Path) -> None:
    """Without a profiler: roctracer's functions succeed, rocprofiler's fail."""
    directory.mkdir(parents=True)
    # CuPy's and JAX's run-time compiler opens the runtime by the name for developers.
    (directory / "libamdhip64.so").symlink_to(f"{LIBRARIES}/libamdhip64.so.7")
    make_library(directory / "libroctracer64.so.4", ["roctracer_start", "roctracer_stop"], 0, "ROCTRACER_4.0")
    plugin = packages / "jax_plugins/xla_rocm7/xla_rocm_plugin.so"
    if plugin.exists():
        make_library(directory / "librocprofiler-sdk.so.1", imported_symbols([plugin], r"rocprofiler_\w+"), 1)


def make_for_hip6(directory: Path, packages: Path) -> None:
    """TensorFlow opens ROCm's libraries by the names for developers, and links RCCL, of which Debian has no version for HIP 6."""
    directory.mkdir(parents=True)
    for name in ("rocrand.so.1", "rocblas.so.4", "hipfft.so.0", "amdhip64.so.6", "MIOpen.so.1", "hipblaslt.so.1"):
        (directory / f"lib{name.rsplit('.', 1)[0]}").symlink_to(f"{LIBRARIES}/lib{name}")
    files = [packages / "tensorflow/libtensorflow_cc.so.2", packages / "tensorflow/python/_pywrap_tensorflow_internal.so"]
    if all(file.exists() for file in files):
        make_library(directory / "librccl.so.1", imported_symbols(files, r"nccl\w+"), 1)
