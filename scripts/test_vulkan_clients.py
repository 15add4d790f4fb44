#!/usr/bin/env python3
"""Runs real clients of Vulkan with and without XSched: wgpu, ncnn and vkcube.

    python3 scripts/test_vulkan_clients.py

Installs wgpu and ncnn into target/tools/vulkan. Needs a Vulkan device (apt-get install mesa-vulkan-drivers) and a debug build:
cargo build -p xsched -p xsched-lib
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
XSCHED = ROOT / "target/debug/xsched"
TOOLS = ROOT / "target/tools/vulkan"
PYTHON = TOOLS / "bin/python"
PACKAGES = ["wgpu==0.32.0", "ncnn==1.0.20261020", "numpy"]
TIMEOUT = 120

# Computes on the device, compares with the same computation on the host, and waits, so that its task can be listed.
WGPU = """
import array, sys, wgpu
adapter = wgpu.gpu.request_adapter_sync()
device = adapter.request_device_sync()
module = device.create_shader_module(code='''
@group(0) @binding(0) var<storage, read_write> words: array<u32>;
@compute @workgroup_size(1) fn main(@builtin(global_invocation_id) at: vec3<u32>) { words[at.x] = words[at.x] * 3u + at.x; }
''')
buffer = device.create_buffer_with_data(data=array.array("I", range(64)), usage=wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC)
pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
entry = {"binding": 0, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}}
group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=[entry])
expected = list(range(64))
for _ in range(20):
    encoder = device.create_command_encoder()
    commands = encoder.begin_compute_pass()
    commands.set_pipeline(pipeline)
    commands.set_bind_group(0, group)
    commands.dispatch_workgroups(64)
    commands.end()
    device.queue.submit([encoder.finish()])
    expected = [(word * 3 + n) % 2**32 for n, word in enumerate(expected)]
result = list(array.array("I", bytes(device.queue.read_buffer(buffer))))
print(adapter.info["backend_type"], "correct" if result == expected else "wrong", flush=True)
sys.stdin.readline()
"""

NCNN = """
import sys, ncnn, numpy
random = numpy.random.RandomState(1)
image, weights = random.rand(8, 64, 64).astype("float32"), random.rand(576).astype("float32") - 0.5
with open("model.param", "w") as file:
    file.write("7767517\\n2 2\\nInput in0 0 1 in0 0=64 1=64 2=8\\nConvolution conv 1 1 in0 out0 0=8 1=3 4=1 6=576\\n")
with open("model.bin", "wb") as file:
    file.write(bytes(4) + weights.tobytes())
def result(uses_vulkan):
    net = ncnn.Net()
    net.opt.use_vulkan_compute = uses_vulkan
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    net.load_param("model.param")
    net.load_model("model.bin")
    for _ in range(20):
        extractor = net.create_extractor()
        extractor.input("in0", ncnn.Mat(image))
        output = numpy.array(extractor.extract("out0")[1])
    return output
same = numpy.allclose(result(True), result(False), atol=1e-3)
print("Vulkan" if ncnn.get_gpu_count() > 0 else "no device", "correct" if same else "wrong", flush=True)
sys.stdin.readline()
"""


def install() -> None:
    """Installs the packages, unless they are installed."""
    imports = [PYTHON, "-c", "import wgpu, ncnn, numpy"]
    if PYTHON.exists() and subprocess.run(imports, capture_output=True).returncode == 0:
        return
    subprocess.run([sys.executable, "-m", "venv", TOOLS], check=True)
    subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)


class Clients(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.environment = dict(os.environ, XSCHED_SOCKET=os.path.join(self.directory, "socket"))
        service = subprocess.Popen([XSCHED, "serve", "--quiet"], env=self.environment)
        self.addCleanup(service.wait)
        self.addCleanup(service.terminate)

    def check_python(self, name: str, script: str) -> None:
        """Both runs compute the right result, and the second one is a task of the service."""
        for is_scheduled in (False, True):
            command = [XSCHED, "run", "--name", name, "--"] if is_scheduled else []
            program = subprocess.Popen([*command, PYTHON, "-c", script], cwd=self.directory, env=self.environment, text=True,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            with program:
                line = next((line for line in program.stdout if "correct" in line or "wrong" in line), "no result")
                self.assertEqual(line, "Vulkan correct\n")
                if is_scheduled:
                    listed = subprocess.run([XSCHED, "ps", "--json"], env=self.environment, text=True, stdout=subprocess.PIPE)
                    self.assertIn(name, [task["name"] for task in json.loads(listed.stdout)["tasks"]])
                program.communicate("\n", timeout=TIMEOUT)
            self.assertEqual(program.returncode, 0)

    def test_wgpu(self) -> None:
        self.check_python("wgpu", WGPU)

    def test_ncnn(self) -> None:
        self.check_python("ncnn", NCNN)

    def test_vkcube(self) -> None:
        """A program with a window presents as many frames."""
        if not shutil.which("xvfb-run") or not shutil.which("vkcube"):
            self.skipTest("xvfb or vkcube is not installed (apt-get install xvfb xauth vulkan-tools)")
        for command in ([], [XSCHED, "run", "--"]):
            cube = subprocess.run(["xvfb-run", "-a", *command, "vkcube", "--c", "20"], env=self.environment, text=True, timeout=TIMEOUT,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.assertEqual(cube.returncode, 0, cube.stdout)


if __name__ == "__main__":
    install()
    unittest.main()
