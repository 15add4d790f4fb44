//! Streams that wait for memory, as the command processor does: a thread polls the memory once the stream has reached it.

use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use xsched_core::Marker;

use crate::device::HwQueue;
use crate::error::{Code, INVALID_VALUE, NOT_SUPPORTED, to_code};
use crate::stream::{self, Handle};

struct Waiting {
    queue: Arc<HwQueue>,
    before: Marker,
    word: usize,
    value: u64,
}

fn waiting() -> &'static Mutex<Vec<Waiting>> {
    static WAITING: OnceLock<Mutex<Vec<Waiting>>> = OnceLock::new();
    WAITING.get_or_init(|| {
        std::thread::spawn(watch);
        Mutex::default()
    })
}

fn watch() {
    loop {
        std::thread::sleep(Duration::from_micros(20));
        let mut waiting = waiting().lock().unwrap_or_else(PoisonError::into_inner);
        let mut stalled: Vec<*const HwQueue> = Vec::new();
        waiting.retain(|wait| {
            let address = std::ptr::with_exposed_provenance::<AtomicU64>(wait.word);
            // SAFETY: a program that makes a stream wait for memory keeps the memory mapped.
            let passes = || unsafe { &*address }.load(Ordering::Acquire) >= wait.value;
            let first = !stalled.contains(&Arc::as_ptr(&wait.queue));
            if first && wait.queue.is_past(wait.before) && passes() {
                wait.queue.pass();
                return false;
            }
            stalled.push(Arc::as_ptr(&wait.queue));
            true
        });
    }
}

/// Ends all waits for an address whose memory is about to be released.
pub(crate) fn end_waits_at(word: usize) {
    waiting().lock().unwrap_or_else(PoisonError::into_inner).retain(|wait| {
        if wait.word == word {
            wait.queue.pass();
        }
        wait.word != word
    });
}

/// Only greater-or-equal is implemented. Without the command processor's support, AMD's runtime runs a spinning kernel,
/// which is not modelled here.
pub(crate) extern "C" fn wait_value(
    handle: Handle,
    word: *mut c_void,
    value: u64,
    flags: c_uint,
    _mask: u64,
) -> Code {
    if std::env::var("GPU_STREAMOPS_CP_WAIT").as_deref() != Ok("1") || flags != 0 {
        return to_code(Err(NOT_SUPPORTED));
    }
    to_code(stream::get(handle).and_then(|stream| {
        if word.is_null() {
            return Err(INVALID_VALUE);
        }
        let queue = Arc::clone(&stream.queue);
        let mut waiting = waiting().lock().unwrap_or_else(PoisonError::into_inner);
        let before = queue.stall()?;
        waiting.push(Waiting { queue, before, word: word.expose_provenance(), value });
        Ok(())
    }))
}
