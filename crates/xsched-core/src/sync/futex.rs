//! A word on which threads of any process can sleep until it changes.

#[cfg(not(loom))]
use std::num::NonZeroU32;
use std::time::Duration;

use super::{AtomicU32, Ordering};
#[cfg(not(loom))]
use crate::time::Nanos;

/// An atomic word on which threads can sleep. Works across processes if it lies in memory that they share.
#[derive(Debug)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct Futex {
    word: AtomicU32,
    #[cfg(loom)]
    lock: loom::sync::Mutex<()>,
    #[cfg(loom)]
    condvar: loom::sync::Condvar,
}

impl Futex {
    /// A word with an initial value.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self { word: AtomicU32::new(value) }
    }

    /// A word with an initial value.
    #[cfg(loom)]
    #[must_use]
    pub fn new(value: u32) -> Self {
        Self {
            word: AtomicU32::new(value),
            lock: loom::sync::Mutex::new(()),
            condvar: loom::sync::Condvar::new(),
        }
    }

    /// The word itself.
    #[must_use]
    #[inline]
    pub fn word(&self) -> &AtomicU32 {
        &self.word
    }

    /// Sleeps while the word equals `seen`. Returns when it is woken, after the time-out, or spuriously: the caller reads the
    /// word again.
    #[cfg(not(loom))]
    pub fn wait(&self, seen: u32, timeout: Option<Duration>) {
        use rustix::thread::futex;
        let timeout = timeout.map(timespec);
        // After every failure (the word changed before, a signal, the time-out) the caller reads the word again.
        let _ = futex::wait(&self.word, futex::Flags::empty(), seen, timeout.as_ref());
    }

    /// Sleeps while the word equals `seen`. Loom has no clock: no time-out occurs, so that a lost wake-up shows as a
    /// deadlock.
    #[cfg(loom)]
    pub fn wait(&self, seen: u32, _timeout: Option<Duration>) {
        let guard = self.lock.lock().unwrap();
        if self.word.load(Ordering::SeqCst) == seen {
            drop(self.condvar.wait(guard).unwrap());
        }
    }

    /// As [`Futex::wait`], for a thread that can be woken alone: `waiter` is a bit of its own.
    #[cfg(not(loom))]
    pub fn wait_masked(&self, waiter: NonZeroU32, seen: u32, timeout: Duration) {
        use rustix::thread::futex;
        // This system call takes the time at which it ends, not a duration.
        let until = timespec(Duration::from_nanos(Nanos::now().0).saturating_add(timeout));
        let _ = futex::wait_bitset(&self.word, futex::Flags::empty(), seen, Some(&until), waiter);
    }

    /// Wakes the threads that sleep on the word as `waiter`.
    #[cfg(not(loom))]
    pub fn wake_masked(&self, waiter: NonZeroU32) {
        use rustix::thread::futex;
        let _ = futex::wake_bitset(&self.word, futex::Flags::empty(), i32::MAX.unsigned_abs(), waiter);
    }

    /// Wakes all threads that sleep on the word.
    pub fn wake_all(&self) {
        #[cfg(not(loom))]
        {
            use rustix::thread::futex;
            // The only error is an address that is not mapped, and `self` is mapped.
            let _ = futex::wake(&self.word, futex::Flags::empty(), i32::MAX.unsigned_abs());
        }
        #[cfg(loom)]
        {
            drop(self.lock.lock().unwrap());
            self.condvar.notify_all();
        }
    }

    /// Adds one to the word and wakes all threads that sleep on it.
    pub fn bump(&self) {
        self.word.fetch_add(1, Ordering::SeqCst);
        self.wake_all();
    }
}

#[cfg(not(loom))]
fn timespec(time: Duration) -> rustix::time::Timespec {
    rustix::time::Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}
