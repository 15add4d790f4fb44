//! Modules and the kernels in them.
//!
//! Every module has the same five kernels. The first parameter of four is the time they occupy the device, in nanoseconds:
//!
//! ```text
//!   spin(u64 ns)
//!   fill(u64 ns, u32 *to, u32 value, u64 count)               to[i] = value
//!   add (u64 ns, u32 *to, const u32 *from, u32 delta, u64 n)  to[i] = from[i] + delta
//!   meet(u64 ns, u32 *arrived, u32 expected)                  adds 1 to *arrived when it begins, and occupies the device until
//!                                                             *arrived is at least expected: the kernel of a collective
//!   empty()
//! ```
//!
//! They change memory when they complete, so that the data shows whether commands ran in the right order.

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::code::{Code, Outcome, write_out};
use crate::driver::{Handle, driver, new_handle};
use crate::memory::Memory;
use crate::stream::{self, DefaultStream, Work, submit};

/// The kernels; see the module documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kernel {
    Spin,
    Fill,
    Add,
    Meet,
    Empty,
}

/// What a kernel does to memory when it completes.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    Nothing,
    Fill { to: usize, value: u32, count: usize },
    Add { to: usize, from: usize, delta: u32, count: usize },
    Meet { arrived: usize, expected: u32 },
}

impl Kernel {
    fn named(name: &CStr) -> Option<Self> {
        match name.to_bytes() {
            b"spin" => Some(Self::Spin),
            b"fill" => Some(Self::Fill),
            b"add" => Some(Self::Add),
            b"meet" => Some(Self::Meet),
            b"empty" => Some(Self::Empty),
            _ => None,
        }
    }

    fn name(self) -> &'static CStr {
        match self {
            Self::Spin => c"spin",
            Self::Fill => c"fill",
            Self::Add => c"add",
            Self::Meet => c"meet",
            Self::Empty => c"empty",
        }
    }

    /// The sizes of its parameters.
    fn sizes(self) -> &'static [usize] {
        match self {
            Self::Spin => &[8],
            Self::Fill => &[8, 8, 4, 8],
            Self::Add => &[8, 8, 8, 4, 8],
            Self::Meet => &[8, 8, 4],
            Self::Empty => &[],
        }
    }

    fn with(self, values: &[u64]) -> Work {
        let value = |n: usize| values.get(n).copied().unwrap_or(0);
        let size = |n: usize| usize::try_from(value(n)).unwrap_or(usize::MAX);
        let word = |n: usize| u32::try_from(value(n)).unwrap_or(0);
        let effect = match self {
            Self::Spin | Self::Empty => Effect::Nothing,
            Self::Fill => Effect::Fill { to: size(1), value: word(2), count: size(3) },
            Self::Add => Effect::Add { to: size(1), from: size(2), delta: word(3), count: size(4) },
            Self::Meet => Effect::Meet { arrived: size(1), expected: word(2) },
        };
        Work::Kernel { ns: value(0), effect }
    }
}

impl Effect {
    /// The kernel begins to execute.
    pub(crate) fn begin(&self, memory: &Memory) {
        if let Some((arrived, _)) = self.meeting(memory) {
            arrived.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Whether the kernel cannot complete yet, because it waits for kernels on other devices.
    pub(crate) fn waits(&self, memory: &Memory) -> bool {
        self.meeting(memory).is_some_and(|(arrived, expected)| arrived.load(Ordering::SeqCst) < expected)
    }

    /// How many kernels have arrived, and how many are expected. None if this kernel waits for no others.
    fn meeting<'a>(&self, memory: &'a Memory) -> Option<(&'a AtomicU32, u32)> {
        let Self::Meet { arrived, expected } = *self else { return None };
        let is_valid = arrived.is_multiple_of(4) && memory.reaches(arrived, 4);
        // SAFETY: in an existing allocation, which the lock on `memory` protects, and aligned. Other processes that map the
        // same memory access it atomically.
        is_valid.then(|| (unsafe { AtomicU32::from_ptr(arrived as *mut u32) }, expected))
    }

    /// Changes memory. Rejects addresses that the device cannot access.
    pub(crate) fn apply(&self, memory: &Memory) -> Outcome {
        let reach = |address: usize, count: usize| {
            let length = count.checked_mul(4).filter(|_| address.is_multiple_of(4));
            let reached = length.is_some_and(|length| memory.reaches(address, length));
            if reached { Ok(address as *mut u32) } else { Err(Code::ERROR_ILLEGAL_ADDRESS) }
        };
        match *self {
            Self::Nothing | Self::Meet { .. } => {}
            Self::Fill { to, value, count } => {
                let to = reach(to, count)?;
                for n in 0..count {
                    // SAFETY: in an existing allocation, as checked above under the lock that protects it.
                    unsafe { to.add(n).write_volatile(value) };
                }
            }
            Self::Add { to, from, delta, count } => {
                let (to, from) = (reach(to, count)?, reach(from, count)?);
                for n in 0..count {
                    // SAFETY: as above, for both.
                    unsafe { to.add(n).write_volatile(from.add(n).read_volatile().wrapping_add(delta)) };
                }
            }
        }
        Ok(())
    }
}

/// Copies the parameters of a launch: from a list of pointers, or from one packed buffer.
unsafe fn parameters(
    kernel: Kernel,
    list: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<Vec<u64>, Code> {
    let read = |address: *const u8, size: usize| {
        let mut bytes = [0; 8];
        // SAFETY: the caller of the launch guarantees parameters of these sizes.
        unsafe { std::ptr::copy_nonoverlapping(address, bytes.as_mut_ptr(), size) };
        u64::from_le_bytes(bytes)
    };
    let sizes = kernel.sizes();
    if !list.is_null() {
        let values = sizes.iter().enumerate().map(|(n, size)| {
            // SAFETY: as above: the list has an entry for every parameter.
            let address = unsafe { *list.add(n) };
            if address.is_null() { Err(Code::ERROR_INVALID_VALUE) } else { Ok(read(address.cast(), *size)) }
        });
        return values.collect();
    }
    // SAFETY: as above: the list of extras ends with a null.
    let buffer = unsafe { packed(extra) }.ok_or(Code::ERROR_INVALID_VALUE)?;
    let mut at = 0_usize;
    let values = sizes.iter().map(|size| {
        at = at.next_multiple_of(*size);
        let value = read(buffer.wrapping_add(at), *size);
        at += size;
        value
    });
    Ok(values.collect())
}

/// The buffer in a launch's `extra` list: pairs of a key and a value, where the buffer's key is 1.
unsafe fn packed(extra: *mut *mut c_void) -> Option<*const u8> {
    if extra.is_null() {
        return None;
    }
    for n in (0..16).step_by(2) {
        // SAFETY: the caller guarantees a list that ends with a null.
        let (kind, value) = unsafe { (*extra.add(n) as usize, extra.add(n + 1)) };
        match kind {
            0 => return None,
            // SAFETY: the list has not ended, so a key is followed by its value.
            1 => return Some(unsafe { *value }.cast_const().cast()),
            _ => {}
        }
    }
    None
}

pub(crate) unsafe fn load(out: *mut Handle, image: *const c_void) -> Outcome {
    stream::while_idle(|| {
        let mut driver = driver()?;
        let context = driver.current()?;
        if image.is_null() {
            return Err(Code::ERROR_INVALID_VALUE);
        }
        let module = new_handle();
        // SAFETY: the caller guarantees that `out` is valid.
        unsafe { write_out(out, module) }?;
        driver.modules.insert(module, context);
        Ok(())
    })
}

pub(crate) unsafe fn load_with_options(
    out: *mut Handle,
    image: *const c_void,
    _count: c_uint,
    _options: *mut c_void,
    _values: *mut c_void,
) -> Outcome {
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { load(out, image) }
}

pub(crate) unsafe fn unload(module: Handle) -> Outcome {
    driver()?.modules.remove(&module).map(drop).ok_or(Code::ERROR_INVALID_HANDLE)
}

pub(crate) unsafe fn function(out: *mut Handle, module: Handle, name: *const c_char) -> Outcome {
    let mut driver = driver()?;
    if !driver.modules.contains_key(&module) {
        return Err(Code::ERROR_INVALID_HANDLE);
    }
    if name.is_null() {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so the caller guarantees a C string.
    let kernel = Kernel::named(unsafe { CStr::from_ptr(name) }).ok_or(Code::ERROR_NOT_FOUND)?;
    let function = new_handle();
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, function) }?;
    driver.functions.insert(function, kernel);
    Ok(())
}

pub(crate) unsafe fn function_name(out: *mut *const c_char, function: Handle) -> Outcome {
    let kernel = *driver()?.functions.get(&function).ok_or(Code::ERROR_INVALID_HANDLE)?;
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, kernel.name().as_ptr()) }
}

unsafe fn launch_shaped(
    default_stream: DefaultStream,
    function: Handle,
    shape: [c_uint; 6],
    stream: Handle,
    list: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Outcome {
    let kernel = {
        let driver = driver()?;
        driver.current()?;
        *driver.functions.get(&function).ok_or(Code::ERROR_INVALID_HANDLE)?
    };
    if shape.contains(&0) {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller guarantees that the parameters are valid.
    let values = unsafe { parameters(kernel, list, extra) }?;
    submit(default_stream, stream, kernel.with(&values))
}

#[allow(clippy::too_many_arguments, reason = "the driver's")]
pub(crate) unsafe fn launch(
    default_stream: DefaultStream,
    function: Handle,
    gx: c_uint,
    gy: c_uint,
    gz: c_uint,
    bx: c_uint,
    by: c_uint,
    bz: c_uint,
    _shared: c_uint,
    stream: Handle,
    list: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Outcome {
    // SAFETY: the caller guarantees that the parameters are valid.
    unsafe { launch_shaped(default_stream, function, [gx, gy, gz, bx, by, bz], stream, list, extra) }
}

#[allow(clippy::too_many_arguments, reason = "the driver's")]
pub(crate) unsafe fn launch_cooperative(
    default_stream: DefaultStream,
    function: Handle,
    gx: c_uint,
    gy: c_uint,
    gz: c_uint,
    bx: c_uint,
    by: c_uint,
    bz: c_uint,
    _shared: c_uint,
    stream: Handle,
    list: *mut *mut c_void,
) -> Outcome {
    // SAFETY: the caller guarantees that the parameters are valid.
    unsafe {
        launch_shaped(default_stream, function, [gx, gy, gz, bx, by, bz], stream, list, std::ptr::null_mut())
    }
}

/// `CUlaunchConfig`.
#[repr(C)]
pub(crate) struct LaunchConfig {
    shape: [c_uint; 6],
    shared: c_uint,
    stream: Handle,
    attributes: *const c_void,
    count: c_uint,
}

const _: () = assert!(std::mem::offset_of!(LaunchConfig, stream) == 32);

pub(crate) unsafe fn launch_configured(
    default_stream: DefaultStream,
    config: *const LaunchConfig,
    function: Handle,
    list: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Outcome {
    // SAFETY: null, or a valid configuration as the caller guarantees.
    let config = unsafe { config.as_ref() }.ok_or(Code::ERROR_INVALID_VALUE)?;
    // SAFETY: the caller guarantees that the parameters are valid.
    unsafe { launch_shaped(default_stream, function, config.shape, config.stream, list, extra) }
}

pub(crate) unsafe fn launch_host(
    default_stream: DefaultStream,
    stream: Handle,
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
) -> Outcome {
    let function = function.ok_or(Code::ERROR_INVALID_VALUE)?;
    submit(default_stream, stream, Work::Host { function, data: data as usize, started: false })
}
