//! A word that threads of any process can sleep on until it changes.

#[cfg(not(loom))]
use std::num::NonZeroU32;
use std::time::Duration;

use super::{AtomicU32, Ordering};
#[cfg(not(loom))]
use crate::time::Nanos;

/// An atomic word with a place to sleep. Works across processes when it lies in memory they share.
#[derive(Debug)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct Futex {
    word: AtomicU32,
    #[cfg(loom)]
    bed: loom::sync::Mutex<()>,
    #[cfg(loom)]
    alarm: loom::sync::Condvar,
}

impl Futex {
    /// A word with a first value.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self { word: AtomicU32::new(value) }
    }

    /// A word with a first value.
    #[cfg(loom)]
    #[must_use]
    pub fn new(value: u32) -> Self {
        Self {
            word: AtomicU32::new(value),
            bed: loom::sync::Mutex::new(()),
            alarm: loom::sync::Condvar::new(),
        }
    }

    /// The word itself, for everything that is not sleeping.
    #[must_use]
    #[inline]
    pub fn word(&self) -> &AtomicU32 {
        &self.word
    }

    /// Sleeps while the word equals `seen`. Returns when it is woken, when the time is up, or for no reason at all:
    /// look again.
    #[cfg(not(loom))]
    pub fn wait(&self, seen: u32, timeout: Option<Duration>) {
        use rustix::thread::futex;
        let timeout = timeout.map(timespec);
        // Every failure (changed already, interrupted, time up) means "look again" to the caller.
        let _ = futex::wait(&self.word, futex::Flags::empty(), seen, timeout.as_ref());
    }

    /// Sleeps while the word equals `seen`. Loom has no clock: a time-out never comes, so that a wake-up that was
    /// lost shows as a deadlock.
    #[cfg(loom)]
    pub fn wait(&self, seen: u32, _timeout: Option<Duration>) {
        let bed = self.bed.lock().unwrap();
        if self.word.load(Ordering::SeqCst) == seen {
            drop(self.alarm.wait(bed).unwrap());
        }
    }

    /// The same for one who can be woken without the others: `who` is a bit of its own.
    #[cfg(not(loom))]
    pub fn wait_as(&self, who: NonZeroU32, seen: u32, timeout: Duration) {
        use rustix::thread::futex;
        // This one is told until when, not for how long.
        let until = timespec(Duration::from_nanos(Nanos::now().0).saturating_add(timeout));
        let _ = futex::wait_bitset(&self.word, futex::Flags::empty(), seen, Some(&until), who);
    }

    /// Wakes one who sleeps on the word as `who`.
    #[cfg(not(loom))]
    pub fn wake(&self, who: NonZeroU32) {
        use rustix::thread::futex;
        let _ = futex::wake_bitset(&self.word, futex::Flags::empty(), i32::MAX.unsigned_abs(), who);
    }

    /// Wakes everybody who sleeps on the word.
    pub fn wake_all(&self) {
        #[cfg(not(loom))]
        {
            use rustix::thread::futex;
            // An error would mean an address that is not mapped, and we hold a reference to it.
            let _ = futex::wake(&self.word, futex::Flags::empty(), i32::MAX.unsigned_abs());
        }
        #[cfg(loom)]
        {
            drop(self.bed.lock().unwrap());
            self.alarm.notify_all();
        }
    }

    /// Adds one and wakes everybody: "something changed".
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
