"""The simulated machine: the stand-ins, the driver's files below /sys, and the Debian roots in which clients run."""

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from . import substitutes

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "programs"
TEST_PROGRAMS = REPOSITORY / "crates/xsched/tests/programs/hip"

# gfx90a is the newest architecture for which Debian builds the kernels of all libraries.
GPU_DEVICE_ID, GPU_VERSION, GPU_MEMORY, FIRST_BUS, FIRST_RENDER_NODE = 0x740C, 90010, 64 << 30, 0xC1, 128


class MissingRequirement(Exception):
    """A client cannot run here; the text says why."""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def properties(values: dict[str, int]) -> str:
    return "".join(f"{name} {value}\n" for name, value in values.items())


def write_node(place: Path, gpu_id: int, name: str, values: dict[str, int], heap: int, memory: int) -> None:
    for directory in ("caches", "io_links", "p2p_links", "perf"):
        (place / directory).mkdir(parents=True)
    write(place / "gpu_id", f"{gpu_id}\n")
    write(place / "name", f"{name}\n")
    write(place / "properties", properties(values))
    bank = {"heap_type": heap, "size_in_bytes": memory, "flags": 0, "width": 64, "mem_clk_max": 1600}
    write(place / "mem_banks/0/properties", properties(bank))


def write_pci_device(system: Path, number: int) -> None:
    """The PCI device of a GPU, which ROCm's management library reads."""
    address = f"0000:{FIRST_BUS + number:02x}:00.0"
    device = system / "devices/pci0000:00" / address
    files = {
        "vendor": "0x1002", "device": hex(GPU_DEVICE_ID), "subsystem_vendor": "0x1002", "subsystem_device": "0x0b0c", "revision": "0x01",
        "class": "0x038000", "numa_node": "-1", "local_cpulist": "0", "unique_id": f"{0x4D2 + number:016x}", "gpu_busy_percent": "0",
        "mem_info_vram_total": str(GPU_MEMORY), "mem_info_vram_used": "0", "mem_info_vis_vram_total": str(GPU_MEMORY), "mem_info_vis_vram_used": "0",
        "pp_dpm_sclk": "0: 500Mhz\n1: 1700Mhz *", "pp_dpm_mclk": "0: 400Mhz\n1: 1600Mhz *",
        "current_compute_partition": "SPX", "current_memory_partition": "NPS1",
        "max_link_speed": "16.0 GT/s PCIe", "max_link_width": "16", "current_link_speed": "16.0 GT/s PCIe", "current_link_width": "16",
        "uevent": f"DRIVER=amdgpu\nPCI_CLASS=38000\nPCI_ID=1002:{GPU_DEVICE_ID:04X}\nPCI_SLOT_NAME={address}",
    }
    for name, text in files.items():
        write(device / name, f"{text}\n")
    link(system / "bus/pci/devices" / address, f"../../../devices/pci0000:00/{address}")
    for name, minor in ((f"card{number}", number), (f"renderD{FIRST_RENDER_NODE + number}", FIRST_RENDER_NODE + number)):
        write(device / "drm" / name / "dev", f"226:{minor}\n")
        write(device / "drm" / name / "uevent", f"MAJOR=226\nMINOR={minor}\nDEVNAME=dri/{name}\nDEVTYPE=drm_minor\n")
        link(device / "drm" / name / "device", f"../../../{address}")
        link(system / "class/drm" / name, f"../../devices/pci0000:00/{address}/drm/{name}")


def write_system_files(system: Path, gpus: int) -> None:
    """What the driver shows below /sys of a machine with these GPUs."""
    topology = system / "devices/virtual/kfd/kfd/topology"
    write(topology / "generation_id", "1\n")
    write(topology / "system_properties", "platform_oem 0\nplatform_id 0\nplatform_rev 0\n")
    write_node(topology / "nodes/0", 0, "", {"cpu_cores_count": 16, "simd_count": 0, "mem_banks_count": 1, "io_links_count": gpus, "gfx_target_version": 0}, 0, 64 << 30)
    for number in range(gpus):
        node = topology / f"nodes/{number + 1}"
        values = {
            "cpu_cores_count": 0, "simd_count": 416, "mem_banks_count": 1, "caches_count": 0, "io_links_count": 1, "max_waves_per_simd": 8,
            "lds_size_in_kb": 64, "wave_front_size": 64, "array_count": 8, "simd_arrays_per_engine": 1, "cu_per_simd_array": 14, "simd_per_cu": 4,
            "gfx_target_version": GPU_VERSION, "vendor_id": 0x1002, "device_id": GPU_DEVICE_ID, "location_id": (FIRST_BUS + number) << 8, "domain": 0,
            "drm_render_minor": FIRST_RENDER_NODE + number, "hive_id": 0, "num_xcc": 1, "unique_id": 0x4D2 + number,
            "max_engine_clk_fcompute": 1700, "fw_version": 80,
        }
        write_node(node, 1000 + number, "aldebaran", values, 1, GPU_MEMORY)
        for end, start in ((0, number + 1), (number + 1, 0)):
            io_link = {"type": 2, "version_major": 0, "version_minor": 0, "node_from": start, "node_to": end, "weight": 20, "flags": 1}
            write(topology / f"nodes/{start}/io_links/{0 if start else number}/properties", properties(io_link))
        write_pci_device(system, number)
    link(system / "class/kfd/kfd", "../../devices/virtual/kfd/kfd")
    for name, text in {"initstate": "live", "version": "6.10.5", "parameters/cwsr_enable": "1", "parameters/pcie_p2p": "Y"}.items():
        write(system / "module/amdgpu" / name, f"{text}\n")


def compile_c(output: Path, source: Path, *options: str) -> None:
    command = [os.environ.get("CC", "cc"), "-std=gnu11", "-O1", "-Wall", "-Werror", "-o", str(output), str(source), *options, "-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"cannot compile {source}: {done.stderr}")


@dataclass
class Machine:
    """Everything that the clients share."""

    directory: Path
    build: Path
    roots: dict[str, Path | None]
    builds: bool = True
    rocr: Path | None = None
    standins: Path = field(init=False)
    programs: Path = field(init=False)

    def prepare(self) -> None:
        """Builds the stand-ins and the programs of the clients."""
        if self.builds:
            packages = [word for name in ("xsched", "xsched-lib", "kfd-standin", "rocr-standin") for word in ("-p", name)]
            subprocess.run(["cargo", "build", "--quiet", "--target-dir", str(self.build.parent), *packages], cwd=REPOSITORY, check=True)
        self.standins = self.directory / "standins"
        self.standins.mkdir(parents=True)
        # A build meanwhile would overwrite files that running clients have mapped.
        self.programs = self.directory / "bin"
        self.programs.mkdir()
        for name in ("xsched", "libxsched.so"):
            shutil.copy(self.build / name, self.programs)
        shutil.copy(self.build / "libkfd_standin.so", self.standins)
        runtime = self.standins / "libhsa-runtime64.so.1"
        if self.rocr:
            shutil.copy(self.rocr, runtime)
        else:
            subprocess.run([REPOSITORY / "standins/rocr/link.sh", self.build / "librocr_standin.a", runtime], check=True)
        compile_c(self.standins / "libregister_adapter.so", TEST_PROGRAMS / "register_adapter.c", "-shared", "-fPIC", "-fvisibility=hidden", "-Wl,--no-as-needed", "-lstdc++")
        compile_c(self.standins / "libprofiler.so", TEST_PROGRAMS / "profiler.c", "-shared", "-fPIC")
        for program in ("both_runtimes", "rccl_client", "rccl_ranks"):
            compile_c(self.directory / program, PROGRAMS / f"{program}.c")
        packages = {"7": substitutes.make_for_hip7, "6": substitutes.make_for_hip6}
        if place := self.roots["7"]:
            for version, make in packages.items():
                make(self.directory / f"missing-{version}", place / "python" / ("packages" if version == "7" else "tensorflow"))
        for program, model in (("gguf_model.py", "random.gguf"), ("onnx_model.py", "small.onnx")):
            subprocess.run(["python3", PROGRAMS / program, self.directory / model], check=True)

    @property
    def xsched(self) -> str:
        return str(self.programs / "xsched")

    def root(self, version: str) -> Path:
        directory = self.roots[version]
        if directory is None:
            raise MissingRequirement(f"XSCHED_ROCM_{version} names no root of HIP {version} (scripts/rocm-root {version} DIR)")
        if not (directory / "root/usr").is_dir():
            raise MissingRequirement(f"{directory} contains no root of HIP {version} (scripts/rocm-root {version} {directory})")
        return directory

    def system_files(self, gpus: int) -> Path:
        system = self.directory / f"sys-{gpus}"
        if not system.exists():
            write_system_files(system, gpus)
            (system / "devices/system").mkdir(parents=True)
        return system

    def inside(self, version: str, gpus: int, binds: list[str], preload: list[str], environment: dict[str, str], command: list[str]) -> list[str]:
        """The command line that runs `command` in a root, with the stand-ins in front of AMD's libraries."""
        binds = [f"{self.system_files(gpus)}=/sys", "/sys/devices/system", str(self.directory), *binds]
        words = [str(REPOSITORY / "scripts/rocm-root"), "exec", str(self.root(version)), "--standins", str(self.standins)]
        words += [word for bind in binds for word in ("--bind", bind)]
        # The preloaded libraries belong to the client, not to the commands that build its file system.
        libraries = ":".join([*preload, str(self.standins / "libkfd_standin.so")])
        variables = dict(environment, LD_PRELOAD=libraries)
        search = variables.pop("MORE_LIBRARIES", "")
        assignments = [f"{name}={value}" for name, value in variables.items()]
        script = 'export LD_LIBRARY_PATH="$LD_LIBRARY_PATH:$0"; exec env "$@"' if search else 'exec env "$@"'
        return [*words, "/bin/bash", "-c", script, search or "bash", *assignments, *command]
