//! `libhsa-runtime64.so.1` for the tests, as far as a program without HIP needs it: agents, signals, and AQL queues.
//!
//! As in AMD's runtime (`ROCr`), every exported function goes through a table, which is passed to tools when the runtime is
//! initialized: first to those in `HSA_TOOLS_LIB`, then to the libraries of the process that export
//! `HSA_AMD_TOOL_PRIORITY`, lowest first. With `HSA_STANDIN_OLD=1` the latter are not searched for, as in version 5.2. With
//! `HSA_STANDIN_REGISTER=1` the table is passed on as `rocprofiler-register` does; if that finds a tool, no other is loaded.
//!
//! A kernel takes as many nanoseconds as its first argument states. `HSA_STANDIN_SIZE` sets the table size that is
//! reported.

mod packets;
mod signals;
mod tools;

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use crate::device::{Device, devices};
use packets::Queue;

pub(crate) type Status = u32;
const SUCCESS: Status = 0;
const INVALID_ARGUMENT: Status = 0x1001;
const OUT_OF_RESOURCES: Status = 0x1008;
const NOT_INITIALIZED: Status = 0x100b;

/// The slots of the core table, and the size of a table's version in bytes.
const SLOTS: usize = 125;
const VERSION_BYTES: usize = 16;

/// The core table: its version, then the functions.
#[repr(C)]
struct Core {
    version: [AtomicU32; 4],
    functions: [AtomicPtr<c_void>; SLOTS],
}

/// The list of all tables, of which only the core table exists.
#[repr(C)]
struct Tables {
    version: [u32; 4],
    core: *const Core,
    others: [*const c_void; 3],
}

extern "C" fn not_implemented() -> Status {
    INVALID_ARGUMENT
}

/// Defines the exports, which go through the table, and fills the table.
macro_rules! functions {
    ( $( [$slot:literal] fn $name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)? = $function:path; )* ) => {
        $(
            #[unsafe(no_mangle)]
            pub(crate) extern "C" fn $name($($argument: $kind),*) $(-> $result)? {
                let function = core().functions[$slot].load(Ordering::Acquire);
                // SAFETY: a tool that replaces an entry stores a function of the same type.
                let function = unsafe {
                    std::mem::transmute::<*mut c_void, extern "C" fn($($kind),*) $(-> $result)?>(function)
                };
                function($($argument),*)
            }
        )*

        fn fill(functions: &[AtomicPtr<c_void>; SLOTS]) {
            $(
                let function: extern "C" fn($($kind),*) $(-> $result)? = $function;
                functions[$slot].store(function as *mut c_void, Ordering::Release);
            )*
        }
    };
}

type Visit = extern "C" fn(u64, *mut c_void) -> Status;

functions! {
    [0] fn hsa_init() -> Status = init;
    [1] fn hsa_shut_down() -> Status = shut_down;
    [5] fn hsa_iterate_agents(visit: Visit, data: *mut c_void) -> Status = iterate_agents;
    [6] fn hsa_agent_get_info(agent: u64, what: u32, out: *mut u32) -> Status = agent_info;
    [7] fn hsa_queue_create(agent: u64, size: u32, kind: u32, callback: *mut c_void, data: *mut c_void, private: u32, group: u32, out: *mut *mut Queue) -> Status = packets::create;
    [9] fn hsa_queue_destroy(queue: *mut Queue) -> Status = packets::destroy;
    [11] fn hsa_queue_load_read_index_scacquire(queue: *mut Queue) -> u64 = packets::read_index;
    [14] fn hsa_queue_load_write_index_relaxed(queue: *mut Queue) -> u64 = packets::write_index;
    [16] fn hsa_queue_store_write_index_screlease(queue: *mut Queue, value: u64) = packets::store_write_index;
    [17] fn hsa_queue_cas_write_index_scacq_screl(queue: *mut Queue, expected: u64, value: u64) -> u64 = packets::compare_exchange_write_index;
    [23] fn hsa_queue_add_write_index_relaxed(queue: *mut Queue, value: u64) -> u64 = packets::add_write_index;
    [37] fn hsa_signal_create(value: i64, count: u32, users: *const u64, out: *mut u64) -> Status = signals::create;
    [38] fn hsa_signal_destroy(signal: u64) -> Status = signals::destroy;
    [39] fn hsa_signal_load_relaxed(signal: u64) -> i64 = signals::load;
    [40] fn hsa_signal_load_scacquire(signal: u64) -> i64 = signals::load;
    [41] fn hsa_signal_store_relaxed(signal: u64, value: i64) = signals::store;
    [42] fn hsa_signal_store_screlease(signal: u64, value: i64) = signals::store;
    [44] fn hsa_signal_wait_scacquire(signal: u64, condition: u32, value: i64, timeout: u64, state: u32) -> i64 = signals::wait;
}

/// The core table. It is filled on first use.
fn core() -> &'static Core {
    static CORE: Core = Core {
        version: [const { AtomicU32::new(2) }; 4],
        functions: [const { AtomicPtr::new(not_implemented as *mut c_void) }; SLOTS],
    };
    static FILLED: std::sync::Once = std::sync::Once::new();
    FILLED.call_once(|| fill(&CORE.functions));
    &CORE
}

static USERS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn init() -> Status {
    if devices().is_empty() {
        return OUT_OF_RESOURCES;
    }
    if USERS.fetch_add(1, Ordering::AcqRel) == 0 {
        tools::load();
    }
    SUCCESS
}

extern "C" fn shut_down() -> Status {
    let last = USERS.fetch_update(Ordering::AcqRel, Ordering::Acquire, |users| users.checked_sub(1));
    match last {
        Err(_) => return NOT_INITIALIZED,
        Ok(1) => tools::unload(),
        Ok(_) => {}
    }
    SUCCESS
}

/// A device by the handle of its agent, which is the device's number plus one.
fn device(agent: u64) -> Result<&'static Device, Status> {
    let number = usize::try_from(agent).ok().and_then(|agent| agent.checked_sub(1));
    number.and_then(|number| devices().get(number)).ok_or(INVALID_ARGUMENT)
}

extern "C" fn iterate_agents(visit: Visit, data: *mut c_void) -> Status {
    (1..=devices().len() as u64)
        .map(|agent| visit(agent, data))
        .find(|status| *status != SUCCESS)
        .unwrap_or(SUCCESS)
}

extern "C" fn agent_info(agent: u64, what: u32, out: *mut u32) -> Status {
    // HSA_AGENT_INFO_DEVICE, HSA_AMD_AGENT_INFO_BDFID, HSA_AMD_AGENT_INFO_DOMAIN.
    let value = device(agent).and_then(|device| match what {
        17 => Ok(1),
        0xa006 => Ok(device.address()),
        0xa00f => Ok(0),
        _ => Err(INVALID_ARGUMENT),
    });
    match value {
        Ok(value) => crate::device::write_out(out, value).map_or(INVALID_ARGUMENT, |()| SUCCESS),
        Err(status) => status,
    }
}

/// The function of this name in a library.
fn look_up(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: a handle of the dynamic loader, and a C string.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}
