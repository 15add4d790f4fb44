"""Builds the wheel: one file for Python 3.9 and later, with the native module, the program and the library.

    python3 python/build_wheel.py [--out DIR] [--profile release] [--built DIR]

A wheel is a zip file with a list of its files, so building one needs only Python and cargo. pip calls `build_wheel` of
this file, as configured in pyproject.toml.
"""

import argparse
import base64
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
# A fixed time stamp, so that the same content gives the same file.
TIME = (1980, 1, 1, 0, 0, 0)

METADATA = """\
Metadata-Version: 2.1
Name: xsched
Version: {version}
Summary: Preemptive scheduling for GPUs and other accelerators
License: Apache-2.0
Requires-Python: >=3.9
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Programming Language :: Rust
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

{readme}"""

ENTRY_POINTS = """\
[console_scripts]
xsched = xsched.__main__:main
xserver = xsched.__main__:main
xcli = xsched.__main__:main

[vllm.general_plugins]
xsched = xsched.plugin:register
"""


def version():
    with open(os.path.join(ROOT, "Cargo.toml")) as file:
        return re.search(r'^version = "([^"]+)"', file.read(), re.MULTILINE).group(1)


def built(profile):
    """Builds the files of the wheel; returns their directory."""
    cargo = os.environ.get("CARGO", "cargo")
    packages = ("xsched", "xsched-lib", "xsched-python")
    command = [cargo, "build", "--locked", "--profile", "dev" if profile == "debug" else profile]
    subprocess.run(command + [part for package in packages for part in ("-p", package)], cwd=ROOT, check=True)
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    return os.path.join(ROOT, target, profile)


def stripped(path, directory):
    """Copies a file without its debug information, if `strip` is available."""
    copy = os.path.join(directory, os.path.basename(path))
    shutil.copy(path, copy)
    if shutil.which("strip"):
        subprocess.run(["strip", "--strip-debug", copy], check=True)
    return copy


def oldest_libc(paths):
    """The oldest glibc version that has all symbols these files need: pip selects wheels by it."""
    found = {(2, 17)}
    for path in paths:
        with open(path, "rb") as file:
            found |= {(int(a), int(b)) for a, b in re.findall(rb"GLIBC_(\d+)\.(\d+)", file.read())}
    return max(found)


class Wheel:
    def __init__(self, path):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=6)
        self.records = []

    def add(self, name, content, mode=0o644):
        entry = zipfile.ZipInfo(name, TIME)
        entry.external_attr = (0o100000 | mode) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(entry, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.records.append(f"{name},sha256={digest},{len(content)}")

    def add_file(self, name, path, mode=0o644):
        with open(path, "rb") as file:
            self.add(name, file.read(), mode)

    def close(self, record):
        lines = self.records + [f"{record},,", ""]
        self.records = []
        self.add(record, "\n".join(lines).encode())
        self.zip.close()


def make(out, profile, at=None):
    """Builds the wheel in the directory `out`, from the files in `at` if they are built already; returns its name."""
    os.makedirs(out, exist_ok=True)
    at = at or built(profile)
    with tempfile.TemporaryDirectory() as scratch:
        files = [stripped(os.path.join(at, name), scratch) for name in ("xsched", "libxsched.so", "libxsched_python.so")]
        program, library, native = files
        libc = oldest_libc(files)
        tag = f"cp39-abi3-manylinux_{libc[0]}_{libc[1]}_{platform.machine()}"
        name = f"xsched-{version()}-{tag}.whl"
        info = f"xsched-{version()}.dist-info"
        with open(os.path.join(HERE, "README.md")) as file:
            readme = file.read()
        draft = os.path.join(out, name + ".part")
        wheel = Wheel(draft)
        for source in sorted(os.listdir(os.path.join(HERE, "xsched"))):
            if source.endswith((".py", ".pyi", ".typed")):
                wheel.add_file(f"xsched/{source}", os.path.join(HERE, "xsched", source))
        wheel.add_file("xsched/_native.abi3.so", native, 0o755)
        wheel.add_file("xsched/lib/libxsched.so", library, 0o755)
        wheel.add_file("xsched/lib/vulkan/VkLayer_xsched.json", os.path.join(at, "vulkan", "VkLayer_xsched.json"))
        wheel.add_file("xsched/bin/xsched", program, 0o755)
        wheel.add(f"{info}/METADATA", METADATA.format(version=version(), readme=readme).encode())
        wheel.add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: xsched\nRoot-Is-Purelib: false\nTag: {tag}\n".encode())
        wheel.add(f"{info}/entry_points.txt", ENTRY_POINTS.encode())
        wheel.add_file(f"{info}/LICENSE", os.path.join(ROOT, "LICENSE"))
        wheel.close(f"{info}/RECORD")
    os.replace(draft, os.path.join(out, name))
    return name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 517 hook, called by pip."""
    profile = (config_settings or {}).get("profile", os.environ.get("XSCHED_BUILD_PROFILE", "release"))
    return make(wheel_directory, profile)


def build_sdist(sdist_directory, config_settings=None):
    """PEP 517 hook for a source archive, which would have to contain the whole repository."""
    raise NotImplementedError("a source archive of the package alone is not supported: clone the repository")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Builds the wheel.")
    parser.add_argument("--out", default=os.path.join(ROOT, "target", "wheels"))
    parser.add_argument("--profile", default="release", help="the cargo profile: release or debug")
    parser.add_argument("--built", help="the directory with the three built files; skips the build")
    arguments = parser.parse_args()
    print(os.path.join(arguments.out, make(arguments.out, arguments.profile, arguments.built)))
