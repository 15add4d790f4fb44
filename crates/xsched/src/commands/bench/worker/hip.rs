//! The loads on the first AMD GPU, with HIP.
//!
//! The kernels are compiled at run time for the GPU of this machine, by the compiler that belongs to the runtime: it is part of older
//! runtimes, and a library of its own beside newer ones.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::time::Instant;

use anyhow::Context as _;

use super::super::program::Fnv;
use super::Accelerator;
use super::functions::{SUCCESS, check, find, functions, rounds};

type Code = c_int;
type Handle = *mut c_void;

/// The newest first.
const RUNTIMES: [&CStr; 4] =
    [c"libamdhip64.so.7", c"libamdhip64.so.6", c"libamdhip64.so.5", c"libamdhip64.so"];
const COMPILERS: [&CStr; 4] = [c"libhiprtc.so.7", c"libhiprtc.so.6", c"libhiprtc.so.5", c"libhiprtc.so"];
/// `hipStreamNonBlocking`: does not wait for the default stream.
const NON_BLOCKING: c_uint = 1;
/// `hipMemcpyDeviceToHost`.
const TO_HOST: c_int = 2;
const THREADS_PER_BLOCK: u32 = 256;
/// Enough for the largest GPUs. The duration of a round is measured with as many.
const BLOCKS: u32 = 2_048;
/// The numbers that [`Device::compute`] computes.
const ITEMS: usize = 65_536;

/// `spin` computes a number of rounds instead of reading a clock: a clock advances while the kernel is preempted. The result is stored in
/// one case of 4 billion, so that the compiler cannot remove the rounds.
const SOURCE: &CStr = c"
extern \"C\" __global__ void spin(unsigned long long rounds, unsigned *sink) {
    unsigned x = blockIdx.x * blockDim.x + threadIdx.x;
    for (unsigned long long round = 0; round < rounds; round++) {
        x = x * 1664525u + 1013904223u;
        x ^= 2463534242u;
    }
    if (x == 305419896u) sink[0] = x;
}

extern \"C\" __global__ void fill(float *to, float value, unsigned long long count) {
    unsigned long long at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) to[at] = value;
}

extern \"C\" __global__ void add(float *to, const float *from, unsigned long long count) {
    unsigned long long at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) to[at] += from[at];
}
";

functions! {
    Runtime;
    device_count = c"hipGetDeviceCount" (*mut c_int) -> Code;
    device_name = c"hipDeviceGetName" (*mut c_char, c_int, c_int) -> Code;
    create_stream = c"hipStreamCreateWithFlags" (*mut Handle, c_uint) -> Code;
    synchronize = c"hipStreamSynchronize" (Handle) -> Code;
    load_module = c"hipModuleLoadData" (*mut Handle, *const c_void) -> Code;
    get_function = c"hipModuleGetFunction" (*mut Handle, Handle, *const c_char) -> Code;
    launch = c"hipModuleLaunchKernel" (Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void) -> Code;
    allocate = c"hipMalloc" (*mut Handle, usize) -> Code;
    copy = c"hipMemcpy" (*mut c_void, *const c_void, usize, c_int) -> Code;
}

functions! {
    Compiler;
    create = c"hiprtcCreateProgram" (*mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char) -> Code;
    compile = c"hiprtcCompileProgram" (Handle, c_int, *const *const c_char) -> Code;
    code_size = c"hiprtcGetCodeSize" (Handle, *mut usize) -> Code;
    code = c"hiprtcGetCode" (Handle, *mut c_char) -> Code;
}

/// The device, with objects that are never released.
pub(super) struct Device {
    runtime: Runtime,
    name: String,
    stream: Handle,
    spin: Handle,
    fill: Handle,
    add: Handle,
    sink: Handle,
    rounds_per_us: f64,
}

/// Opens the first of these libraries that is installed.
fn open(files: [&'static CStr; 4]) -> Option<(Handle, &'static CStr)> {
    files.into_iter().find_map(|file| {
        // SAFETY: loads a library of AMD, whose initializers may run in any program; it is never closed.
        let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        (!library.is_null()).then_some((library, file))
    })
}

/// Compiles the kernels for the first GPU.
fn compile(runtime: (Handle, &CStr)) -> anyhow::Result<Vec<u8>> {
    let (library, file) = if find(runtime.0, c"hiprtcCreateProgram").is_some() {
        runtime
    } else {
        open(COMPILERS)
            .context("HIP's compiler for kernels is not installed: libhiprtc.so cannot be loaded")?
    };
    let compiler = Compiler::load(library, file)?;
    let (mut program, mut size) = (ptr::null_mut(), 0);
    // SAFETY: source and name are C strings, and there are no headers and no options; every output has room for what the function writes.
    unsafe {
        let (source, name) = (SOURCE.as_ptr(), c"xsched-bench".as_ptr());
        let created = (compiler.create)(&raw mut program, source, name, 0, ptr::null(), ptr::null());
        check(created, "hiprtcCreateProgram")?;
        check((compiler.compile)(program, 0, ptr::null()), "hiprtcCompileProgram")?;
        check((compiler.code_size)(program, &raw mut size), "hiprtcGetCodeSize")?;
        let mut code = vec![0_u8; size];
        check((compiler.code)(program, code.as_mut_ptr().cast()), "hiprtcGetCode")?;
        Ok(code)
    }
}

impl Device {
    pub(super) fn open(calibration: Option<&str>) -> anyhow::Result<Self> {
        let library = open(RUNTIMES).context("no HIP on this machine: libamdhip64.so cannot be loaded")?;
        let mut device = Self::create(Runtime::load(library.0, library.1)?, library)?;
        device.rounds_per_us = match calibration {
            Some(text) => text.parse().with_context(|| format!("calibration `{text}` is not a number"))?,
            None => device.calibrate()?,
        };
        // The first launch of a kernel is slow.
        device.launch(1)?;
        device.synchronize()?;
        Ok(device)
    }

    fn create(runtime: Runtime, library: (Handle, &CStr)) -> anyhow::Result<Self> {
        let mut devices = 0;
        // SAFETY: the output is a local variable of the type that the function writes.
        let code = unsafe { (runtime.device_count)(&raw mut devices) };
        anyhow::ensure!(code == SUCCESS && devices > 0, "no AMD GPU on this machine: HIP finds no device");
        let image = compile(library)?;
        let mut name = [0_u8; 256];
        let mut handles = [ptr::null_mut(); 6];
        let [stream, module, spin, fill, add, sink] = &mut handles;
        // SAFETY: every output is a local variable of the type that the function writes; the image is what the compiler wrote, and
        // names are C strings.
        unsafe {
            let room = c_int::try_from(name.len() - 1)?;
            check((runtime.device_name)(name.as_mut_ptr().cast(), room, 0), "hipDeviceGetName")?;
            check((runtime.create_stream)(stream, NON_BLOCKING), "hipStreamCreateWithFlags")?;
            check((runtime.load_module)(module, image.as_ptr().cast()), "hipModuleLoadData")?;
            for (kernel, name) in [(spin, c"spin"), (fill, c"fill"), (add, c"add")] {
                check((runtime.get_function)(kernel, *module, name.as_ptr()), "hipModuleGetFunction")?;
            }
            check((runtime.allocate)(sink, 4), "hipMalloc")?;
        }
        let name = CStr::from_bytes_until_nul(&name)?.to_string_lossy().trim().to_owned();
        let [stream, _, spin, fill, add, sink] = handles;
        Ok(Self { runtime, name, stream, spin, fill, add, sink, rounds_per_us: 1.0 })
    }

    /// The rounds of a microsecond: the fastest of several tries, because other programs may use the GPU.
    fn calibrate(&self) -> anyhow::Result<f64> {
        const ROUNDS: u64 = 100_000;
        const TRIES: u32 = 10;
        let mut best = f64::INFINITY;
        for _ in 0..TRIES {
            let began = Instant::now();
            self.spin(ROUNDS)?;
            self.wait()?;
            best = best.min(began.elapsed().as_secs_f64() * 1e6);
        }
        Ok(ROUNDS as f64 / best)
    }

    fn spin(&self, rounds: u64) -> anyhow::Result<()> {
        let (mut rounds, mut sink) = (rounds, self.sink);
        self.launch_kernel(
            self.spin,
            BLOCKS,
            [(&raw mut rounds).cast(), (&raw mut sink).cast(), ptr::null_mut()],
        )
    }

    /// Launches one of the kernels with pointers to its parameters.
    fn launch_kernel(
        &self,
        kernel: Handle,
        blocks: u32,
        mut parameters: [*mut c_void; 3],
    ) -> anyhow::Result<()> {
        // SAFETY: kernels and the stream are never released; the runtime copies the parameters before it returns.
        let code = unsafe {
            (self.runtime.launch)(
                kernel,
                blocks,
                1,
                1,
                THREADS_PER_BLOCK,
                1,
                1,
                0,
                self.stream,
                parameters.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        check(code, "hipModuleLaunchKernel")
    }

    fn wait(&self) -> anyhow::Result<()> {
        // SAFETY: the stream is never released.
        check(unsafe { (self.runtime.synchronize)(self.stream) }, "hipStreamSynchronize")
    }

    fn allocate(&self, bytes: usize) -> anyhow::Result<Handle> {
        let mut memory = ptr::null_mut();
        // SAFETY: the output is a local variable of the type that the function writes.
        check(unsafe { (self.runtime.allocate)(&raw mut memory, bytes) }, "hipMalloc")?;
        Ok(memory)
    }

    fn rounds(&self, length_us: u64) -> u64 {
        rounds(length_us, self.rounds_per_us)
    }
}

impl Accelerator for Device {
    fn launch(&mut self, length_us: u64) -> anyhow::Result<()> {
        self.spin(self.rounds(length_us))
    }

    fn synchronize(&mut self) -> anyhow::Result<()> {
        self.wait()
    }

    fn describe(&self) -> (String, String) {
        (self.name.clone(), self.rounds_per_us.to_string())
    }

    /// Each command fills an array with another number and adds it to the sums: a kernel that runs twice, not at all or before another one
    /// changes them. The sums of up to 5,000 numbers are exact.
    fn compute(&mut self, commands: u32, length_us: u64) -> anyhow::Result<u64> {
        let mut sums = vec![0.0_f32; ITEMS];
        let size = size_of_val(sums.as_slice());
        let (mut count, blocks) = (ITEMS as u64, u32::try_from(ITEMS)?.div_ceil(THREADS_PER_BLOCK));
        let (mut to, mut from) = (self.allocate(size)?, self.allocate(size)?);
        let (to, from, count) = ((&raw mut to).cast(), (&raw mut from).cast(), (&raw mut count).cast());
        let fill = |memory, mut value: f32| {
            self.launch_kernel(self.fill, blocks, [memory, (&raw mut value).cast(), count])
        };
        fill(to, 0.0)?;
        for command in 1..=commands {
            self.spin(self.rounds(length_us))?;
            fill(from, f32::from(u16::try_from(command)?))?;
            self.launch_kernel(self.add, blocks, [to, from, count])?;
        }
        self.wait()?;
        // SAFETY: `to` points to the address of device memory of this size, and `sums` has it too.
        let code = unsafe {
            let memory = *to.cast::<Handle>();
            (self.runtime.copy)(sums.as_mut_ptr().cast(), memory, size, TO_HOST)
        };
        check(code, "hipMemcpy")?;
        let mut checksum = Fnv::EMPTY;
        for sum in &sums {
            checksum.update(&sum.to_le_bytes());
        }
        Ok(checksum.0)
    }
}
