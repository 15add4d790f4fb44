//! Destruction of contexts. A context's streams end with it, and so does the device's access to its stop words: after the
//! driver has destroyed a context, no thread of this library may use either.

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use xsched_core::DeviceId;
use xsched_interpose::run_isolated;

use super::memory::{self, swap};
use super::stop_words;
use super::stream::device_with_ordinal;
use super::vendor::{self, Code, Context};
use crate::runtime::{Runtime, existing_runtime};

/// The contexts that have scheduled streams or memory that can be moved, by address, each with its GPU.
fn contexts() -> MutexGuard<'static, Vec<(usize, DeviceId)>> {
    static CONTEXTS: Mutex<Vec<(usize, DeviceId)>> = Mutex::new(Vec::new());
    CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records that a stream of this context is scheduled, or that the context has memory that can be moved.
pub(super) fn record(context: Context, device: DeviceId) {
    let mut contexts = contexts();
    if !contexts.contains(&(context.addr(), device)) {
        contexts.push((context.addr(), device));
    }
}

/// All of them, by address.
pub(super) fn all() -> Vec<usize> {
    contexts().iter().map(|(context, _)| *context).collect()
}

/// Calls `real`, which destroys a context.
pub(super) fn destroy(real: impl FnOnce() -> Code, context: Context) -> Code {
    swap::held(|| {
        memory::free_with_context(context.addr(), || around_destruction(real, || vec![context.addr()]))
    })
}

/// Calls `real`, which resets the primary context of a device. The driver does not report which context is the primary one,
/// so the streams of all contexts of the device are untracked. Those of the other contexts are tracked again at their next
/// launch.
pub(super) fn reset_primary(real: impl FnOnce() -> Code, device: c_int) -> Code {
    let primary = memory::primary_context(device);
    swap::held(|| memory::free_with_context(primary, || around_destruction(real, || contexts_on(device))))
}

/// Calls `real`, which releases the primary context of a device. Only the last release destroys the context, and whether it
/// was the last is known only afterwards.
pub(super) fn release_primary(real: impl FnOnce() -> Code, device: c_int) -> Code {
    let primary = memory::primary_context(device);
    let code = swap::held(real);
    run_isolated(|| {
        if code == vendor::SUCCESS && !is_primary_active(device) {
            memory::freed_with_context(primary);
            if let Some(runtime) = existing_runtime() {
                for context in contexts_on(device) {
                    forget(runtime, context);
                }
            }
        }
    });
    code
}

fn around_destruction(real: impl FnOnce() -> Code, destroyed: impl FnOnce() -> Vec<usize>) -> Code {
    // A child after fork has no streams before it creates its own.
    let Some(runtime) = existing_runtime() else { return real() };
    let mut contexts = Vec::new();
    run_isolated(|| {
        contexts = destroyed();
        for context in &contexts {
            runtime.untrack_all_owned_by(*context);
        }
    });
    let code = real();
    run_isolated(|| {
        for context in contexts {
            forget(runtime, context);
        }
    });
    code
}

fn forget(runtime: &Runtime, context: usize) {
    runtime.untrack_all_owned_by(context);
    stop_words::forget_context(context);
    contexts().retain(|(known, _)| *known != context);
}

fn contexts_on(device: c_int) -> Vec<usize> {
    let Some(device) = device_with_ordinal(device) else { return Vec::new() };
    contexts().iter().filter(|(_, on)| *on == device).map(|(context, _)| *context).collect()
}

/// Whether the primary context of a device exists. Also true if the driver does not report it.
pub(super) fn is_primary_active(device: c_int) -> bool {
    let (mut flags, mut active) = (0, 1);
    let Some(primary_state) = vendor::PRIMARY_STATE.get() else { return true };
    // SAFETY: `flags` and `active` have room for the results.
    let code = unsafe { primary_state(device, &raw mut flags, &raw mut active) };
    code != vendor::SUCCESS || active != 0
}
