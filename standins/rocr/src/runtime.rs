//! Start and end of the runtime, events that concern the whole process, and children after fork.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use crate::status::{INVALID_ARGUMENT, NOT_INITIALIZED, OUT_OF_RESOURCES, SUCCESS, Status};
use crate::{agents, async_handlers, copies, devices, driver, queues, table, tools};

static USERS: AtomicUsize = AtomicUsize::new(0);
static IS_FORKED_CHILD: AtomicBool = AtomicBool::new(false);
static STATE_CHANGE: Mutex<()> = Mutex::new(());

/// Whether this process is a child, after fork, of the process that initialized the runtime. It has neither its threads nor
/// its device memory; as with AMD's runtime, no device works in it.
pub(crate) fn is_forked_child() -> bool {
    IS_FORKED_CHILD.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    if USERS.load(Ordering::Relaxed) > 0 {
        IS_FORKED_CHILD.store(true, Ordering::Relaxed);
    }
}

/// `hsa_init`.
pub(crate) extern "C" fn init() -> Status {
    static WATCH_FORKS: Once = Once::new();
    WATCH_FORKS.call_once(|| {
        // SAFETY: the handler only stores to an atomic variable.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    if is_forked_child() {
        return OUT_OF_RESOURCES;
    }
    let _changing = STATE_CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
    if USERS.load(Ordering::Acquire) == 0 {
        if driver::open().is_err() || devices::open_all().is_err() {
            return OUT_OF_RESOURCES;
        }
        agents::create();
    }
    if USERS.fetch_add(1, Ordering::AcqRel) == 0 {
        tools::load();
    }
    SUCCESS
}

/// `hsa_shut_down`. The last user's call stops every thread of the runtime.
pub(crate) extern "C" fn shut_down() -> Status {
    if is_forked_child() {
        return SUCCESS;
    }
    let _changing = STATE_CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
    match USERS.load(Ordering::Acquire) {
        0 => return NOT_INITIALIZED,
        1 => {
            tools::unload();
            table::fill();
            // First: the program has freed what handlers use.
            async_handlers::stop();
            queues::destroy_all();
            copies::stop();
            EVENT_HANDLERS.lock().unwrap_or_else(PoisonError::into_inner).clear();
            USERS.store(0, Ordering::Release);
        }
        users => USERS.store(users - 1, Ordering::Release),
    }
    SUCCESS
}

/// Fails unless the runtime is initialized and this process has its threads.
pub(crate) fn require_running() -> Result<(), Status> {
    if USERS.load(Ordering::Acquire) == 0 {
        return Err(NOT_INITIALIZED);
    }
    if is_forked_child() { Err(OUT_OF_RESOURCES) } else { Ok(()) }
}

/// `hsa_amd_event_t` of a memory fault.
#[repr(C)]
pub(crate) struct MemoryFault {
    kind: u32,
    agent: u64,
    address: u64,
    reasons: u32,
}

/// `HSA_AMD_MEMORY_FAULT_PAGE_NOT_PRESENT`.
const PAGE_NOT_PRESENT: u32 = 1;

type EventHandler = extern "C" fn(*const MemoryFault, *mut c_void) -> Status;

/// The handlers and the addresses that they are called with.
static EVENT_HANDLERS: Mutex<Vec<(EventHandler, usize)>> = Mutex::new(Vec::new());

/// `hsa_amd_register_system_event_handler`.
pub(crate) extern "C" fn register_event_handler(handler: Option<EventHandler>, data: *mut c_void) -> Status {
    let Some(handler) = handler else { return INVALID_ARGUMENT };
    let mut handlers = EVENT_HANDLERS.lock().unwrap_or_else(PoisonError::into_inner);
    handlers.push((handler, data.expose_provenance()));
    SUCCESS
}

/// Reports that a device accessed memory that does not exist. Without a handler the process ends, as with AMD's runtime.
pub(crate) fn report_memory_fault(agent: u64, node: u32, address: usize) {
    let handlers = EVENT_HANDLERS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let fault = MemoryFault { kind: 0, agent, address: address as u64, reasons: PAGE_NOT_PRESENT };
    let handled = handlers.iter().any(|(handler, data)| {
        handler(&raw const fault, std::ptr::with_exposed_provenance_mut(*data)) == SUCCESS
    });
    if !handled {
        eprintln!(
            "Memory access fault by GPU node-{node} on address {address:#x}. Reason: Page not present or supervisor privilege."
        );
        std::process::abort();
    }
}
