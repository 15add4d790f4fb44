//! Executables: loaded code objects, their kernels and variables.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use crate::agents;
use crate::builtin_kernels;
use crate::code_object::{Argument, CodeObject, CodeObjectError, Kernel, ValueKind};
use crate::pools::{self, COARSE_GRAINED};
use crate::runtime;
use crate::status::{
    FROZEN_EXECUTABLE, INVALID_ARGUMENT, INVALID_CODE_OBJECT, INVALID_CODE_OBJECT_READER, INVALID_EXECUTABLE,
    INVALID_EXECUTABLE_SYMBOL, INVALID_SYMBOL_NAME, OUT_OF_RESOURCES, SUCCESS, Status,
    VARIABLE_ALREADY_DEFINED, VARIABLE_UNDEFINED, to_status, write_out,
};

/// The kernels of all executables, by the address of their descriptor.
static KERNELS: RwLock<Option<HashMap<u64, Arc<Kernel>>>> = RwLock::new(None);

/// The kernel whose descriptor is at an address.
pub(crate) fn kernel_at(address: u64) -> Option<Arc<Kernel>> {
    KERNELS.read().unwrap_or_else(PoisonError::into_inner).as_ref()?.get(&address).cloned()
}

/// The kernel of programs that have no code: it runs for as many nanoseconds as its only argument states.
pub(crate) fn test_kernel() -> Arc<Kernel> {
    static KERNEL: OnceLock<Arc<Kernel>> = OnceLock::new();
    let argument = Argument { offset: 0, size: 8, kind: ValueKind::ByValue };
    Arc::clone(KERNEL.get_or_init(|| {
        Arc::new(Kernel {
            name: "spin".to_owned(),
            symbol: "spin.kd".to_owned(),
            kernarg_segment_size: 8,
            kernarg_segment_align: 8,
            group_segment_size: 0,
            private_segment_size: 0,
            uses_dynamic_stack: false,
            arguments: vec![argument],
        })
    }))
}

/// Whether a kernel may run until a word in memory changes.
pub(crate) fn may_wait(kernel: &Kernel) -> bool {
    let builtin = ["__amd_rocclr_streamOpsWait", "__amd_rocclr_batchMemOp"];
    builtin.iter().any(|name| kernel.name.starts_with(name)) || builtin_kernels::is_collective(kernel)
}

/// A symbol of an executable.
struct Symbol {
    name: String,
    agent: u64,
    address: u64,
    size: u64,
    /// None for a variable.
    kernel: Option<Arc<Kernel>>,
}

#[derive(Default)]
struct Executable {
    is_frozen: bool,
    symbols: Vec<Arc<Symbol>>,
    /// Variables that the program defines.
    defined: HashMap<(u64, String), u64>,
    /// The addresses of the loaded images.
    images: Vec<usize>,
}

#[derive(Default)]
struct Registry {
    executables: HashMap<u64, Executable>,
    symbols: HashMap<u64, Arc<Symbol>>,
    /// The code of readers: address and size of the program's memory, or the contents of a file.
    readers: HashMap<u64, Reader>,
}

#[derive(Clone)]
enum Reader {
    Memory(usize, usize),
    File(Arc<Vec<u8>>),
}

static REGISTRY: Mutex<Option<Registry>> = Mutex::new(None);
static LAST_HANDLE: AtomicU64 = AtomicU64::new(0);

fn new_handle() -> u64 {
    LAST_HANDLE.fetch_add(1, Ordering::Relaxed) + 1
}

fn with<T>(operation: impl FnOnce(&mut Registry) -> Result<T, Status>) -> Result<T, Status> {
    let mut guard: MutexGuard<'_, Option<Registry>> = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    operation(guard.get_or_insert_default())
}

/// `hsa_code_object_reader_create_from_memory`.
pub(crate) extern "C" fn create_reader(code: *const c_void, size: usize, out: *mut u64) -> Status {
    if code.is_null() || size == 0 || out.is_null() {
        return INVALID_ARGUMENT;
    }
    add_reader(Reader::Memory(code.expose_provenance(), size), out)
}

/// `hsa_code_object_reader_create_from_file`.
pub(crate) extern "C" fn create_reader_from_file(fd: i32, out: *mut u64) -> Status {
    match std::fs::read(format!("/proc/self/fd/{fd}")) {
        Ok(bytes) => add_reader(Reader::File(Arc::new(bytes)), out),
        Err(_) => crate::status::INVALID_ARGUMENT,
    }
}

fn add_reader(reader: Reader, out: *mut u64) -> Status {
    let handle = new_handle();
    to_status(with(|registry| {
        registry.readers.insert(handle, reader);
        write_out(out, handle)
    }))
}

/// `hsa_code_object_reader_destroy`.
pub(crate) extern "C" fn destroy_reader(handle: u64) -> Status {
    to_status(with(|registry| registry.readers.remove(&handle).map(drop).ok_or(INVALID_CODE_OBJECT_READER)))
}

/// `hsa_executable_create`.
pub(crate) extern "C" fn create_old(
    profile: u32,
    _state: u32,
    options: *const c_char,
    out: *mut u64,
) -> Status {
    create(profile, 0, options, out)
}

/// `hsa_executable_create_alt`.
pub(crate) extern "C" fn create(
    _profile: u32,
    _rounding: u32,
    _options: *const c_char,
    out: *mut u64,
) -> Status {
    let handle = new_handle();
    to_status(runtime::require_running().and_then(|()| {
        with(|registry| {
            registry.executables.insert(handle, Executable::default());
            write_out(out, handle)
        })
    }))
}

/// `hsa_executable_destroy`.
pub(crate) extern "C" fn destroy(handle: u64) -> Status {
    let removed = with(|registry| {
        let removed = registry.executables.remove(&handle).ok_or(INVALID_EXECUTABLE)?;
        registry.symbols.retain(|_, symbol| !removed.symbols.iter().any(|other| Arc::ptr_eq(symbol, other)));
        Ok(removed)
    });
    to_status(removed.map(|removed| {
        let mut kernels = KERNELS.write().unwrap_or_else(PoisonError::into_inner);
        for symbol in removed.symbols.iter().filter(|symbol| symbol.kernel.is_some()) {
            kernels.get_or_insert_default().remove(&symbol.address);
        }
        drop(kernels);
        if runtime::require_running().is_ok() {
            for image in &removed.images {
                let _ = crate::memory::free_at(*image);
            }
        }
    }))
}

/// `hsa_executable_freeze`.
pub(crate) extern "C" fn freeze(handle: u64, _options: *const c_char) -> Status {
    to_status(with(|registry| {
        let executable = registry.executables.get_mut(&handle).ok_or(INVALID_EXECUTABLE)?;
        if std::mem::replace(&mut executable.is_frozen, true) { Err(FROZEN_EXECUTABLE) } else { Ok(()) }
    }))
}

/// `hsa_executable_validate`.
pub(crate) extern "C" fn validate(handle: u64, out: *mut u32) -> Status {
    to_status(with(|registry| {
        registry.executables.get(&handle).ok_or(INVALID_EXECUTABLE)?;
        write_out(out, 0)
    }))
}

fn text<'a>(name: *const c_char) -> Result<&'a str, Status> {
    if name.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: the caller passes a C string.
    unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| INVALID_ARGUMENT)
}

/// `hsa_executable_agent_global_variable_define`.
pub(crate) extern "C" fn define_variable(
    handle: u64,
    agent: u64,
    name: *const c_char,
    address: *mut c_void,
) -> Status {
    to_status(text(name).and_then(|name| {
        agents::find(agent)?;
        with(|registry| {
            let executable = registry.executables.get_mut(&handle).ok_or(INVALID_EXECUTABLE)?;
            if executable.is_frozen {
                return Err(FROZEN_EXECUTABLE);
            }
            let known =
                executable.defined.insert((agent, name.to_owned()), address.expose_provenance() as u64);
            if known.is_some() { Err(VARIABLE_ALREADY_DEFINED) } else { Ok(()) }
        })
    }))
}

/// `hsa_executable_load_agent_code_object`.
pub(crate) extern "C" fn load(
    handle: u64,
    agent: u64,
    reader: u64,
    _options: *const c_char,
    out: *mut u64,
) -> Status {
    to_status(
        try_load(handle, agent, reader)
            .and_then(|()| if out.is_null() { Ok(()) } else { write_out(out, new_handle()) }),
    )
}

fn try_load(handle: u64, agent: u64, reader: u64) -> Result<(), Status> {
    runtime::require_running()?;
    let device_agent = agents::find(agent)?;
    if device_agent.device().is_none() {
        return Err(crate::status::INVALID_AGENT);
    }
    let (reader, defined) = with(|registry| {
        let executable = registry.executables.get(&handle).ok_or(INVALID_EXECUTABLE)?;
        if executable.is_frozen {
            return Err(FROZEN_EXECUTABLE);
        }
        let reader = registry.readers.get(&reader).cloned().ok_or(INVALID_CODE_OBJECT_READER)?;
        Ok((reader, executable.defined.clone()))
    })?;
    let bytes: &[u8] = match &reader {
        // SAFETY: the program keeps the code until it has destroyed the reader.
        Reader::Memory(address, size) => unsafe {
            std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(*address), *size)
        },
        Reader::File(bytes) => bytes,
    };
    let code = CodeObject::parse(bytes).map_err(|_| INVALID_CODE_OBJECT)?;
    let pool = device_pool(agent).ok_or(OUT_OF_RESOURCES)?;
    let size = code.image_size().max(1);
    let image = crate::memory::allocate_in(&pool, size)?;
    // SAFETY: just allocated, with at least this size; not shared yet.
    let memory =
        unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<u8>(image), size) };
    let external = |name: &str| defined.get(&(agent, name.to_owned())).copied();
    if let Err(error) = code.write_image(memory, image as u64, &external) {
        let _ = crate::memory::free_at(image);
        return Err(match error {
            CodeObjectError::UndefinedSymbol => VARIABLE_UNDEFINED,
            _ => INVALID_CODE_OBJECT,
        });
    }
    let mut symbols = Vec::new();
    let mut kernels = KERNELS.write().unwrap_or_else(PoisonError::into_inner);
    for (kernel, offset) in code.kernels() {
        let kernel = Arc::new(kernel.clone());
        let address = image as u64 + offset;
        kernels.get_or_insert_default().insert(address, Arc::clone(&kernel));
        symbols.push(Symbol { name: kernel.symbol.clone(), agent, address, size: 64, kernel: Some(kernel) });
    }
    drop(kernels);
    for variable in code.variables() {
        let address = image as u64 + variable.address;
        symbols.push(Symbol { name: variable.name, agent, address, size: variable.size, kernel: None });
    }
    with(|registry| {
        let executable = registry.executables.get_mut(&handle).ok_or(INVALID_EXECUTABLE)?;
        executable.images.push(image);
        executable.symbols.extend(symbols.into_iter().map(Arc::new));
        Ok(())
    })
}

/// The pool of ordinary device memory.
fn device_pool(agent: u64) -> Option<pools::Pool> {
    let index = agents::agents().iter().position(|known| known.handle() == agent)?;
    pools::pools_of(index).find(|pool| pool.flags == COARSE_GRAINED)
}

fn symbol_handle(registry: &mut Registry, symbol: &Arc<Symbol>) -> u64 {
    let handle = Arc::as_ptr(symbol).expose_provenance() as u64;
    registry.symbols.insert(handle, Arc::clone(symbol));
    handle
}

/// `hsa_executable_get_symbol`.
pub(crate) extern "C" fn get_symbol_old(
    handle: u64,
    _module: *const c_char,
    name: *const c_char,
    agent: u64,
    _convention: i32,
    out: *mut u64,
) -> Status {
    get_symbol(handle, name, &raw const agent, out)
}

/// `hsa_executable_get_symbol_by_name`.
pub(crate) extern "C" fn get_symbol(
    handle: u64,
    name: *const c_char,
    agent: *const u64,
    out: *mut u64,
) -> Status {
    to_status(text(name).and_then(|name| {
        // SAFETY: null, or the caller's agent.
        let agent = unsafe { agent.as_ref() }.copied();
        with(|registry| {
            let executable = registry.executables.get(&handle).ok_or(INVALID_EXECUTABLE)?;
            let is_wanted = |symbol: &&Arc<Symbol>| {
                symbol.name == name && agent.is_none_or(|agent| agent == symbol.agent)
            };
            let symbol = executable.symbols.iter().find(is_wanted).cloned().ok_or(INVALID_SYMBOL_NAME)?;
            write_out(out, symbol_handle(registry, &symbol))
        })
    }))
}

type Visit = extern "C" fn(u64, u64, *mut c_void) -> Status;
type VisitOfAgent = extern "C" fn(u64, u64, u64, *mut c_void) -> Status;

fn symbols_of(handle: u64) -> Result<Vec<(u64, u64)>, Status> {
    with(|registry| {
        let symbols = registry.executables.get(&handle).ok_or(INVALID_EXECUTABLE)?.symbols.clone();
        Ok(symbols.iter().map(|symbol| (symbol.agent, symbol_handle(registry, symbol))).collect())
    })
}

fn visit_all(statuses: impl Iterator<Item = Status>) -> Status {
    statuses.into_iter().find(|status| *status != SUCCESS).unwrap_or(SUCCESS)
}

/// `hsa_executable_iterate_symbols`.
pub(crate) extern "C" fn iterate_symbols(handle: u64, visit: Option<Visit>, data: *mut c_void) -> Status {
    let Some(visit) = visit else { return INVALID_ARGUMENT };
    match symbols_of(handle) {
        Ok(symbols) => visit_all(symbols.into_iter().map(|(_, symbol)| visit(handle, symbol, data))),
        Err(status) => status,
    }
}

/// `hsa_executable_iterate_agent_symbols`.
pub(crate) extern "C" fn iterate_agent_symbols(
    handle: u64,
    agent: u64,
    visit: Option<VisitOfAgent>,
    data: *mut c_void,
) -> Status {
    let Some(visit) = visit else { return INVALID_ARGUMENT };
    match symbols_of(handle) {
        Ok(symbols) => {
            let own = symbols.into_iter().filter(|(owner, _)| *owner == agent);
            visit_all(own.map(|(_, symbol)| visit(handle, agent, symbol, data)))
        }
        Err(status) => status,
    }
}

/// `hsa_executable_symbol_get_info`.
pub(crate) extern "C" fn symbol_info(handle: u64, attribute: u32, out: *mut c_void) -> Status {
    let found = with(|registry| registry.symbols.get(&handle).cloned().ok_or(INVALID_EXECUTABLE_SYMBOL));
    to_status(found.and_then(|symbol| {
        let kernel = |value: fn(&Kernel) -> u32| {
            symbol
                .kernel
                .as_ref()
                .map_or(Err(INVALID_ARGUMENT), |kernel| write_out(out.cast(), value(kernel)))
        };
        match attribute {
            // HSA_SYMBOL_KIND_VARIABLE and _KERNEL
            0 => write_out(out.cast(), u32::from(symbol.kernel.is_some())),
            1 => write_out(out.cast(), u32::try_from(symbol.name.len()).unwrap_or(0)),
            2 => {
                for (index, byte) in symbol.name.bytes().enumerate() {
                    // SAFETY: the caller asked for the length before, and has room for it.
                    unsafe { out.cast::<u8>().add(index).write(byte) };
                }
                Ok(())
            }
            3 => write_out(out.cast(), 0_u32),
            4 => Ok(()),
            // Program linkage; allocated for the agent; in the global segment; not constant.
            5 => write_out(out.cast(), 1_u32),
            6 | 7 => write_out(out.cast(), 0_u32),
            8 => write_out(out.cast(), 16_u32),
            9 => write_out(out.cast(), u32::try_from(symbol.size).unwrap_or(u32::MAX)),
            10 => write_out(out.cast(), false),
            11 => kernel(|kernel| kernel.kernarg_segment_size),
            12 => kernel(|kernel| kernel.kernarg_segment_align.max(16)),
            13 => kernel(|kernel| kernel.group_segment_size),
            14 => kernel(|kernel| kernel.private_segment_size),
            15 => {
                let kernel = symbol.kernel.as_ref().ok_or(INVALID_ARGUMENT)?;
                write_out(out.cast(), kernel.uses_dynamic_stack)
            }
            17 => write_out(out.cast(), true),
            18 => write_out(out.cast(), 0_u32),
            20 => write_out(out.cast(), symbol.agent),
            21 if symbol.kernel.is_none() => write_out(out.cast(), symbol.address),
            22 if symbol.kernel.is_some() => write_out(out.cast(), symbol.address),
            _ => Err(INVALID_ARGUMENT),
        }
    }))
}
