//! A lock in shared memory that survives the death of its owner.
//!
//! ```text
//!   31        30 ............ 22   21 ............................ 0
//!   waiters?  start time, low 9    pid of the owner; 0: nobody
//! ```
//!
//! The word says who holds the lock, in one store, so it is never unclear whom to look for. Who waits for longer
//! than [`PATIENCE`] looks whether the owner still lives, and takes its place if not. The start time tells the owner
//! from a later process with the same pid.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::thread::futex;
use xsched_core::Nanos;

use crate::process::{Process, is_alive_if};
use crate::sleep::wait_on;

/// How long an owner may keep the lock before others look whether it lives.
const PATIENCE: Nanos = Nanos::from_millis(5);
/// How often a waiter looks again before it sleeps; what the lock protects takes about a microsecond.
const SPINS: u32 = 100;

const WAITERS: u32 = 1 << 31;
const PID_BITS: u32 = 22;
const START_MASK: u32 = 0x1ff;

/// The lock's word. All zero is an unlocked lock.
#[repr(transparent)]
pub(crate) struct RobustLock(AtomicU32);

/// How a lock was come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    /// From nobody.
    Free,
    /// From an owner that died: what the lock protects may be half written.
    FromTheDead,
}

/// What one process needs to take locks.
pub(crate) struct Locker {
    word: u32,
    /// The owner that last kept [`RobustLock::try_acquire`] out, and since when.
    seen_owner: AtomicU32,
    seen_since: AtomicU64,
}

impl Locker {
    pub(crate) fn new(process: Process) -> Self {
        let start = u32::try_from(process.started & u64::from(START_MASK)).unwrap_or(0);
        let word = (start << PID_BITS) | (process.pid & ((1 << PID_BITS) - 1));
        Self { word, seen_owner: AtomicU32::new(0), seen_since: AtomicU64::new(0) }
    }
}

impl RobustLock {
    /// Takes the lock, however long that takes.
    pub(crate) fn acquire(&self, me: &Locker) -> Acquired {
        for _ in 0..SPINS {
            if self.take(0, me.word) {
                return Acquired::Free;
            }
            std::hint::spin_loop();
        }
        loop {
            // Who has waited cannot know whether others still do, so it keeps the flag set.
            if self.take(0, me.word | WAITERS) {
                return Acquired::Free;
            }
            let seen = self.0.load(Ordering::Relaxed);
            if seen == 0 || (seen & WAITERS == 0 && !self.take(seen, seen | WAITERS)) {
                continue;
            }
            let woken = wait_on(&self.0, seen | WAITERS, Nanos::now() + PATIENCE);
            if !woken && self.take_from_the_dead(seen | WAITERS, me) {
                return Acquired::FromTheDead;
            }
        }
    }

    /// Takes the lock if that can be done at once. An owner that has been in the way of this process for long is
    /// looked after too, so that who only ever tries gets through in the end.
    pub(crate) fn try_acquire(&self, me: &Locker) -> Option<Acquired> {
        if self.take(0, me.word) {
            return Some(Acquired::Free);
        }
        let seen = self.0.load(Ordering::Relaxed);
        let now = Nanos::now();
        if me.seen_owner.swap(seen, Ordering::Relaxed) != seen {
            me.seen_since.store(now.0, Ordering::Relaxed);
            return None;
        }
        if seen == 0 || now - Nanos(me.seen_since.load(Ordering::Relaxed)) < PATIENCE {
            return None;
        }
        me.seen_since.store(now.0, Ordering::Relaxed);
        self.take_from_the_dead(seen, me).then_some(Acquired::FromTheDead)
    }

    /// Gives the lock back.
    pub(crate) fn release(&self) {
        // Release: pairs with the Acquire of the next owner's `take`.
        if self.0.swap(0, Ordering::Release) & WAITERS != 0 {
            let _ = futex::wake(&self.0, futex::Flags::empty(), 1);
        }
    }

    /// Whether nobody holds it at this moment.
    pub(crate) fn is_free(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    fn take(&self, from: u32, to: u32) -> bool {
        // Acquire: pairs with the Release of the last owner's `release`.
        self.0.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes over from the owner in `seen` unless it lives, or somebody was faster.
    fn take_from_the_dead(&self, seen: u32, me: &Locker) -> bool {
        let (pid, start) = (seen & ((1 << PID_BITS) - 1), (seen >> PID_BITS) & START_MASK);
        // 0 also stands for a start that could not be read.
        let is_it = |started: u64| start == 0 || started & u64::from(START_MASK) == u64::from(start);
        !is_alive_if(pid, is_it) && self.take(seen, me.word | WAITERS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_owner_is_relieved_and_a_live_one_is_not() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = Locker::new(Process { pid: child.id(), started: 0 });
        let me = Locker::new(Process::current());
        let lock = RobustLock(AtomicU32::new(0));
        assert_eq!(lock.acquire(&dead), Acquired::Free);
        child.wait().unwrap();
        assert_eq!(lock.acquire(&me), Acquired::FromTheDead);
        assert_eq!(lock.try_acquire(&me), None);
        lock.release();
        assert!(lock.is_free());
        assert_eq!(lock.try_acquire(&me), Some(Acquired::Free));
    }

    #[test]
    fn who_only_tries_gets_past_a_dead_owner_too() {
        let dead = Locker::new(Process { pid: 0, started: 0 });
        let me = Locker::new(Process::current());
        // Nobody has pid 0; the flag keeps the word from reading as free.
        let lock = RobustLock(AtomicU32::new(dead.word | WAITERS));
        let got = std::iter::repeat_with(|| lock.try_acquire(&me)).find_map(|got| got);
        assert_eq!(got, Some(Acquired::FromTheDead));
    }

    #[test]
    fn threads_of_one_process_exclude_each_other() {
        let lock = RobustLock(AtomicU32::new(0));
        let me = Locker::new(Process::current());
        let counter = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        lock.acquire(&me);
                        let read = counter.load(Ordering::Relaxed);
                        std::thread::yield_now();
                        counter.store(read + 1, Ordering::Relaxed);
                        lock.release();
                    }
                });
            }
        });
        assert_eq!(counter.into_inner(), 4000);
    }
}
