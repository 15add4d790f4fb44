//! Streams that wait for memory, as the command processor does it: a thread looks at the memory once the stream is there.

use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use xsched_core::Marker;

use crate::device::HwQueue;
use crate::error::{Code, INVALID_VALUE, NOT_SUPPORTED, answer};
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
        let mut held: Vec<*const HwQueue> = Vec::new();
        waiting.retain(|one| {
            let address = std::ptr::with_exposed_provenance::<AtomicU64>(one.word);
            // SAFETY: who makes a stream wait for memory keeps the memory.
            let passes = || unsafe { &*address }.load(Ordering::Acquire) >= one.value;
            let first = !held.contains(&Arc::as_ptr(&one.queue));
            if first && one.queue.is_past(one.before) && passes() {
                one.queue.pass();
                return false;
            }
            held.push(Arc::as_ptr(&one.queue));
            true
        });
    }
}

/// The memory there is about to be freed: nobody looks at it any more.
pub(crate) fn end_waits_at(word: usize) {
    waiting().lock().unwrap_or_else(PoisonError::into_inner).retain(|one| {
        if one.word == word {
            one.queue.pass();
        }
        one.word != word
    });
}

/// Only "at least" is there. Without the command processor's help it would be a spinning kernel, which nobody here wants.
pub(crate) extern "C" fn wait_value(
    handle: Handle,
    word: *mut c_void,
    value: u64,
    flags: c_uint,
    _mask: u64,
) -> Code {
    if std::env::var("GPU_STREAMOPS_CP_WAIT").as_deref() != Ok("1") || flags != 0 {
        return answer(Err(NOT_SUPPORTED));
    }
    answer(stream::get(handle).and_then(|stream| {
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
