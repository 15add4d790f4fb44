"""Tests `make install`, `make uninstall` and the Debian package, each in a directory of its own.

Uses the build products in the directory BUILT.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILT = os.environ["BUILT"]
with open(os.path.join(ROOT, "Cargo.toml")) as manifest:
    VERSION = re.search(r'^version = "([^"]+)"', manifest.read(), re.MULTILINE).group(1)
COMMANDS = {"run", "serve", "stop", "ps", "top", "dashboard", "set", "suspend", "resume", "park", "unpark", "policy", "grant", "grants", "revoke", "trace", "doctor", "config", "demo", "simulate", "bench"}
LINKS = ["preempt", "halcuda", "halhip", "halopencl", "hallevelzero", "halascend", "halcudla", "halvpi", "halcorex", "shimcuda", "shimhip", "shimopencl", "shimlevelzero", "shimascend", "shimcudla", "shimvpi", "shimcorex"]
# In a directory that the loader does not search by itself.
STUBS = {"libcuda.so.1", "libOpenCL.so.1", "libamdhip64.so.5", "libamdhip64.so.6", "libamdhip64.so.7"}


def files(directory):
    """Every path below a directory, including links and empty directories."""
    found = set()
    for parent, directories, names in os.walk(directory):
        found |= {os.path.relpath(os.path.join(parent, name), directory) for name in directories + names}
    return found


class Installed(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="xsched-install-")
        self.addCleanup(shutil.rmtree, self.root)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("XSCHED_", "MAKE", "DESTDIR"))}
        self.environment.update(XSCHED_SOCKET=os.path.join(self.root, "socket"), PROFILE=os.path.basename(BUILT),
                                CARGO_TARGET_DIR=os.path.dirname(BUILT))
        # Without it `xsched run` would start a service that outlives the test.
        service = subprocess.Popen([os.path.join(BUILT, "xsched"), "serve", "--quiet"], env=self.environment)
        self.addCleanup(service.wait)
        self.addCleanup(service.kill)
        while not os.path.exists(self.environment["XSCHED_SOCKET"]):
            self.assertIsNone(service.poll(), "the service has exited")
            time.sleep(0.01)

    def run_checked(self, *command, **more):
        done = subprocess.run(command, cwd=ROOT, env=self.environment, text=True, capture_output=True, **more)
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def check_layout(self, prefix, man=".1"):
        """Checks what every kind of installation has below its prefix."""
        xsched = os.path.join(prefix, "bin/xsched")
        self.assertIn("xsched ", self.run_checked(xsched, "--version"))
        for name in ("xserver", "xcli"):
            self.assertIn("xsched", os.readlink(os.path.join(prefix, "bin", name)))
            self.assertIn(f"Usage: {name}", self.run_checked(os.path.join(prefix, "bin", name), "--help"))
        # The loader and the linker use links, which stay when the versioned file changes.
        major = VERSION.split(".")[0]
        library = os.path.join(prefix, "lib/libxsched.so")
        self.assertEqual(os.readlink(library), f"libxsched.so.{major}")
        self.assertEqual(os.readlink(f"{library}.{major}"), f"libxsched.so.{VERSION}")
        self.assertFalse(os.path.islink(f"{library}.{VERSION}"))
        for name in LINKS:
            self.assertEqual(os.readlink(os.path.join(prefix, f"lib/lib{name}.so")), "libxsched.so")
        stubs = os.path.join(prefix, "lib/xsched")
        self.assertEqual(set(os.listdir(stubs)), STUBS)
        # The stubs name the library in the directory above them, which is that of this installation.
        named = self.run_checked("readelf", "-d", os.path.join(stubs, "libcuda.so.1"))
        self.assertIn(f"[$ORIGIN/../libxsched.so.{major}]", named)
        self.assertTrue(os.path.exists(os.path.join(stubs, f"../libxsched.so.{major}")))
        pages = {name.split(".")[0] for name in os.listdir(os.path.join(prefix, "share/man/man1"))}
        self.assertEqual(pages, {"xsched", "xserver", "xcli"} | {f"xsched-{command}" for command in COMMANDS})
        for path in (f"share/man/man1/xsched-run{man}", "share/bash-completion/completions/xsched",
                     "share/fish/vendor_completions.d/xsched.fish", "lib/systemd/system/xsched.service",
                     "lib/systemd/user/xsched-user.service", "lib/pkgconfig/xsched.pc",
                     "lib/cmake/XSched/XSchedConfig.cmake", "share/doc/xsched/README.md"):
            self.assertTrue(os.path.isfile(os.path.join(prefix, path)), path)
        # Vulkan's loader gets the copy that is preloaded, by its soname.
        with open(os.path.join(prefix, "share/vulkan/implicit_layer.d/VkLayer_xsched.json")) as file:
            self.assertEqual(json.load(file)["layer"]["library_path"], f"libxsched.so.{major}")
        variables = self.run_checked(xsched, "run", "--", "sh", "-c", "echo $XSCHED_VULKAN_LAYER $VK_ADD_LAYER_PATH").split()
        self.assertEqual(variables, ["1", os.path.join(os.path.realpath(prefix), "share/vulkan/implicit_layer.d")])
        for header in subprocess.run(["find", "include", "-name", "*.h"], cwd=ROOT, text=True, capture_output=True).stdout.split():
            self.assertTrue(os.path.isfile(os.path.join(prefix, header)), header)
        self.run_checked(sys.executable, "scripts/check_docs.py", "--installed", os.path.join(prefix, "share/doc/xsched"))
        # The program finds its library in the prefix.
        preloaded = self.run_checked(xsched, "run", "--", "sh", "-c", "echo $LD_PRELOAD").strip()
        self.assertEqual(preloaded, os.path.join(os.path.realpath(prefix), "lib/libxsched.so"))
        # The shell can load the completions, and they offer the commands.
        script = os.path.join(prefix, "share/bash-completion/completions/xsched")
        offered = self.run_checked("bash", "-c", f'. "{script}"; COMP_WORDS=(xsched p); COMP_CWORD=1; _xsched xsched p xsched; '
                            'echo "${COMPREPLY[@]}"').split()
        self.assertEqual(offered, ["ps", "park", "policy"])

    def test_make_uninstall_removes_every_installed_file(self):
        prefix = os.path.join(self.root, "prefix")
        os.makedirs(os.path.join(prefix, "lib/pkgconfig"))
        with open(os.path.join(prefix, "lib/other.so"), "w") as other:
            other.write("a file of another package")
        before = files(prefix)
        self.run_checked("make", "install", f"PREFIX={prefix}")
        self.check_layout(prefix)
        self.assertTrue(os.path.isfile(os.path.join(prefix, "share/zsh/site-functions/_xsched")))
        with open(os.path.join(prefix, "lib/systemd/system/xsched.service")) as unit:
            self.assertIn(f"ExecStart={prefix}/bin/xsched serve", unit.read())
        if shutil.which("systemd-analyze"):
            self.environment["XDG_RUNTIME_DIR"] = self.root
            for kind, name in (("system", "xsched"), ("user", "xsched-user")):
                unit = f"{prefix}/lib/systemd/{kind}/{name}.service"
                done = subprocess.run(["systemd-analyze", "verify", "--man=no", f"--{kind}", unit], env=self.environment,
                                      text=True, capture_output=True)
                # It may also report problems of the machine's own units.
                self.assertNotIn(f"{name}.service", done.stderr)
        if shutil.which("pkg-config"):
            self.environment["PKG_CONFIG_PATH"] = os.path.join(prefix, "lib/pkgconfig")
            flags = self.run_checked("pkg-config", "--cflags", "--libs", "xsched").split()
            self.assertEqual(flags, [f"-I{prefix}/include", f"-L{prefix}/lib", "-lxsched"])
            self.check_program(flags, prefix)
        with self.subTest("CMake"):
            if not shutil.which("cmake"):
                self.skipTest("cmake is not installed")
            self.check_cmake(prefix)
        installed = files(prefix)
        self.run_checked("make", "install", f"PREFIX={prefix}")
        self.assertEqual(files(prefix), installed, "a second installation changes nothing")
        self.run_checked("make", "uninstall", f"PREFIX={prefix}")
        self.assertEqual(files(prefix), before)

    def check_cmake(self, prefix):
        """Builds a program as the original C++ XSched documents it, with either directory to search in."""
        project = os.path.join(self.root, "project")
        os.makedirs(project)
        targets = ["xsched"] + LINKS
        with open(os.path.join(project, "CMakeLists.txt"), "w") as file:
            file.write("cmake_minimum_required(VERSION 3.14)\nproject(program C)\n"
                       "find_package(XSched ${REQUESTED} REQUIRED)\n"
                       "file(WRITE ${CMAKE_BINARY_DIR}/include_directories ${XSched_INCLUDE_DIRS})\n"
                       + "".join(f"add_executable({name} program.c)\ntarget_link_libraries({name} XSched::{name})\n"
                                 for name in targets))
        with open(os.path.join(project, "program.c"), "w") as file:
            file.write("#include <xsched/xsched.h>\n#include <xsched/cuda/hal.h>\n"
                       "int main(void) { return XQueueDestroy(0) == kXSchedErrorInvalidValue ? 0 : 1; }\n")
        for place in (prefix, os.path.join(prefix, "lib/cmake")):
            build = tempfile.mkdtemp(dir=self.root)
            self.run_checked("cmake", "-S", project, "-B", build, f"-DCMAKE_PREFIX_PATH={place}", "-DREQUESTED=1.2")
            with open(os.path.join(build, "include_directories")) as file:
                self.assertEqual(os.path.realpath(file.read()), os.path.realpath(os.path.join(prefix, "include")))
            self.run_checked("cmake", "--build", build)
            for name in targets:
                self.run_checked(os.path.join(build, name))
        for requested, found in ((VERSION, True), ("1.2.0", True), ("1.3", False), ("2.0", False)):
            build = tempfile.mkdtemp(dir=self.root)
            done = subprocess.run(["cmake", "-S", project, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}",
                                   f"-DREQUESTED={requested}"], env=self.environment, text=True, capture_output=True)
            self.assertEqual(done.returncode == 0, found, f"{requested}: {done.stderr}")

    def check_program(self, flags, prefix):
        """Builds a C program with the installed files, with both names of the library."""
        source = os.path.join(self.root, "program.c")
        with open(source, "w") as file:
            if os.path.exists(os.path.join(prefix, "include/xsched/xsched.h")):
                file.write("#include <xsched/xsched.h>\nvoid *volatile used = (void *)XQueueCreate;\n")
            file.write("int main(void) { return 0; }\n")
        program = os.path.join(self.root, "program")
        for library in (flags, flags[:-1] + ["-Wl,--no-as-needed", "-lpreempt", "-lhalcuda"]):
            self.run_checked(os.environ.get("CC", "cc"), source, "-o", program, "-Wl,--no-as-needed", *library,
                      f"-Wl,-rpath,{prefix}/lib")
            self.run_checked(program)
            # The process contains one copy of the library, even if another copy is preloaded.
            copy = os.path.join(self.root, "elsewhere", "libxsched.so")
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            shutil.copy(os.path.join(prefix, "lib/libxsched.so"), copy)
            lists = subprocess.run([program], env=dict(self.environment, LD_PRELOAD=copy, LD_TRACE_LOADED_OBJECTS="1"),
                                   text=True, capture_output=True).stdout
            self.assertEqual([line.split()[0] for line in lists.splitlines() if "xsched" in line], [copy])

    def test_make_install_names_missing_files(self):
        self.environment["CARGO_TARGET_DIR"] = self.root
        done = subprocess.run(["make", "install", f"PREFIX={self.root}/prefix"], cwd=ROOT, env=self.environment, text=True,
                              capture_output=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("is missing: run `make` first", done.stderr)
        self.assertFalse(os.path.exists(f"{self.root}/prefix"))

    def test_debian_package_can_be_installed_and_purged(self):
        if not shutil.which("dpkg-deb"):
            self.skipTest("dpkg is not installed")
        self.environment.update(OUT=os.path.join(self.root, "out"), COMPRESSION="gzip")
        self.run_checked("packaging/deb")
        (package,) = os.listdir(self.environment["OUT"])
        package = os.path.join(self.environment["OUT"], package)
        system = os.path.join(self.root, "system")
        os.makedirs(os.path.join(system, "var/lib/dpkg/info"))
        os.makedirs(os.path.join(system, "var/lib/dpkg/updates"))
        for name in ("status", "available"):
            open(os.path.join(system, "var/lib/dpkg", name), "w").close()
        # A separate dpkg database and root: this system is not changed.
        dpkg = ["dpkg", f"--root={system}", "--force-script-chrootless", "--force-not-root", "--force-depends",
                "--force-bad-path", f"--log={self.root}/log"]
        self.run_checked(*dpkg, "-i", package)
        self.check_layout(os.path.join(system, "usr"), man=".1.gz")
        self.assertIn("install ok installed", self.run_checked(*dpkg, "-s", "xsched"))
        self.assertTrue(os.path.isfile(os.path.join(system, "usr/share/zsh/vendor-completions/_xsched")))
        with open(os.path.join(system, "usr/lib/systemd/system/xsched.service")) as unit:
            self.assertIn("ExecStart=/usr/bin/xsched serve", unit.read())
        self.run_checked(*dpkg, "--purge", "xsched")
        left = {path for path in files(system) if not path.startswith("var")}
        self.assertEqual(left, set())


if __name__ == "__main__":
    unittest.main()
