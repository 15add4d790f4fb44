//! Kernels: registration, lookup and launch.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use crate::capture::Node;
use crate::device::{current, write_out};
use crate::effect::{Effect, are_mapped, effect};
use crate::error::{Code, INVALID_FUNCTION, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, to_code};
use crate::event;
use crate::stream::{self, Handle};

/// A kernel. Its name determines what it does.
struct Kernel {
    name: String,
    /// The same, for programs that ask for it.
    c_name: CString,
}

static KERNELS: OnceLock<RwLock<HashMap<usize, Arc<Kernel>>>> = OnceLock::new();

/// By the address of the program's host function, or of a module's function.
fn kernels() -> &'static RwLock<HashMap<usize, Arc<Kernel>>> {
    KERNELS.get_or_init(RwLock::default)
}

fn find(function: *const c_void, otherwise: Code) -> Result<Arc<Kernel>, Code> {
    let kernels = kernels().read().unwrap_or_else(PoisonError::into_inner);
    kernels.get(&function.addr()).cloned().ok_or(otherwise)
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Dim3 {
    x: u32,
    y: u32,
    z: u32,
}

pub(crate) type Arguments = *mut *mut c_void;

impl Kernel {
    fn named(name: *const c_char) -> Self {
        // SAFETY: the caller passes a C string as the kernel's name.
        let c_name = unsafe { CStr::from_ptr(name) }.to_owned();
        Self { name: c_name.to_string_lossy().into_owned(), c_name }
    }

    /// Performs the kernel's effect on memory, and returns how long it takes.
    fn run(&self, arguments: Arguments) -> Duration {
        // SAFETY: a program that launches one of the kernels below passes the arguments that it takes.
        let argument = |n: usize| unsafe { *arguments.add(n) };
        // SAFETY: as above.
        let number = |n: usize| unsafe { argument(n).cast::<u64>().read_unaligned() };
        let count = |n: usize, wide: bool| {
            // SAFETY: as above: `wide` is what the kernel's name says.
            if wide { number(n) } else { unsafe { argument(n).cast::<u32>().read_unaligned() }.into() }
        };
        // SAFETY: as above: an address, for `fill` and `add` also a value and a count. A plain name says nothing about the
        // parameters, so that the arrays are checked.
        unsafe {
            match effect(&self.name) {
                Effect::Spin => return Duration::from_nanos(number(0)),
                Effect::Increment => {
                    let counter = argument(0).cast::<*const AtomicU64>().read_unaligned();
                    (*counter).fetch_add(1, Ordering::Relaxed);
                }
                Effect::Fill { wide } => {
                    let to = argument(0).cast::<*mut f32>().read_unaligned();
                    let (value, count) = (argument(1).cast::<f32>().read_unaligned(), count(2, wide));
                    if are_mapped(to, count) {
                        for n in 0..usize::try_from(count).unwrap_or(0) {
                            to.add(n).write(value);
                        }
                    }
                }
                Effect::Add { wide } => {
                    let to = argument(0).cast::<*mut f32>().read_unaligned();
                    let (from, count) = (argument(1).cast::<*const f32>().read_unaligned(), count(2, wide));
                    if are_mapped(to, count) && are_mapped(from, count) {
                        for n in 0..usize::try_from(count).unwrap_or(0) {
                            *to.add(n) += *from.add(n);
                        }
                    }
                }
                Effect::None => return Duration::from_micros(20),
            }
        }
        Duration::from_micros(1)
    }

    fn launch_on(&self, handle: Handle, arguments: Arguments) -> Result<(), Code> {
        let stream = stream::get(handle)?;
        log(&self.name);
        if self.name.contains("nothing") {
            return Ok(());
        }
        let length = self.run(arguments);
        if stream.record(Node::Kernel(length)) { Ok(()) } else { stream.queue.launch(length) }
    }
}

/// Appends a name to the file that `HIP_STANDIN_LOG` names, so that tests see which launches arrived.
pub(crate) fn log(name: &str) {
    static PATH: OnceLock<Option<std::ffi::OsString>> = OnceLock::new();
    let Some(path) = PATH.get_or_init(|| std::env::var_os("HIP_STANDIN_LOG")) else { return };
    if let Ok(mut file) = std::fs::OpenOptions::new().create(true).append(true).open(path) {
        let _ = file.write_all(format!("{name}\n").as_bytes());
    }
}

pub(crate) extern "C" fn launch(
    f: *const c_void,
    _grid: Dim3,
    _block: Dim3,
    arguments: Arguments,
    _shared: usize,
    stream: Handle,
) -> Code {
    to_code(find(f, INVALID_FUNCTION).and_then(|kernel| kernel.launch_on(stream, arguments)))
}

pub(crate) extern "C" fn launch_spt(
    f: *const c_void,
    grid: Dim3,
    block: Dim3,
    arguments: Arguments,
    shared: usize,
    stream: Handle,
) -> Code {
    launch(f, grid, block, arguments, shared, stream::per_thread(stream))
}

pub(crate) extern "C" fn launch_ext(
    f: *const c_void,
    _grid: Dim3,
    _block: Dim3,
    arguments: Arguments,
    _shared: usize,
    stream: Handle,
    start: event::Handle,
    stop: event::Handle,
    _flags: c_int,
) -> Code {
    to_code(
        find(f, INVALID_FUNCTION)
            .and_then(|kernel| record_around(start, stop, stream, || kernel.launch_on(stream, arguments))),
    )
}

fn record_around(
    start: event::Handle,
    stop: event::Handle,
    stream: Handle,
    work: impl FnOnce() -> Result<(), Code>,
) -> Result<(), Code> {
    let record = |event: event::Handle| if event.is_null() { 0 } else { event::record(event, stream) };
    record(start);
    work()?;
    record(stop);
    Ok(())
}

/// `hipLaunchConfig_t` and `HIP_LAUNCH_CONFIG`, which have the same layout.
#[repr(C)]
pub(crate) struct Config {
    shape: [u64; 4],
    stream: Handle,
}

pub(crate) extern "C" fn launch_config(
    config: *const Config,
    f: *const c_void,
    arguments: Arguments,
) -> Code {
    // SAFETY: null or valid, as the caller guarantees.
    let config = unsafe { config.as_ref() }.ok_or(INVALID_VALUE);
    to_code(config.and_then(|config| find(f, INVALID_FUNCTION)?.launch_on(config.stream, arguments)))
}

pub(crate) extern "C" fn launch_module(
    f: *const c_void,
    _gx: c_uint,
    _gy: c_uint,
    _gz: c_uint,
    _bx: c_uint,
    _by: c_uint,
    _bz: c_uint,
    _shared: c_uint,
    stream: Handle,
    arguments: Arguments,
    _extra: *mut c_void,
) -> Code {
    to_code(find(f, INVALID_HANDLE).and_then(|kernel| kernel.launch_on(stream, arguments)))
}

pub(crate) extern "C" fn launch_module_ext(
    f: *const c_void,
    _gx: u32,
    _gy: u32,
    _gz: u32,
    _bx: u32,
    _by: u32,
    _bz: u32,
    _shared: usize,
    stream: Handle,
    arguments: Arguments,
    _extra: *mut c_void,
    start: event::Handle,
    stop: event::Handle,
) -> Code {
    to_code(
        find(f, INVALID_HANDLE)
            .and_then(|kernel| record_around(start, stop, stream, || kernel.launch_on(stream, arguments))),
    )
}

/// `hipLaunchParams`.
#[repr(C)]
pub(crate) struct Params {
    function: *const c_void,
    grid: Dim3,
    block: Dim3,
    arguments: Arguments,
    shared: usize,
    stream: Handle,
}

pub(crate) extern "C" fn launch_all(list: *const Params, count: c_int, _flags: c_uint) -> Code {
    let count = usize::try_from(count).unwrap_or(0);
    to_code(if list.is_null() {
        Err(INVALID_VALUE)
    } else {
        // SAFETY: the caller guarantees `count` entries.
        let list = unsafe { std::slice::from_raw_parts(list, count) };
        list.iter()
            .try_for_each(|one| find(one.function, INVALID_FUNCTION)?.launch_on(one.stream, one.arguments))
    })
}

thread_local! {
    /// The configurations of the next launches, the last on top.
    static CONFIGURED: RefCell<Vec<(Dim3, Dim3, usize, Handle)>> = RefCell::default();
    static PENDING_ARGUMENTS: RefCell<Vec<u8>> = RefCell::default();
}

pub(crate) extern "C" fn push_configuration(grid: Dim3, block: Dim3, shared: usize, stream: Handle) -> Code {
    CONFIGURED.with_borrow_mut(|stack| stack.push((grid, block, shared, stream)));
    to_code(Ok(()))
}

pub(crate) extern "C" fn pop_configuration(
    grid: *mut Dim3,
    block: *mut Dim3,
    shared: *mut usize,
    stream: *mut Handle,
) -> Code {
    to_code(CONFIGURED.with_borrow_mut(Vec::pop).ok_or(INVALID_VALUE).and_then(|top| {
        write_out(grid, top.0)
            .and(write_out(block, top.1))
            .and(write_out(shared, top.2))
            .and(write_out(stream, top.3))
    }))
}

pub(crate) extern "C" fn set_up_argument(value: *const u8, size: usize, offset: usize) -> Code {
    PENDING_ARGUMENTS.with_borrow_mut(|bytes| {
        bytes.resize(bytes.len().max(offset + size), 0);
        // SAFETY: the caller guarantees `size` bytes.
        bytes[offset..offset + size].copy_from_slice(unsafe { std::slice::from_raw_parts(value, size) });
    });
    to_code(Ok(()))
}

/// Arguments of eight bytes each.
pub(crate) extern "C" fn launch_by_pointer(f: *const c_void) -> Code {
    to_code(CONFIGURED.with_borrow_mut(Vec::pop).ok_or(INVALID_VALUE).and_then(|top| {
        let mut bytes = PENDING_ARGUMENTS.take();
        let mut arguments: Vec<_> =
            bytes.chunks_mut(8).map(|chunk| chunk.as_mut_ptr().cast::<c_void>()).collect();
        find(f, INVALID_FUNCTION)?.launch_on(top.3, arguments.as_mut_ptr())
    }))
}

pub(crate) extern "C" fn register_binary(_data: *const c_void) -> *mut *mut c_void {
    Box::into_raw(Box::new(std::ptr::null_mut()))
}

pub(crate) extern "C" fn unregister_binary(modules: *mut *mut c_void) {
    if !modules.is_null() {
        // SAFETY: created by `register_binary`, and used for the last time.
        drop(unsafe { Box::from_raw(modules) });
    }
}

/// `hipKernelNameRef` and `hipKernelNameRefByPtr`. The map keeps the kernel, and so its name.
pub(crate) extern "C" fn name_of(function: *const c_void) -> *const c_char {
    find(function, NOT_FOUND).map_or(std::ptr::null(), |kernel| kernel.c_name.as_ptr())
}

pub(crate) extern "C" fn register_function(
    _modules: *mut *mut c_void,
    function: *const c_void,
    name: *const c_char,
) {
    let kernel = Arc::new(Kernel::named(name));
    kernels().write().unwrap_or_else(PoisonError::into_inner).insert(function.addr(), kernel);
}

pub(crate) extern "C" fn register_nothing() {}

pub(crate) extern "C" fn load_module(module: *mut *mut c_void, _image: *const c_void) -> Code {
    to_code(current().and_then(|_| write_out(module, Box::into_raw(Box::new(0_u64)).cast())))
}

pub(crate) extern "C" fn unload_module(_module: *mut c_void) -> Code {
    to_code(Ok(()))
}

/// Every module has every kernel.
pub(crate) extern "C" fn get_function(
    out: *mut *const c_void,
    module: *mut c_void,
    name: *const c_char,
) -> Code {
    if module.is_null() || name.is_null() {
        return to_code(Err(NOT_FOUND));
    }
    let kernel = Arc::new(Kernel::named(name));
    let handle = Arc::as_ptr(&kernel).cast::<c_void>();
    kernels().write().unwrap_or_else(PoisonError::into_inner).insert(handle.addr(), kernel);
    to_code(write_out(out, handle))
}
