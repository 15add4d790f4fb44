//! What ends the deferral of launches, and what forbids it: see [`xsched_core::deferral`].
//!
//! The platforms call [`waits`] around every function of the driver by which a program may wait for the device, or which may itself
//! wait for it. A function that is missing, or that a driver lets wait in a new way, waits for the slack at most.

use std::sync::atomic::{AtomicU32, Ordering};

use xsched_core::{Deferral, NotDeferred};
use xsched_interpose::{forward_once, run_isolated};

use crate::runtime::existing_runtime;

/// Why the launches of this process are not deferred, as far as that was known before its runtime started: the bits of
/// [`NotDeferred`].
static REASONS: AtomicU32 = AtomicU32::new(0);

/// Calls `real`, which may wait for the device, or by which the program waits. No launch is held meanwhile.
#[inline]
pub(crate) fn waits<R>(real: impl FnOnce() -> R) -> R {
    let Some(runtime) = existing_runtime() else { return real() };
    forward_once(real, |call| {
        let _waiting = runtime.client().deferral().begin_wait();
        call();
    })
}

/// Calls `real`, after which another program or a CPU may see the progress of the program's work without waiting for it.
pub(crate) fn exposes<R>(real: impl FnOnce() -> R, reason: NotDeferred) -> R {
    run_isolated(|| forbid(reason));
    waits(real)
}

/// From now on no launch of the process is deferred.
pub(crate) fn forbid(reason: NotDeferred) {
    // A runtime that starts meanwhile either reads the reason, or is found here. SeqCst on both sides.
    REASONS.fetch_or(reason.bit(), Ordering::SeqCst);
    if let Some(runtime) = existing_runtime() {
        runtime.client().deferral().forbid(reason);
    }
}

/// The reasons so far. Afterwards there are none.
#[cfg(test)]
pub(crate) fn take_reasons() -> u32 {
    REASONS.swap(0, Ordering::SeqCst)
}

/// Forbids what was forbidden before the runtime started. Call this after the runtime can be found.
pub(crate) fn apply(deferral: &Deferral) {
    NotDeferred::in_bits(REASONS.load(Ordering::SeqCst)).for_each(|reason| deferral.forbid(reason));
    if is_traced_by_a_tool(|name| {
        std::env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0")
    }) {
        deferral.forbid(NotDeferred::Tool);
    }
}

/// Whether a tool waits for each launch, or measures when launches run.
fn is_traced_by_a_tool(is_set: impl Fn(&str) -> bool) -> bool {
    /// The driver waits for each launch; a profiler or debugger of NVIDIA's is loaded by the driver.
    const VARIABLES: [&str; 4] =
        ["CUDA_LAUNCH_BLOCKING", "CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID", "HIP_LAUNCH_BLOCKING"];
    VARIABLES.into_iter().any(is_set)
}
