//! The loads on the first OpenCL device.
//!
//! The library is loaded as most programs load it, by `dlopen` and `dlsym`, so that the preloaded library intercepts every call.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::time::Instant;

use anyhow::{Context as _, bail};

use super::super::program::Fnv;
use super::Accelerator;
use super::functions::{SUCCESS, check, functions, rounds};

type Code = c_int;
type Handle = *mut c_void;

const LIBRARY: &CStr = c"libOpenCL.so.1";
const ALL_DEVICES: u64 = 0xffff_ffff;
const DEVICE_COMPUTE_UNITS: c_uint = 0x1002;
const DEVICE_NAME: c_uint = 0x102b;
const READ_WRITE: u64 = 1;
const WORK_GROUP: usize = 64;

/// Computes a number of rounds instead of reading a clock: a clock advances while the kernel is preempted. The result is stored in
/// one case of 4 billion, so that the compiler cannot remove the rounds.
const SOURCE: &CStr = c"
__kernel void spin(ulong rounds, __global uint *sink) {
    uint x = (uint)get_global_id(0);
    for (ulong round = 0; round < rounds; round++) {
        x = x * 1664525u + 1013904223u;
        x ^= 2463534242u;
    }
    if (x == 305419896u) sink[0] = x;
}

__kernel void chain(ulong rounds, __global uint *data, uint launch) {
    size_t at = get_global_id(0);
    uint x = data[at] ^ launch;
    for (ulong round = 0; round < rounds; round++) {
        x = x * 1664525u + 1013904223u;
        x ^= x >> 13;
    }
    data[at] = x;
}
";

functions! {
    Functions;
    platforms = c"clGetPlatformIDs" (c_uint, *mut Handle, *mut c_uint) -> Code;
    devices = c"clGetDeviceIDs" (Handle, u64, c_uint, *mut Handle, *mut c_uint) -> Code;
    device_info = c"clGetDeviceInfo" (Handle, c_uint, usize, *mut c_void, *mut usize) -> Code;
    create_context = c"clCreateContext" (*const isize, c_uint, *const Handle, *const c_void, *mut c_void, *mut Code) -> Handle;
    create_queue = c"clCreateCommandQueue" (Handle, Handle, u64, *mut Code) -> Handle;
    create_program = c"clCreateProgramWithSource" (Handle, c_uint, *const *const c_char, *const usize, *mut Code) -> Handle;
    build = c"clBuildProgram" (Handle, c_uint, *const Handle, *const c_char, *const c_void, *mut c_void) -> Code;
    create_kernel = c"clCreateKernel" (Handle, *const c_char, *mut Code) -> Handle;
    create_buffer = c"clCreateBuffer" (Handle, u64, usize, *mut c_void, *mut Code) -> Handle;
    set_argument = c"clSetKernelArg" (Handle, c_uint, usize, *const c_void) -> Code;
    launch = c"clEnqueueNDRangeKernel" (Handle, Handle, c_uint, *const usize, *const usize, *const usize, c_uint, *const Handle, *mut Handle) -> Code;
    flush = c"clFlush" (Handle) -> Code;
    finish = c"clFinish" (Handle) -> Code;
    fill = c"clEnqueueWriteBuffer" (Handle, Handle, c_uint, usize, usize, *const c_void, c_uint, *const Handle, *mut Handle) -> Code;
    read = c"clEnqueueReadBuffer" (Handle, Handle, c_uint, usize, usize, *mut c_void, c_uint, *const Handle, *mut Handle) -> Code;
}

/// The device, with objects that are never released.
pub(super) struct Device {
    functions: Functions,
    name: String,
    queue: Handle,
    /// `spin`, with its second argument set.
    kernel: Handle,
    /// `chain`, and the buffer that it changes.
    chain: Handle,
    data: Handle,
    items: usize,
    rounds_per_us: f64,
}

impl Device {
    pub(super) fn open(calibration: Option<&str>) -> anyhow::Result<Self> {
        // SAFETY: loads the OpenCL library, whose initializers may run in any program; it is never closed.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            bail!("no OpenCL on this machine: {} cannot be loaded", LIBRARY.to_string_lossy());
        }
        let mut device = Self::create(Functions::load(library, LIBRARY)?)?;
        device.rounds_per_us = match calibration {
            Some(text) => text.parse().with_context(|| format!("calibration `{text}` is not a number"))?,
            None => device.calibrate()?,
        };
        // The first launch of a kernel is slow.
        device.launch(1)?;
        device.synchronize()?;
        Ok(device)
    }

    fn create(functions: Functions) -> anyhow::Result<Self> {
        let (mut platform, mut device) = (ptr::null_mut(), ptr::null_mut());
        let mut name = [0_u8; 256];
        let (mut units, mut code): (c_uint, Code) = (0, SUCCESS);
        let sources = [SOURCE.as_ptr()];
        // SAFETY: every output pointer points to a local variable of the type and size that the function writes; handles come from
        // the calls before, which were successful.
        unsafe {
            check((functions.platforms)(1, &raw mut platform, ptr::null_mut()), "clGetPlatformIDs")
                .context("no OpenCL platform on this machine")?;
            check(
                (functions.devices)(platform, ALL_DEVICES, 1, &raw mut device, ptr::null_mut()),
                "clGetDeviceIDs",
            )
            .context("the OpenCL platform has no device")?;
            let unit_size = size_of::<c_uint>();
            let found = (&raw mut units).cast();
            check(
                (functions.device_info)(device, DEVICE_COMPUTE_UNITS, unit_size, found, ptr::null_mut()),
                "clGetDeviceInfo",
            )?;
            let (found, room) = (name.as_mut_ptr().cast(), name.len() - 1);
            check(
                (functions.device_info)(device, DEVICE_NAME, room, found, ptr::null_mut()),
                "clGetDeviceInfo",
            )?;
            let context = (functions.create_context)(
                ptr::null(),
                1,
                &raw const device,
                ptr::null(),
                ptr::null_mut(),
                &raw mut code,
            );
            check(code, "clCreateContext")?;
            let queue = (functions.create_queue)(context, device, 0, &raw mut code);
            check(code, "clCreateCommandQueue")?;
            let program =
                (functions.create_program)(context, 1, sources.as_ptr(), ptr::null(), &raw mut code);
            check(code, "clCreateProgramWithSource")?;
            let options = c"".as_ptr();
            check(
                (functions.build)(program, 1, &raw const device, options, ptr::null(), ptr::null_mut()),
                "clBuildProgram",
            )?;
            let kernel = (functions.create_kernel)(program, c"spin".as_ptr(), &raw mut code);
            check(code, "clCreateKernel")?;
            let sink = (functions.create_buffer)(context, READ_WRITE, 4, ptr::null_mut(), &raw mut code);
            check(code, "clCreateBuffer")?;
            check(
                (functions.set_argument)(kernel, 1, size_of::<Handle>(), (&raw const sink).cast()),
                "clSetKernelArg",
            )?;
            let name = CStr::from_bytes_until_nul(&name)?.to_string_lossy().trim().to_owned();
            let items = units as usize * WORK_GROUP;
            let chain = (functions.create_kernel)(program, c"chain".as_ptr(), &raw mut code);
            check(code, "clCreateKernel")?;
            let data =
                (functions.create_buffer)(context, READ_WRITE, items * 4, ptr::null_mut(), &raw mut code);
            check(code, "clCreateBuffer")?;
            Ok(Self { functions, name, queue, kernel, chain, data, items, rounds_per_us: 1.0 })
        }
    }

    /// The rounds of a microsecond: the fastest of several tries, because other programs may use the device.
    fn calibrate(&mut self) -> anyhow::Result<f64> {
        const ROUNDS: u64 = 1_000_000;
        const TRIES: u32 = 5;
        let mut best = f64::INFINITY;
        for _ in 0..TRIES {
            let began = Instant::now();
            self.launch_rounds(ROUNDS)?;
            self.synchronize()?;
            best = best.min(began.elapsed().as_secs_f64() * 1e6);
        }
        Ok(ROUNDS as f64 / best)
    }

    fn launch_rounds(&mut self, rounds: u64) -> anyhow::Result<()> {
        self.launch_kernel(self.kernel, rounds)
    }

    fn rounds(&self, length_us: u64) -> u64 {
        rounds(length_us, self.rounds_per_us)
    }

    /// Launches a kernel whose first argument is the number of rounds.
    fn launch_kernel(&self, kernel: Handle, rounds: u64) -> anyhow::Result<()> {
        let local = WORK_GROUP;
        // SAFETY: queue and kernels are never released; the driver copies the argument and the sizes before it returns.
        unsafe {
            let argument = (&raw const rounds).cast();
            check((self.functions.set_argument)(kernel, 0, 8, argument), "clSetKernelArg")?;
            let code = (self.functions.launch)(
                self.queue,
                kernel,
                1,
                ptr::null(),
                &raw const self.items,
                &raw const local,
                0,
                ptr::null(),
                ptr::null_mut(),
            );
            check(code, "clEnqueueNDRangeKernel")?;
            check((self.functions.flush)(self.queue), "clFlush")
        }
    }
}

impl Accelerator for Device {
    fn launch(&mut self, length_us: u64) -> anyhow::Result<()> {
        self.launch_rounds(self.rounds(length_us))
    }

    fn synchronize(&mut self) -> anyhow::Result<()> {
        // SAFETY: the queue is never released.
        check(unsafe { (self.functions.finish)(self.queue) }, "clFinish")
    }

    fn describe(&self) -> (String, String) {
        (self.name.clone(), self.rounds_per_us.to_string())
    }

    fn compute(&mut self, commands: u32, length_us: u64) -> anyhow::Result<u64> {
        /// `CL_TRUE`: the call returns when the copy is complete.
        const BLOCKING: c_uint = 1;
        let mut data = vec![0_u32; self.items];
        let size = size_of_val(data.as_slice());
        // SAFETY: buffer, kernel and queue are never released; `data` has the size of the buffer and outlives the blocking calls; the
        // driver copies arguments before it returns.
        unsafe {
            let from = data.as_ptr().cast();
            let code = (self.functions.fill)(
                self.queue,
                self.data,
                BLOCKING,
                0,
                size,
                from,
                0,
                ptr::null(),
                ptr::null_mut(),
            );
            check(code, "clEnqueueWriteBuffer")?;
            let buffer = (&raw const self.data).cast();
            check(
                (self.functions.set_argument)(self.chain, 1, size_of::<Handle>(), buffer),
                "clSetKernelArg",
            )?;
            for launch in 0..commands {
                let argument = (&raw const launch).cast();
                check((self.functions.set_argument)(self.chain, 2, 4, argument), "clSetKernelArg")?;
                self.launch_kernel(self.chain, self.rounds(length_us))?;
            }
            let to = data.as_mut_ptr().cast();
            let code = (self.functions.read)(
                self.queue,
                self.data,
                BLOCKING,
                0,
                size,
                to,
                0,
                ptr::null(),
                ptr::null_mut(),
            );
            check(code, "clEnqueueReadBuffer")?;
        }
        let mut checksum = Fnv::EMPTY;
        for word in &data {
            checksum.update(&word.to_le_bytes());
        }
        Ok(checksum.0)
    }
}
