"""Installs the stand-in driver and its test programs in a directory, for scripts that measure or soak a release build."""
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
BUILT = HERE.parent.parent.parent / "target/release"


class Standin:
    def __init__(self, directory, programs):
        """Compiles the programs with these names in the directory `directory`."""
        missing = [name for name in ("xsched", "libxsched.so", "libstandin_cuda.so") if not (BUILT / name).exists()]
        if missing:
            sys.exit(f"{BUILT} has no {' and no '.join(missing)}: run cargo build --release --workspace")
        self.directory = pathlib.Path(directory)
        (self.directory / "libcuda.so.1").symlink_to(BUILT / "libstandin_cuda.so")
        sources = HERE / "programs"
        for name in programs:
            subprocess.run([os.environ.get("CC", "cc"), "-std=gnu11", "-O2", "-I", HERE.parent, "-I", sources, "-o", self.directory / name,
                            sources / f"{name}.c", self.directory / "libcuda.so.1", "-ldl", "-lpthread"], check=True)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("XSCHED_", "LD_"))}
        self.environment |= {"XSCHED_SOCKET": str(self.directory / "socket"), "LD_LIBRARY_PATH": str(self.directory),
                             "XSCHED_STANDIN_CUDA": str(self.directory / "gpu")}
