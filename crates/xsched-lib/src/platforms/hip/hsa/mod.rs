//! The third way: the tools interface of `ROCr`, the runtime below HIP. For programs that use it without HIP, or with a HIP
//! that is linked statically: there is neither a table of HIP's nor a name of HIP's to be found.
//!
//! `ROCr` looks for tools among the libraries of the process ([`HSA_AMD_TOOL_PRIORITY`]) and in `HSA_TOOLS_LIB`, and shows each its
//! table of functions; where it registers itself with `rocprofiler-register`, the same table comes that way. Every
//! exported function goes through it.
//!
//! ```text
//!   a program writes packets into its queue and rings the queue's doorbell ──► signal store ──► gate ──► real store
//! ```
//! We stand in front of the doorbell, where the thread is the program's own and holds no lock of the runtime's. The runtime's
//! own offer, intercept queues, copies every packet, holds a lock meanwhile, and at times goes on in the thread that serves all
//! signals of the process: nobody may wait there.

#[cfg(test)]
mod conformance;
mod doorbells;
mod queue;
mod table;

use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use xsched_interpose::{OutermostHook, run_isolated};
use xsched_ipc::report::{Severity, report};

use crate::queue_hooks;
use crate::runtime::existing_runtime;
use queue::HsaQueue;
use table::{QueueHandle, Status, Store};

/// Shows the runtime that this library is a tool. The larger, the later: profilers come before us, and what they put into the
/// table is real to us.
#[unsafe(no_mangle)]
pub(crate) static HSA_AMD_TOOL_PRIORITY: u32 = 100_000;

/// The runtime begins, and shows us its table.
///
/// # Safety
/// The table is the runtime's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn OnLoad(
    table: *mut c_void,
    _version: u64,
    _failed: u64,
    _names: *const *const c_char,
) -> bool {
    // SAFETY: by the caller's word.
    unsafe { take(table) };
    true
}

/// The runtime ends, and all its queues with it.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn OnUnload() {
    run_isolated(|| doorbells::take_all(retire));
}

/// Puts our functions into the table.
///
/// # Safety
/// The table is null or one of the runtime's, which lets it be changed at this moment.
pub(super) unsafe fn take(table: *mut c_void) {
    run_isolated(|| {
        if crate::duplicate_library::is_inactive_duplicate() {
            return;
        }
        stay();
        // SAFETY: by the caller's word.
        if !unsafe { table::put_hooks(table) } {
            let what =
                "a ROCr runtime's table of functions is not as expected, or another's is known already";
            report(
                Severity::Warning,
                format_args!("{what}: programs that use it without HIP run unscheduled"),
            );
        }
    });
}

/// Who was opened as a tool is closed when the runtime ends. We have threads, and stay.
fn stay() {
    // SAFETY: all zero is a valid value of this plain struct of addresses.
    let mut own: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the place is large enough, and the address is ours.
    if unsafe { libc::dladdr(stay as *const c_void, &raw mut own) } != 0 && !own.dli_fname.is_null() {
        // SAFETY: the C string that the loader keeps for a library that is loaded; nothing new is loaded.
        unsafe { libc::dlopen(own.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) };
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
    place: *mut QueueHandle,
) -> Status {
    let Some(real) = table::QUEUE_CREATE.get() else { return table::NOT_INITIALIZED };
    // SAFETY: the caller's own arguments.
    let status = unsafe { real(agent, size, kind, callback, data, private, group, place) };
    if status == table::SUCCESS && !place.is_null() {
        run_isolated(|| {
            if !is_seen_otherwise() {
                // SAFETY: the runtime has just put a queue there.
                doorbells::learn(unsafe { *place }, agent);
            }
        });
    }
    status
}

/// Whether what uses the runtime is scheduled in another way: AMD's HIP and OpenCL are reached by their own tables and names,
/// and their queues are theirs.
fn is_seen_otherwise() -> bool {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let other = ["libamdhip64.so", "libamdocl64.so"].into_iter().find(|file| crate::loader::is_loaded(file));
    if !TOLD.swap(true, Ordering::Relaxed) {
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
        // SAFETY: the caller vouches for the queue until the real function has returned.
        let doorbell = (!queue.is_null()).then(|| unsafe { (*queue).doorbell });
        signal = doorbell.and_then(doorbells::forget).and_then(retire);
    });
    // SAFETY: the caller's own argument.
    let status = unsafe { real(queue) };
    // Nothing on the device counts it down any more.
    if let (Some(signal), Some(destroy)) = (signal, table::SIGNAL_DESTROY.get()) {
        // SAFETY: made by us, and used for the last time.
        unsafe { destroy(signal) };
    }
    status
}

/// Forgets a queue that is about to be destroyed. Answers with the signal that its markers used.
fn retire(doorbell: u64) -> Option<u64> {
    let key = usize::try_from(doorbell).ok()?;
    existing_runtime()?.untrack(key);
    queue::take_signal(doorbell)
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

/// A signal is stored to. If it is a doorbell, what was written into its queue waits at the gate.
unsafe fn store(real: &table::Slot<Store>, signal: u64, value: i64) {
    let Some(real) = real.get() else { return };
    // SAFETY: the caller's own arguments.
    let real = || unsafe { real(signal, value) };
    let Some(doorbell) = doorbells::find(signal) else { return real() };
    let ring = || {
        real();
        doorbell.rung(value);
    };
    match (OutermostHook::enter(), usize::try_from(signal)) {
        (Some(_outermost), Ok(key)) => {
            doorbell.look_at_packets(value);
            queue_hooks::launch_and_track(ring, key, || HsaQueue::new(doorbell));
        }
        _ => ring(),
    }
}
