//! Interception of `ROCr`, the runtime below HIP, through its tools interface. For programs that use it without HIP, or
//! with a HIP that is linked statically: these have neither HIP's table nor its names.
//!
//! `ROCr` passes its API table to tools: to the libraries of the process that export [`HSA_AMD_TOOL_PRIORITY`], and to
//! those that `HSA_TOOLS_LIB` names. Where it registers with `rocprofiler-register`, the same table arrives that way. All
//! exported functions dispatch through the table.
//!
//! ```text
//!   the program writes packets into its queue and rings the queue's doorbell ──► signal store ──► gate ──► real store
//! ```
//! The doorbell is hooked because there the thread is the program's own and holds no lock of the runtime. `ROCr`'s
//! intercept queues are not used: they copy every packet with a lock held, and sometimes run on the thread that serves all
//! signals of the process, which must not block.

#[cfg(test)]
mod conformance;
mod doorbells;
mod queue;
mod table;

use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use xsched_interpose::{OutermostHook, run_isolated};
use xsched_ipc::report::{Severity, report};

use crate::loaded_libraries::{LoadedLibrary, with_file};
use crate::queue_hooks;
use crate::runtime::existing_runtime;
use queue::HsaQueue;
use table::{QueueHandle, Status, Store};

/// Identifies this library as a tool. Tools with a larger priority get the table later. Profilers get it before this
/// library, so that the functions they put there are the real ones to the hooks.
#[unsafe(no_mangle)]
pub(crate) static HSA_AMD_TOOL_PRIORITY: u32 = 100_000;

/// Called by the runtime when it is initialized.
///
/// # Safety
/// `table` is the runtime's list of tables.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn OnLoad(
    table: *mut c_void,
    _version: u64,
    _failed: u64,
    _names: *const *const c_char,
) -> bool {
    // SAFETY: the caller guarantees the runtime's list.
    unsafe { intercept(table) };
    true
}

/// Called by the runtime when it is shut down, which destroys all its queues.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn OnUnload() {
    run_isolated(|| doorbells::remove_all(untrack));
}

/// Installs the hooks in the runtime's table.
///
/// # Safety
/// `table` is null or a runtime's list of tables, which the runtime permits to be changed during this call.
pub(super) unsafe fn intercept(table: *mut c_void) {
    run_isolated(|| {
        if crate::duplicate_library::is_inactive_duplicate() {
            return;
        }
        prevent_unloading();
        // SAFETY: guaranteed by the caller.
        if !unsafe { table::install_hooks(table) } {
            report(
                Severity::Warning,
                format_args!(
                    "a ROCr runtime's table of functions is not as expected, or another runtime's is in use already: \
                     programs that use it without HIP run unscheduled"
                ),
            );
        }
    });
}

/// The runtime closes its tools when it is shut down. This library has threads and must stay loaded. Its own constructors have
/// run: the runtime has opened it, or it was preloaded.
fn prevent_unloading() {
    if let Some(library) = LoadedLibrary::containing(prevent_unloading as *const c_void) {
        library.keep_loaded();
    }
}

/// `hsa_queue_create`.
unsafe extern "C" fn queue_create(
    agent: u64,
    size: u32,
    kind: u32,
    callback: *mut c_void,
    data: *mut c_void,
    private: u32,
    group: u32,
    created: *mut QueueHandle,
) -> Status {
    let Some(real) = table::QUEUE_CREATE.get() else { return table::NOT_INITIALIZED };
    // SAFETY: the caller's own arguments.
    let status = unsafe { real(agent, size, kind, callback, data, private, group, created) };
    if status == table::SUCCESS && !created.is_null() {
        run_isolated(|| {
            if !is_scheduled_otherwise() {
                // SAFETY: the runtime has just stored the queue there.
                doorbells::add(unsafe { *created }, agent);
            }
        });
    }
    status
}

/// Whether the process has AMD's HIP or OpenCL, which are scheduled through their own functions. Then the queues are theirs.
fn is_scheduled_otherwise() -> bool {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    let other = ["libamdhip64.so", "libamdocl64.so"].into_iter().find(|file| with_file(file).is_some());
    if !REPORTED.swap(true, Ordering::Relaxed) {
        match other {
            Some(file) => {
                report(
                    Severity::Info,
                    format_args!("ROCr's queues are left to {file}, which is in this process"),
                );
            }
            None => report(
                Severity::Info,
                format_args!("HSA is scheduled by ROCr's tools interface: there is no HIP in this process"),
            ),
        }
    }
    other.is_some()
}

/// `hsa_queue_destroy`.
unsafe extern "C" fn queue_destroy(queue: QueueHandle) -> Status {
    let Some(real) = table::QUEUE_DESTROY.get() else { return table::NOT_INITIALIZED };
    let mut signal = None;
    run_isolated(|| {
        // SAFETY: the caller passes a queue that exists until the real function has returned.
        let doorbell = (!queue.is_null()).then(|| unsafe { (*queue).doorbell });
        signal = doorbell.and_then(doorbells::remove).and_then(untrack);
    });
    // SAFETY: the caller's own argument.
    let status = unsafe { real(queue) };
    // The device does not decrement the signal after the queue was destroyed.
    if let (Some(signal), Some(destroy)) = (signal, table::SIGNAL_DESTROY.get()) {
        // SAFETY: `HsaQueue::new` created the signal, and its queue no longer uses it.
        unsafe { destroy(signal) };
    }
    status
}

/// Untracks a queue that is about to be destroyed. Returns its marker signal.
fn untrack(doorbell: u64) -> Option<u64> {
    let key = usize::try_from(doorbell).ok()?;
    existing_runtime()?.untrack(key);
    queue::take_marker_signal(doorbell)
}

/// `hsa_signal_store_relaxed`.
unsafe extern "C" fn store_relaxed(signal: u64, value: i64) {
    // SAFETY: the caller's own arguments.
    unsafe { store(&table::STORE_RELAXED, signal, value) };
}

/// `hsa_signal_store_screlease`.
unsafe extern "C" fn store_release(signal: u64, value: i64) {
    // SAFETY: the caller's own arguments.
    unsafe { store(&table::STORE_RELEASE, signal, value) };
}

/// Stores to a signal. If the signal is a doorbell, the packets that it submits pass the gate first.
unsafe fn store(real: &table::Slot<Store>, signal: u64, value: i64) {
    let Some(real) = real.get() else { return };
    // SAFETY: the caller's own arguments.
    let real = || unsafe { real(signal, value) };
    let Some(doorbell) = doorbells::find(signal) else { return real() };
    let ring = || {
        real();
        doorbell.record_ring(value);
    };
    match (OutermostHook::enter(super::DOMAIN), usize::try_from(signal)) {
        (Some(_outermost), Ok(key)) => {
            doorbell.inspect_packets(value);
            queue_hooks::launch_and_track(ring, key, || HsaQueue::new(doorbell));
        }
        _ => ring(),
    }
}
