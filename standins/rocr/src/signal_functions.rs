//! The functions on signals.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use crate::ledger;
use crate::signals::{self, Signal, WaitMode, is_satisfied, notify, signal};
use crate::status::{INVALID_ARGUMENT, INVALID_SIGNAL, Status, read_array, to_status, write_out};

/// `HSA_AMD_SIGNAL_IPC`.
const SHARED: u64 = 2;

/// `hsa_signal_create`.
pub(crate) extern "C" fn create(value: i64, count: u32, users: *const u64, out: *mut u64) -> Status {
    create_with_attributes(value, count, users, 0, out)
}

/// `hsa_amd_signal_create`.
pub(crate) extern "C" fn create_with_attributes(
    value: i64,
    count: u32,
    users: *const u64,
    attributes: u64,
    out: *mut u64,
) -> Status {
    if out.is_null() || (count > 0 && users.is_null()) {
        return INVALID_ARGUMENT;
    }
    let created =
        if attributes & SHARED == 0 { Ok(signals::create(value)) } else { crate::ipc::shared_signal(value) };
    to_status(created.and_then(|signal| write_out(out, signal)))
}

/// `hsa_signal_destroy`.
pub(crate) extern "C" fn destroy(handle: u64) -> Status {
    if handle == 0 {
        return INVALID_ARGUMENT;
    }
    to_status(signals::destroy(handle))
}

/// `hsa_signal_load_*`.
pub(crate) extern "C" fn load(handle: u64) -> i64 {
    signal(handle).map_or(0, |signal| match signal.queue() {
        Some(_) => signal.doorbell().load(Ordering::Acquire),
        None => signal.load(),
    })
}

/// `hsa_signal_store_*`.
pub(crate) extern "C" fn store(handle: u64, value: i64) {
    let Some(signal) = signal(handle) else { return };
    if let Some(queue) = signal.queue() {
        queue.ring(value);
        return;
    }
    change(handle, signal, |word| word.store(value, Ordering::Release));
}

/// `hsa_signal_silent_store_*`: does not wake waiting threads.
pub(crate) extern "C" fn silent_store(handle: u64, value: i64) {
    let Some(signal) = signal(handle) else { return };
    if let Some(queue) = signal.queue() {
        queue.ring(value);
        return;
    }
    note_host_store(handle);
    signal.value().store(value, Ordering::Release);
}

fn note_host_store(handle: u64) {
    if let Some(ledger) = ledger::ledger() {
        ledger.host_stored(handle);
    }
}

fn change<T>(handle: u64, signal: &Signal, operation: impl FnOnce(&AtomicI64) -> T) -> T {
    note_host_store(handle);
    let result = operation(signal.value());
    notify();
    result
}

macro_rules! operations {
    ( $( $name:ident = $operation:ident; )* ) => {
        $(
            /// The functions of this name.
            pub(crate) extern "C" fn $name(handle: u64, value: i64) -> i64 {
                signal(handle).map_or(0, |signal| change(handle, signal, |word| word.$operation(value, Ordering::AcqRel)))
            }
        )*
    };
}

operations! {
    and = fetch_and;
    or = fetch_or;
    xor = fetch_xor;
    add = fetch_add;
    subtract = fetch_sub;
    exchange = swap;
}

/// `hsa_signal_cas_*`.
pub(crate) extern "C" fn compare_exchange(handle: u64, expected: i64, value: i64) -> i64 {
    let Some(signal) = signal(handle) else { return 0 };
    change(handle, signal, |word| {
        word.compare_exchange(expected, value, Ordering::AcqRel, Ordering::Acquire)
            .unwrap_or_else(|found| found)
    })
}

/// `hsa_amd_signal_value_pointer`.
pub(crate) extern "C" fn value_pointer(handle: u64, out: *mut *const i64) -> Status {
    match signal(handle) {
        Some(signal) if signal.queue().is_none() => {
            signals::expect_silent_writers();
            to_status(write_out(out, signal.value().as_ptr().cast_const()))
        }
        _ => INVALID_SIGNAL,
    }
}

fn deadline(timeout_ns: u64) -> Option<Instant> {
    // A timeout of more than a century is none.
    Instant::now().checked_add(Duration::from_nanos(timeout_ns)).filter(|_| timeout_ns < 1 << 61)
}

/// `HSA_WAIT_STATE_ACTIVE` is 1.
fn mode(state: u32) -> WaitMode {
    if state == 1 { WaitMode::Active } else { WaitMode::Blocked }
}

/// `hsa_signal_wait_*`.
pub(crate) extern "C" fn wait(handle: u64, condition: u32, value: i64, timeout: u64, state: u32) -> i64 {
    let Some(signal) = signal(handle) else { return 0 };
    let check = || Some(signal.load()).filter(|now| is_satisfied(*now, condition, value));
    signals::wait_until(deadline(timeout), mode(state), check).unwrap_or_else(|| signal.load())
}

/// `hsa_amd_signal_wait_any`.
pub(crate) extern "C" fn wait_any(
    count: u32,
    handles: *const u64,
    conditions: *const u32,
    values: *const i64,
    timeout: u64,
    state: u32,
    satisfying: *mut i64,
) -> u32 {
    let Ok(waits) = read_waits(count, handles, conditions, values) else { return u32::MAX };
    let check = || {
        waits.iter().zip(0_u32..).find_map(|((handle, condition, value), index)| {
            let now = load(*handle);
            (*handle != 0 && is_satisfied(now, *condition, *value)).then_some((index, now))
        })
    };
    let Some((index, value)) = signals::wait_until(deadline(timeout), mode(state), check) else {
        return u32::MAX;
    };
    if !satisfying.is_null() {
        let _ = write_out(satisfying, value);
    }
    index
}

/// `hsa_amd_signal_wait_all`.
pub(crate) extern "C" fn wait_all(
    count: u32,
    handles: *const u64,
    conditions: *const u32,
    values: *const i64,
    timeout: u64,
    state: u32,
    satisfying: *mut i64,
) -> u32 {
    let Ok(waits) = read_waits(count, handles, conditions, values) else { return u32::MAX };
    let check = || {
        let values = waits.iter().map(|(handle, condition, value)| {
            let now = load(*handle);
            (*handle == 0 || is_satisfied(now, *condition, *value)).then_some(now)
        });
        values.collect::<Option<Vec<_>>>()
    };
    let Some(found) = signals::wait_until(deadline(timeout), mode(state), check) else { return u32::MAX };
    if !satisfying.is_null() {
        for (index, value) in found.into_iter().enumerate() {
            // SAFETY: the caller guarantees room for as many values as signals.
            unsafe { satisfying.add(index).write(value) };
        }
    }
    0
}

fn read_waits(
    count: u32,
    handles: *const u64,
    conditions: *const u32,
    values: *const i64,
) -> Result<Vec<(u64, u32, i64)>, Status> {
    let count = usize::try_from(count).map_err(|_| INVALID_ARGUMENT)?;
    let (handles, conditions) = (read_array(handles, count)?, read_array(conditions, count)?);
    let values = read_array(values, count)?;
    Ok(handles.into_iter().zip(conditions).zip(values).map(|((a, b), c)| (a, b, c)).collect())
}

/// `hsa_amd_profiling_dispatch_time_t`.
#[repr(C)]
pub(crate) struct Times {
    start: u64,
    end: u64,
}

fn times(handle: u64, out: *mut Times) -> Status {
    let Some(signal) = signal(handle) else { return INVALID_SIGNAL };
    let (start, end) = signal.times();
    to_status(write_out(out, Times { start, end }))
}

/// `hsa_amd_profiling_get_dispatch_time`.
pub(crate) extern "C" fn dispatch_time(agent: u64, handle: u64, out: *mut Times) -> Status {
    match crate::agents::find(agent) {
        Ok(agent) if agent.device().is_some() => times(handle, out),
        _ => crate::status::INVALID_AGENT,
    }
}

/// `hsa_amd_profiling_get_async_copy_time`.
pub(crate) extern "C" fn copy_time(handle: u64, out: *mut Times) -> Status {
    times(handle, out)
}

/// `hsa_amd_profiling_convert_tick_to_system_domain`: the device's clock is the system's.
pub(crate) extern "C" fn to_system_time(agent: u64, tick: u64, out: *mut u64) -> Status {
    to_status(crate::agents::find(agent).and_then(|_| write_out(out, tick)))
}
