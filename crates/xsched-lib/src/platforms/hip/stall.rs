//! Level 2 where the driver cannot be asked: stall points. Behind every marker the stream waits until a word says go; who
//! changes the word stops the queue at its next marker.
//!
//! Only where the command processor does the waiting: else the runtime waits with a kernel that spins, which takes the
//! place of those that are to run. The user says so to the runtime with `GPU_STREAMOPS_CP_WAIT=1`.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use xsched_core::{LevelCost, Nanos};

use super::group;
use super::vendor::{self, Code, Stream};

/// What stopping at the next marker is expected to take.
pub(super) const COST: LevelCost =
    LevelCost { preempt: Nanos::from_micros(50), restore: Nanos::from_micros(50) };

/// `hipMallocSignalMemory`: what the command processor can wait for.
const SIGNAL_MEMORY: u32 = 2;
/// `hipStreamWaitValueGte`.
const AT_LEAST: u32 = 0;
const GO: u64 = 1;
const STOP: u64 = 0;

/// What the stall points of a device look at. It is freed with all that is on the device: first everybody forgets it.
pub(super) struct Word(*mut AtomicU64);

// SAFETY: an address of eight bytes that are there as long as anybody knows of it, used as an atomic.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Word {
    pub(super) fn set(&self, stopped: bool) {
        // SAFETY: see `Word`. Release: what the program did before is done.
        unsafe { &*self.0 }.store(if stopped { STOP } else { GO }, Ordering::Release);
    }

    /// Puts a stall point into a stream. It succeeds: one like it did before.
    pub(super) fn place(&self, copy: usize, stream: Stream) -> Code {
        let wait = vendor::STREAM_WAIT_VALUE.of(copy);
        // SAFETY: the caller makes sure that the stream exists, and with it the word.
        wait.map_or(vendor::NOT_INITIALIZED, |wait| unsafe {
            wait(stream, self.0.cast::<c_void>(), GO, AT_LEAST, u64::MAX)
        })
    }
}

/// By copy and device.
fn words() -> MutexGuard<'static, Vec<(usize, c_int, &'static Word)>> {
    static WORDS: Mutex<Vec<(usize, c_int, &'static Word)>> = Mutex::new(Vec::new());
    WORDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The memory of a device is about to be freed, and its word with it.
pub(super) fn forget(copy: usize, number: c_int) {
    words().retain(|(its_copy, its_number, word)| {
        let is_meant = (*its_copy, *its_number) == (copy, number);
        if is_meant {
            group::forget(word);
        }
        !is_meant
    });
}

/// The word of a device that is current on this thread, which is one of ours; or why there can be no stall points.
pub(super) fn word(copy: usize, number: c_int) -> Result<&'static Word, String> {
    if std::env::var("GPU_STREAMOPS_CP_WAIT").as_deref() != Ok("1") {
        return Err(
            "a stream would wait with a spinning kernel (GPU_STREAMOPS_CP_WAIT=1 is not set)".to_owned()
        );
    }
    let mut words = words();
    if let Some((_, _, word)) = words.iter().find(|known| (known.0, known.1) == (copy, number)) {
        return Ok(word);
    }
    let word = make(copy).ok_or("the runtime has no memory that streams can wait for")?;
    let word: &'static Word = Box::leak(Box::new(word));
    word.set(false);
    if !try_out(copy, word) {
        return Err("the runtime's streams cannot wait for memory".to_owned());
    }
    words.push((copy, number, word));
    Ok(word)
}

fn make(copy: usize) -> Option<Word> {
    let mut memory = std::ptr::null_mut::<c_void>();
    // SAFETY: the place has room for an address.
    let code = unsafe { vendor::MALLOC_WITH_FLAGS.of(copy)?(&raw mut memory, 8, SIGNAL_MEMORY) };
    (code == vendor::SUCCESS && !memory.is_null()).then(|| Word(memory.cast()))
}

/// In a stream of our own, which is left to the runtime: what is wrong here must not come to be seen elsewhere.
fn try_out(copy: usize, word: &Word) -> bool {
    let mut stream = std::ptr::null_mut();
    let both = vendor::STREAM_CREATE.of(copy).zip(vendor::STREAM_SYNCHRONIZE.of(copy));
    both.is_some_and(|(create, synchronize)| {
        // SAFETY: the place has room for a handle.
        let made = unsafe { create(&raw mut stream, NON_BLOCKING) } == vendor::SUCCESS;
        let placed = made && word.place(copy, stream) == vendor::SUCCESS;
        // SAFETY: made above.
        placed && unsafe { synchronize(stream) } == vendor::SUCCESS
    })
}

/// `hipStreamNonBlocking`.
const NON_BLOCKING: u32 = 1;
