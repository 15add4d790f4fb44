"""An accelerator from Python without further dependencies: HIP or the CUDA driver through ctypes.

Both have the same functions under different names, so one class serves both. On the HIP stand-in the name of a kernel determines
what it does; real HIP compiles the kernels with hiprtc; CUDA gets them as PTX.
"""

import ctypes
import importlib.util
import os
import pathlib
import time

SOURCE = b"""
extern "C" __global__ void spin(unsigned long long ticks) {
    unsigned long long begin = wall_clock64();
    while (wall_clock64() - begin < ticks) {}
}
extern "C" __global__ void fill(float *to, float value, unsigned long long count) {
    if (blockIdx.x == 0 && threadIdx.x == 0)
        for (unsigned long long n = 0; n < count; n++) to[n] = value;
}
extern "C" __global__ void nothing() {}
"""

PTX = b""".version 7.0
.target sm_75
.address_size 64
.visible .entry spin(.param .u64 ticks) {
    .reg .pred %p; .reg .u64 %begin, %now, %ticks;
    ld.param.u64 %ticks, [ticks];
    mov.u64 %begin, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %begin;
    setp.lt.u64 %p, %now, %ticks;
    @%p bra again;
    ret;
}
.visible .entry fill(.param .u64 to, .param .f32 value, .param .u64 count) {
    .reg .pred %p; .reg .u64 %to, %count; .reg .f32 %value; .reg .u32 %id, %block;
    ld.param.u64 %to, [to]; ld.param.f32 %value, [value]; ld.param.u64 %count, [count];
    cvta.to.global.u64 %to, %to;
    mov.u32 %id, %tid.x; mov.u32 %block, %ctaid.x; or.b32 %id, %id, %block;
    setp.ne.u32 %p, %id, 0;
    @%p bra done;
again:
    setp.eq.u64 %p, %count, 0;
    @%p bra done;
    st.global.f32 [%to], %value;
    add.u64 %to, %to, 4;
    sub.u64 %count, %count, 1;
    bra again;
done:
    ret;
}
.visible .entry nothing() { ret; }
\0"""


# Functions of the CUDA driver whose plain name means their _v2 form.
V2_FUNCTIONS = {"MemAlloc", "MemcpyDtoH", "MemcpyDtoDAsync", "StreamDestroy", "StreamBeginCapture", "DevicePrimaryCtxReset", "DevicePrimaryCtxRelease"}


# hipDeviceAttributeWallClockRate, in kHz.
WALL_CLOCK_RATE = 10017


class Failure(Exception):
    """A call of the vendor's library failed."""


def libraries_of_packages(name):
    """Copies of a library of ROCm in Python packages: PyTorch's, and the packages that newer ones depend on."""
    found = []
    for package, directory in (("torch", "lib"), ("_rocm_sdk_core", "lib"), ("jax_rocm7_plugin", "."), ("cupy", ".data/lib")):
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            spec = None
        for place in (spec.submodule_search_locations or []) if spec else []:
            found += sorted(str(path) for path in pathlib.Path(place, directory).glob(name + ".so*"))
    return found


def open_first(names):
    """The first of these libraries that can be opened."""
    errors = []
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            errors.append(str(error))
    raise Failure("; ".join(errors[:2]) or "no library")


def hip_libraries(name):
    """The names under which a library of ROCm may be found: the system's first."""
    return [name + ".so", name + ".so.7", name + ".so.6", f"/opt/rocm/lib/{name}.so", *libraries_of_packages(name)]


class Device:
    """The first device, with three kernels."""

    def __init__(self, platform, runtime=None):
        self.hip = platform != "cuda"
        self.standin = platform == "hip-standin"
        given = runtime or os.environ.get("VERIFY_RUNTIME")
        self.library = open_first([given] if given else hip_libraries("libamdhip64") if self.hip else ["libcuda.so.1"])
        self.call("Init", 0)
        if not self.hip:
            context, device = ctypes.c_void_p(), ctypes.c_int()
            self.call("DeviceGet", ctypes.byref(device), 0)
            self.call("DevicePrimaryCtxRetain", ctypes.byref(context), device)
            self.call("CtxSetCurrent", context)
        module = ctypes.c_void_p()
        self.call("ModuleLoadData", ctypes.byref(module), self.image())
        self.kernels = {}
        for kernel in ("spin", "fill", "nothing"):
            function = ctypes.c_void_p()
            self.call("ModuleGetFunction", ctypes.byref(function), module, kernel.encode())
            self.kernels[kernel] = function
        self.blocks = 2 * self.processors()
        # The stand-ins take the time of a kernel in nanoseconds.
        self.ticks_per_ns = float(os.environ.get("VERIFY_TICKS_PER_NS", "1"))

    def call(self, name, *arguments):
        """Calls a function by the part of its name that both vendors share."""
        code = self.function(name)(*arguments)
        if code != 0:
            raise Failure(f"{name}: error {code}")

    def function(self, name):
        """A function of the vendor by the shared part of its name."""
        if self.hip:
            return getattr(self.library, "hip" + {"MemAlloc": "Malloc"}.get(name, name))
        return getattr(self.library, "cu" + name + ("_v2" if name in V2_FUNCTIONS else ""))

    def image(self):
        """The kernels in the form that this platform loads."""
        if self.standin:
            return b"any"
        if not self.hip:
            return PTX
        # Compiling takes a second or more, so it is done once for all programs of a verification.
        cache = pathlib.Path(os.environ["VERIFY_CODE"] + f"-{self.version()}") if "VERIFY_CODE" in os.environ else None
        if cache and cache.exists():
            return cache.read_bytes()
        code = self.compile()
        if cache:
            draft = cache.with_name(f"{cache.name}.{os.getpid()}")
            draft.write_bytes(code)
            draft.rename(cache)
        return code

    @staticmethod
    def compile():
        """Compiles the kernels for the first device."""
        given = os.environ.get("VERIFY_HIPRTC")
        rtc = open_first([given] if given else hip_libraries("libhiprtc"))
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        steps = [
            rtc.hiprtcCreateProgram(ctypes.byref(program), SOURCE, b"verify", 0, None, None),
            rtc.hiprtcCompileProgram(program, 0, None),
            rtc.hiprtcGetCodeSize(program, ctypes.byref(size)),
        ]
        code = ctypes.create_string_buffer(size.value)
        steps.append(rtc.hiprtcGetCode(program, code))
        if any(steps):
            raise Failure(f"hiprtc: {steps}")
        return code.raw

    def processors(self):
        """The number of multiprocessors, which determines how many blocks fill the device."""
        if self.hip:
            properties = ctypes.create_string_buffer(1472)
            self.library.hipGetDevicePropertiesR0600(properties, 0)
            return max(1, int.from_bytes(properties.raw[388:392], "little"))
        count = ctypes.c_int()
        self.call("DeviceGetAttribute", ctypes.byref(count), 16, 0)
        return count.value

    def clock(self):
        """The ticks per nanosecond of the clock that kernels read: as the runtime reports it, and as measured. The measurement needs
        a device without other programs."""
        def duration(ticks):
            begin = time.monotonic_ns()
            self.launch("spin", ctypes.c_uint64(ticks))
            self.synchronize()
            return time.monotonic_ns() - begin
        duration(1000)
        # The difference of two lengths, so that the cost of a launch cancels out.
        short, long = (min(duration(ticks) for _ in range(5)) for ticks in (100_000, 1_100_000))
        kilohertz = ctypes.c_int()
        code = self.library.hipDeviceGetAttribute(ctypes.byref(kilohertz), WALL_CLOCK_RATE, 0)
        return {"reported": kilohertz.value / 1e6 if code == 0 else 0.0, "measured": 1_000_000 / max(1, long - short)}

    def launch(self, kernel, *arguments, stream=None, form="ModuleLaunchKernel", blocks=None):
        """Launches a kernel that fills the device."""
        pointers = (ctypes.c_void_p * max(1, len(arguments)))(*(ctypes.addressof(argument) for argument in arguments))
        shape = [ctypes.c_uint(n) for n in (blocks or self.blocks, 1, 1, 1024, 1, 1)]
        function = self.kernels[kernel]
        if form in ("ExtModuleLaunchKernel", "HccModuleLaunchKernel"):
            # These take the grid size in threads, not in blocks.
            shape[0] = ctypes.c_uint(shape[0].value * 1024)
            more = [ctypes.c_uint(0)] if form.startswith("Ext") else []
            self.call(form, function, *shape, ctypes.c_size_t(0), stream, pointers, None, None, None, *more)
        elif form == "ModuleLaunchCooperativeKernel":
            name = form if self.hip else "LaunchCooperativeKernel"
            self.call(name, function, *shape, ctypes.c_uint(0), stream, pointers)
        else:
            name = form if self.hip else "LaunchKernel"
            self.call(name, function, *shape, ctypes.c_uint(0), stream, pointers, None)

    def spin(self, microseconds, stream=None):
        """Occupies the device for this time."""
        self.launch("spin", ctypes.c_uint64(int(microseconds * 1000 * self.ticks_per_ns)), stream=stream)

    def stream(self, priority=None):
        """Creates a stream."""
        stream = ctypes.c_void_p()
        if priority is None:
            if self.hip:
                self.call("StreamCreateWithFlags", ctypes.byref(stream), 1)
            else:
                self.call("StreamCreate", ctypes.byref(stream), 1)
        else:
            self.call("StreamCreateWithPriority", ctypes.byref(stream), 1, priority)
        return stream

    def reset(self):
        """Resets the device; this object is invalid afterwards."""
        if self.hip:
            self.call("DeviceReset")
        else:
            self.call("DevicePrimaryCtxReset", 0)
            self.call("DevicePrimaryCtxRelease", 0)

    def synchronize(self, stream=None):
        """Waits for a stream."""
        self.call("StreamSynchronize", stream)

    def allocate(self, size):
        """Allocates device memory."""
        memory = ctypes.c_void_p()
        self.call("MemAlloc", ctypes.byref(memory), ctypes.c_size_t(size))
        return memory

    def floats(self, memory, count):
        """Reads device memory as floats."""
        numbers = (ctypes.c_float * count)()
        self.call("MemcpyDtoH", numbers, memory, ctypes.c_size_t(4 * count))
        return list(numbers)

    def name(self):
        """The name of the device."""
        if self.standin:
            return "stand-in for HIP"
        name = ctypes.create_string_buffer(256)
        self.call("DeviceGetName", name, 256, 0)
        return name.value.decode()

    def version(self):
        """The version of the vendor's runtime or driver."""
        version = ctypes.c_int()
        self.call("RuntimeGetVersion" if self.hip else "DriverGetVersion", ctypes.byref(version))
        return version.value

    def count(self):
        """The number of devices."""
        count = ctypes.c_int()
        self.call("GetDeviceCount" if self.hip else "DeviceGetCount", ctypes.byref(count))
        return count.value
