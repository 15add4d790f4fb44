//! Level 2 where `/dev/kfd` cannot be used: stall points. After each marker the stream waits until a word permits it to
//! continue, so clearing the word stalls the queue at its next marker.
//!
//! Used only if the command processor does the waiting, which the user enables in the runtime with
//! `GPU_STREAMOPS_CP_WAIT=1`. Otherwise the runtime waits with a kernel that spins and occupies the compute units that
//! other kernels need.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use xsched_core::{LevelCost, Nanos};

use super::device_queues;
use super::vendor::{self, Code, Stream};

/// An estimate; not measured on hardware.
pub(super) const COST: LevelCost =
    LevelCost { preempt: Nanos::from_micros(50), restore: Nanos::from_micros(50) };

/// The estimated work from one stall point to the next. A task of higher precedence waits for the rest of it, because nothing else
/// stops a kernel in a queue of this level. Two barrier packets every 0.5 ms cost the device 1 to 2 % of its time.
pub(super) const DISTANCE: Nanos = Nanos::from_micros(500);

/// `hipMallocSignalMemory`: memory that the command processor can wait for.
const SIGNAL_MEMORY: u32 = 2;
/// `hipStreamWaitValueGte`.
const WAIT_UNTIL_AT_LEAST: u32 = 0;
/// `hipStreamNonBlocking`.
const NON_BLOCKING: u32 = 1;
const CONTINUE: u64 = 1;
const STALL: u64 = 0;

/// The word that the stall points of a device read. `hipDeviceReset` frees its memory, so [`forget_word`] is called before
/// that.
pub(super) struct StallWord(*mut AtomicU64);

// SAFETY: the address of eight bytes that are accessed as an atomic, and that stay allocated until `forget_word`.
unsafe impl Send for StallWord {}
// SAFETY: as above.
unsafe impl Sync for StallWord {}

impl StallWord {
    pub(super) fn set_stopped(&self, is_stopped: bool) {
        // SAFETY: allocated until `forget_word`, after which `device_queues` does not call this.
        unsafe { &*self.0 }.store(if is_stopped { STALL } else { CONTINUE }, Ordering::Release);
    }

    /// Places a stall point in a stream. It does not fail: `try_word` placed one like it.
    pub(super) fn place(&self, copy: usize, stream: Stream) -> Code {
        let wait = vendor::STREAM_WAIT_VALUE.of(copy);
        // SAFETY: the caller makes sure that the stream exists; the word exists while streams of its device do.
        wait.map_or(vendor::NOT_INITIALIZED, |wait| unsafe {
            wait(stream, self.0.cast::<c_void>(), CONTINUE, WAIT_UNTIL_AT_LEAST, u64::MAX)
        })
    }
}

/// The words of all devices, by runtime copy and device ordinal.
fn words() -> MutexGuard<'static, Vec<(usize, c_int, &'static StallWord)>> {
    static WORDS: Mutex<Vec<(usize, c_int, &'static StallWord)>> = Mutex::new(Vec::new());
    WORDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// For a device whose memory is about to be freed.
pub(super) fn forget_word(copy: usize, ordinal: c_int) {
    let mut forgotten = Vec::new();
    words().retain(|(its_copy, its_ordinal, word)| {
        let is_kept = (*its_copy, *its_ordinal) != (copy, ordinal);
        if !is_kept {
            forgotten.push(*word);
        }
        is_kept
    });
    forgotten.into_iter().for_each(device_queues::forget_word);
}

/// The word of a device, or the reason why it has no stall points. For the runtime thread, on which the device is current.
pub(super) fn find_word(copy: usize, ordinal: c_int) -> Result<&'static StallWord, String> {
    if std::env::var("GPU_STREAMOPS_CP_WAIT").as_deref() != Ok("1") {
        return Err(
            "a stream would wait with a spinning kernel (GPU_STREAMOPS_CP_WAIT=1 is not set)".to_owned()
        );
    }
    if let Some((_, _, word)) = words().iter().find(|known| (known.0, known.1) == (copy, ordinal)) {
        return Ok(word);
    }
    let word = allocate_word(copy).ok_or("the runtime has no memory that streams can wait for")?;
    let word: &'static StallWord = Box::leak(Box::new(word));
    word.set_stopped(false);
    if !try_word(copy, word) {
        return Err("the runtime's streams cannot wait for memory".to_owned());
    }
    words().push((copy, ordinal, word));
    Ok(word)
}

fn allocate_word(copy: usize) -> Option<StallWord> {
    let mut memory = std::ptr::null_mut::<c_void>();
    // SAFETY: `memory` has room for an address.
    let code = unsafe { vendor::MALLOC_WITH_FLAGS.of(copy)?(&raw mut memory, 8, SIGNAL_MEMORY) };
    (code == vendor::SUCCESS && !memory.is_null()).then(|| StallWord(memory.cast()))
}

/// Places a stall point in a stream made for this, so that an error does not affect the program's streams. The stream is not
/// destroyed.
fn try_word(copy: usize, word: &StallWord) -> bool {
    let mut stream = std::ptr::null_mut();
    let functions = vendor::STREAM_CREATE.of(copy).zip(vendor::STREAM_SYNCHRONIZE.of(copy));
    functions.is_some_and(|(create, synchronize)| {
        // SAFETY: `stream` has room for a handle.
        let is_created = unsafe { create(&raw mut stream, NON_BLOCKING) } == vendor::SUCCESS;
        let is_placed = is_created && word.place(copy, stream) == vendor::SUCCESS;
        // SAFETY: created above.
        is_placed && unsafe { synchronize(stream) } == vendor::SUCCESS
    })
}
