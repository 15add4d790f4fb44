//! Signals: values that threads set and the device counts down. A handle is the address of an `amd_signal_t`.
//!
//! Threads that wait for a value sleep until a function of this library, or the device, changes any signal of the process.
//! Programs may also write a value through its address, and other processes change the values of shared signals, without a
//! notification: so a waiting thread also looks at the value at intervals.

use std::collections::VecDeque;
use std::ffi::c_long;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use xsched_core::Nanos;

use crate::ledger;
use crate::queues::Queue;
use crate::status::{INVALID_SIGNAL, Status};

/// `AMD_SIGNAL_KIND_USER` and `AMD_SIGNAL_KIND_DOORBELL`.
const USER: i64 = 1;
const DOORBELL: i64 = -1;

/// How often a thread that sleeps looks for changes without a notification, once there can be any.
const POLL_INTERVAL: Duration = Duration::from_micros(100);
/// The same while all changes are notified: bounds the delay of an error of this library.
const NOTIFIED_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// For how long a thread that waits actively looks at the value before it sleeps.
const SPIN_TIME: Duration = Duration::from_micros(5);
/// How many destroyed signals are kept before their memory is reused.
const QUARANTINED_SIGNALS: usize = 1024;

/// `amd_signal_t`, followed by the doorbell's own part.
#[repr(C, align(64))]
pub(crate) struct Signal {
    kind: i64,
    /// The value; of a doorbell, the address of its word.
    value: AtomicI64,
    event_mailbox: u64,
    event_id: u32,
    reserved: u32,
    start: AtomicU64,
    end: AtomicU64,
    queue: *const Queue,
    reserved_too: [u32; 2],
    /// The hardware's doorbell of a queue. Programs may write it without calling a function.
    doorbell: AtomicI64,
}

const _: () = assert!(std::mem::offset_of!(Signal, doorbell) == 64 && size_of::<Signal>() == 128);

// SAFETY: `queue` is only read, and its queue outlives the doorbell signal, which `queues::destroy` destroys.
unsafe impl Send for Signal {}
// SAFETY: as for Send; everything else is atomic or constant.
unsafe impl Sync for Signal {}

impl Signal {
    fn new(value: i64) -> Self {
        Self {
            kind: USER,
            value: AtomicI64::new(value),
            event_mailbox: 0,
            event_id: 0,
            reserved: 0,
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
            queue: std::ptr::null(),
            reserved_too: [0; 2],
            doorbell: AtomicI64::new(-1),
        }
    }

    /// The queue whose doorbell this is.
    pub(crate) fn queue(&self) -> Option<&Queue> {
        if self.kind != DOORBELL {
            return None;
        }
        // SAFETY: `create_doorbell` got a queue that outlives the signal.
        unsafe { self.queue.as_ref() }
    }

    /// The word that the hardware's doorbell is.
    pub(crate) fn doorbell(&self) -> &AtomicI64 {
        &self.doorbell
    }

    pub(crate) fn value(&self) -> &AtomicI64 {
        &self.value
    }

    pub(crate) fn load(&self) -> i64 {
        self.value.load(Ordering::Acquire)
    }

    /// When the packet or copy that completed this signal started and ended.
    pub(crate) fn times(&self) -> (u64, u64) {
        (self.start.load(Ordering::Acquire), self.end.load(Ordering::Acquire))
    }

    /// What the device does when a packet or copy completes.
    pub(crate) fn complete(&self, start: Nanos, end: Nanos) {
        self.start.store(start.0, Ordering::Relaxed);
        self.end.store(end.0, Ordering::Relaxed);
        self.value.fetch_sub(1, Ordering::AcqRel);
        notify();
    }
}

static QUARANTINE: Mutex<VecDeque<usize>> = Mutex::new(VecDeque::new());

/// Creates a signal. Returns its handle.
pub(crate) fn create(value: i64) -> u64 {
    let mut quarantine = QUARANTINE.lock().unwrap_or_else(PoisonError::into_inner);
    let reused = if quarantine.len() > QUARANTINED_SIGNALS { quarantine.pop_front() } else { None };
    drop(quarantine);
    let signal = match reused {
        Some(address) => {
            let signal = std::ptr::with_exposed_provenance_mut::<Signal>(address);
            // SAFETY: `destroy` put it there; it is no longer in use and has not been freed.
            unsafe { signal.write(Signal::new(value)) };
            signal
        }
        None => Box::into_raw(Box::new(Signal::new(value))),
    };
    announce(signal.expose_provenance())
}

/// Creates a signal in memory that processes share.
///
/// # Safety
/// `place` has room for a signal, is aligned to 64 bytes, and stays mapped.
pub(crate) unsafe fn create_at(place: *mut Signal, value: i64) -> u64 {
    // SAFETY: guaranteed by the caller.
    unsafe { place.write(Signal::new(value)) };
    announce(place.expose_provenance())
}

/// Creates the doorbell of a queue, which must outlive it.
pub(crate) fn create_doorbell(queue: *const Queue) -> u64 {
    let mut signal = Box::new(Signal { kind: DOORBELL, queue, ..Signal::new(0) });
    let word = (&raw const signal.doorbell).expose_provenance();
    signal.value = AtomicI64::new(i64::try_from(word).unwrap_or(0));
    Box::into_raw(signal).expose_provenance() as u64
}

fn announce(address: usize) -> u64 {
    let handle = address as u64;
    if let Some(ledger) = ledger::ledger() {
        ledger.host_stored(handle);
    }
    handle
}

/// The signal with this handle; none for handle 0.
pub(crate) fn signal<'a>(handle: u64) -> Option<&'a Signal> {
    let address = usize::try_from(handle).ok()?;
    // SAFETY: the caller of the C function passes 0 or a handle of a signal. The memory of a destroyed signal is kept.
    unsafe { std::ptr::with_exposed_provenance::<Signal>(address).as_ref() }
}

/// Destroys a signal. Its memory is reused later, because a thread may still look at it.
pub(crate) fn destroy(handle: u64) -> Result<(), Status> {
    let address = usize::try_from(handle).ok().filter(|address| *address != 0).ok_or(INVALID_SIGNAL)?;
    if crate::ipc::is_shared_signal(address) {
        return Ok(());
    }
    QUARANTINE.lock().unwrap_or_else(PoisonError::into_inner).push_back(address);
    Ok(())
}

/// Whether a value satisfies a condition: equal, not equal, less, greater or equal.
pub(crate) fn is_satisfied(value: i64, condition: u32, expected: i64) -> bool {
    match condition {
        0 => value == expected,
        1 => value != expected,
        2 => value < expected,
        _ => value >= expected,
    }
}

/// Counts the changes of signals. Threads sleep on it.
static CHANGES: AtomicU32 = AtomicU32::new(0);
/// How many threads sleep, or are about to.
static SLEEPERS: AtomicU32 = AtomicU32::new(0);

/// Whether a program or process may change a value without a notification.
static HAS_SILENT_WRITERS: AtomicBool = AtomicBool::new(false);

/// Records that a value may change without a notification from now on.
pub(crate) fn expect_silent_writers() {
    HAS_SILENT_WRITERS.store(true, Ordering::SeqCst);
    notify();
}

/// Wakes the threads that wait for a signal.
pub(crate) fn notify() {
    // SeqCst: pairs with the increment of `SLEEPERS` in `wait_until`. Either this thread sees the sleeper, or the sleeper
    // sees the changed value.
    std::sync::atomic::fence(Ordering::SeqCst);
    if SLEEPERS.load(Ordering::SeqCst) > 0 {
        CHANGES.fetch_add(1, Ordering::SeqCst);
        futex_wake(&CHANGES);
    }
}

/// How a thread waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitMode {
    /// It looks at the value for a few microseconds before it sleeps.
    Active,
    /// It sleeps at once.
    Blocked,
    /// It looks at memory that is no signal, whose changes are never notified.
    Memory,
}

/// Waits until `check` returns a value, or until the deadline.
pub(crate) fn wait_until<T>(
    deadline: Option<Instant>,
    mode: WaitMode,
    mut check: impl FnMut() -> Option<T>,
) -> Option<T> {
    if let Some(value) = check() {
        return Some(value);
    }
    // A child after fork has no thread that would ever change a signal.
    if crate::runtime::is_forked_child() {
        return None;
    }
    if mode != WaitMode::Blocked {
        let started = Instant::now();
        while started.elapsed() < SPIN_TIME {
            if let Some(value) = check() {
                return Some(value);
            }
            std::hint::spin_loop();
        }
    }
    SLEEPERS.fetch_add(1, Ordering::SeqCst);
    let found = loop {
        let seen = CHANGES.load(Ordering::SeqCst);
        if let Some(value) = check() {
            break Some(value);
        }
        let is_polled = mode == WaitMode::Memory || HAS_SILENT_WRITERS.load(Ordering::SeqCst);
        let interval = if is_polled { POLL_INTERVAL } else { NOTIFIED_POLL_INTERVAL };
        let left = deadline.map_or(interval, |deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            break None;
        }
        futex_wait(&CHANGES, seen, left.min(interval));
    };
    SLEEPERS.fetch_sub(1, Ordering::SeqCst);
    found
}

/// Sleeps while the word has this value, at most for `limit`.
pub(crate) fn futex_wait(word: &AtomicU32, seen: u32, limit: Duration) {
    let limit = libc::timespec {
        tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: c_long::from(limit.subsec_nanos()),
    };
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word and the time live until the call returns.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, seen, &raw const limit) };
}

/// Wakes all threads that sleep on a word.
pub(crate) fn futex_wake(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word is valid; the call only uses its address.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, i32::MAX) };
}
