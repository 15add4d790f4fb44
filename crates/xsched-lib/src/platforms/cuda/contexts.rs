//! Contexts that end. With them end their streams, and what the device could reach of our memory: neither may be used
//! afterwards, by our own threads least of all.

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use xsched_core::DeviceId;
use xsched_interpose::run_isolated;

use super::board;
use super::hardware::device_numbered;
use super::vendor::{self, Code, Context};
use crate::runtime::{Runtime, existing_runtime};

/// Those in which we have met streams, by their address, and where they are.
fn met() -> MutexGuard<'static, Vec<(usize, DeviceId)>> {
    static MET: Mutex<Vec<(usize, DeviceId)>> = Mutex::new(Vec::new());
    MET.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream of this context is ours from now on.
pub(super) fn meet(context: Context, device: DeviceId) {
    let mut met = met();
    if !met.contains(&(context.addr(), device)) {
        met.push((context.addr(), device));
    }
}

/// Calls `real`, which ends a context.
pub(super) fn destroyed(real: impl FnOnce() -> Code, context: Context) -> Code {
    ending(real, || vec![context.addr()])
}

/// Calls `real`, which ends the context that libraries share on a device. Nothing says which of those on the device that
/// is: streams of the others are met again when something is launched there.
pub(super) fn reset(real: impl FnOnce() -> Code, device: c_int) -> Code {
    ending(real, || on(device))
}

/// The same for one that only does so if nobody else has a hold on the context, which is known when it has been done.
pub(super) fn released(real: impl FnOnce() -> Code, device: c_int) -> Code {
    let code = real();
    if let Some(runtime) = existing_runtime().filter(|_| code == vendor::SUCCESS) {
        run_isolated(|| {
            if !is_there(device) {
                for context in on(device) {
                    end(runtime, context);
                }
            }
        });
    }
    code
}

fn ending(real: impl FnOnce() -> Code, which: impl FnOnce() -> Vec<usize>) -> Code {
    // A child of the program has nothing to end until it has queues of its own.
    let Some(runtime) = existing_runtime() else { return real() };
    let mut contexts = Vec::new();
    run_isolated(|| {
        contexts = which();
        for context in &contexts {
            runtime.retire_all_of(*context);
        }
    });
    let code = real();
    run_isolated(|| {
        for context in contexts {
            end(runtime, context);
        }
    });
    code
}

fn end(runtime: &Runtime, context: usize) {
    runtime.retire_all_of(context);
    board::forget(context);
    met().retain(|(known, _)| *known != context);
}

fn on(device: c_int) -> Vec<usize> {
    let Some(device) = device_numbered(device) else { return Vec::new() };
    met().iter().filter(|(_, its)| *its == device).map(|(context, _)| *context).collect()
}

/// Whether the context that libraries share on a device is there.
fn is_there(device: c_int) -> bool {
    let (mut flags, mut active) = (0, 1);
    let Some(ask) = vendor::PRIMARY_STATE.get() else { return true };
    // SAFETY: the places have room for the answers.
    let code = unsafe { ask(device, &raw mut flags, &raw mut active) };
    code != vendor::SUCCESS || active != 0
}
