//! Signals: values that threads set and the device counts down. A handle is an address. A doorbell signal wakes its queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use super::packets::Shared;
use super::{INVALID_ARGUMENT, SUCCESS, Status};

pub(super) struct Signal {
    value: AtomicI64,
    /// The queue that this signal is the doorbell of.
    queue: Option<Arc<Shared>>,
}

pub(super) fn new_signal(value: i64, queue: Option<Arc<Shared>>) -> u64 {
    Box::into_raw(Box::new(Signal { value: AtomicI64::new(value), queue })).expose_provenance() as u64
}

fn signal<'a>(handle: u64) -> Option<&'a Signal> {
    let address = usize::try_from(handle).ok()?;
    // SAFETY: the caller passes a handle that `new_signal` returned and that is not destroyed.
    unsafe { std::ptr::with_exposed_provenance::<Signal>(address).as_ref() }
}

pub(super) extern "C" fn create(value: i64, _count: u32, _users: *const u64, out: *mut u64) -> Status {
    crate::device::write_out(out, new_signal(value, None)).map_or(INVALID_ARGUMENT, |()| SUCCESS)
}

pub(super) extern "C" fn destroy(handle: u64) -> Status {
    let Ok(address) = usize::try_from(handle) else { return INVALID_ARGUMENT };
    if address == 0 {
        return INVALID_ARGUMENT;
    }
    // SAFETY: created by `new_signal`, and the caller guarantees that this is its last use.
    drop(unsafe { Box::from_raw(std::ptr::with_exposed_provenance_mut::<Signal>(address)) });
    SUCCESS
}

pub(super) extern "C" fn load(handle: u64) -> i64 {
    signal(handle).map_or(0, |signal| signal.value.load(Ordering::Acquire))
}

pub(super) extern "C" fn store(handle: u64, value: i64) {
    let Some(signal) = signal(handle) else { return };
    signal.value.store(value, Ordering::Release);
    if let Some(queue) = &signal.queue {
        queue.ring_doorbell(value);
    }
}

/// What the device does when a packet completes.
pub(super) fn count_down(handle: u64) {
    if let Some(signal) = signal(handle) {
        signal.value.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Conditions: equal, not equal, less, greater or equal.
pub(super) extern "C" fn wait(handle: u64, condition: u32, value: i64, timeout: u64, _state: u32) -> i64 {
    let end = Instant::now().checked_add(Duration::from_nanos(timeout));
    loop {
        let now = load(handle);
        let met = match condition {
            0 => now == value,
            1 => now != value,
            2 => now < value,
            _ => now >= value,
        };
        if met || end.is_some_and(|end| Instant::now() >= end) {
            return now;
        }
        std::thread::sleep(Duration::from_micros(20));
    }
}
