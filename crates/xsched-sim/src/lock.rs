//! A lock in shared memory that survives the death of its owner.
//!
//! ```text
//!   31        30 ............ 22   21 ............................ 0
//!   waiters?  start time, low 9    pid of the owner; 0: unlocked
//! ```
//!
//! The word names the owner and is written in one store, so a waiter always knows which process to check. A waiter
//! that has waited for [`OWNER_CHECK_DELAY`] checks whether the owner is alive, and takes the lock over if it is not.
//! The start time distinguishes the owner from a later process with the same pid.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::thread::futex;
use xsched_core::Nanos;

use crate::notifier::wait_on;
use crate::process::{Process, is_alive_if};

/// How long an owner may hold the lock before a waiter checks whether it is alive.
const OWNER_CHECK_DELAY: Nanos = Nanos::from_millis(5);
/// How often a waiter tries again before it sleeps; a critical section takes about 1 us.
const SPINS_BEFORE_SLEEP: u32 = 100;

const WAITERS: u32 = 1 << 31;
const PID_BITS: u32 = 22;
const START_MASK: u32 = 0x1ff;

/// The lock's word. All zero is an unlocked lock.
#[repr(transparent)]
pub(crate) struct RobustLock(AtomicU32);

/// The state in which the lock was acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    /// It was unlocked.
    Free,
    /// Its owner had died: what the lock protects may be half written.
    FromDeadOwner,
}

/// A process as an owner of locks.
pub(crate) struct LockOwner {
    word: u32,
    /// The owner that made the last [`RobustLock::try_acquire`] fail, and since when.
    seen_owner: AtomicU32,
    seen_since: AtomicU64,
}

impl LockOwner {
    pub(crate) fn new(process: Process) -> Self {
        let start = u32::try_from(process.started & u64::from(START_MASK)).unwrap_or(0);
        let word = (start << PID_BITS) | (process.pid & ((1 << PID_BITS) - 1));
        Self { word, seen_owner: AtomicU32::new(0), seen_since: AtomicU64::new(0) }
    }
}

impl RobustLock {
    /// Acquires the lock; blocks until it is available.
    pub(crate) fn acquire(&self, owner: &LockOwner) -> Acquired {
        for _ in 0..SPINS_BEFORE_SLEEP {
            if self.exchange(0, owner.word) {
                return Acquired::Free;
            }
            std::hint::spin_loop();
        }
        loop {
            // After waiting, this thread cannot know whether other waiters remain, so it keeps the flag set.
            if self.exchange(0, owner.word | WAITERS) {
                return Acquired::Free;
            }
            let seen = self.0.load(Ordering::Relaxed);
            if seen == 0 || (seen & WAITERS == 0 && !self.exchange(seen, seen | WAITERS)) {
                continue;
            }
            let woken = wait_on(&self.0, seen | WAITERS, Nanos::now() + OWNER_CHECK_DELAY);
            if !woken && self.take_over_from_dead_owner(seen | WAITERS, owner) {
                return Acquired::FromDeadOwner;
            }
        }
    }

    /// Acquires the lock if it is available at once. If one owner has held it for [`OWNER_CHECK_DELAY`] while this
    /// process tried, the owner is checked too: a process that only tries also gets past a dead owner.
    pub(crate) fn try_acquire(&self, owner: &LockOwner) -> Option<Acquired> {
        if self.exchange(0, owner.word) {
            return Some(Acquired::Free);
        }
        let seen = self.0.load(Ordering::Relaxed);
        let now = Nanos::now();
        if owner.seen_owner.swap(seen, Ordering::Relaxed) != seen {
            owner.seen_since.store(now.0, Ordering::Relaxed);
            return None;
        }
        if seen == 0 || now - Nanos(owner.seen_since.load(Ordering::Relaxed)) < OWNER_CHECK_DELAY {
            return None;
        }
        owner.seen_since.store(now.0, Ordering::Relaxed);
        self.take_over_from_dead_owner(seen, owner).then_some(Acquired::FromDeadOwner)
    }

    /// Releases the lock.
    pub(crate) fn release(&self) {
        // Release: pairs with the Acquire of the next owner's `exchange`.
        if self.0.swap(0, Ordering::Release) & WAITERS != 0 {
            let _ = futex::wake(&self.0, futex::Flags::empty(), 1);
        }
    }

    /// Whether the lock is unlocked now.
    pub(crate) fn is_free(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    fn exchange(&self, from: u32, to: u32) -> bool {
        // Acquire: pairs with the Release of the last owner's `release`.
        self.0.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock over from the owner in `seen`, unless the owner is alive or another process was faster.
    fn take_over_from_dead_owner(&self, seen: u32, owner: &LockOwner) -> bool {
        let (pid, start) = (seen & ((1 << PID_BITS) - 1), (seen >> PID_BITS) & START_MASK);
        // 0 also means that the start time could not be read.
        let is_owner = |started: u64| start == 0 || started & u64::from(START_MASK) == u64::from(start);
        !is_alive_if(pid, is_owner) && self.exchange(seen, owner.word | WAITERS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_of_a_dead_owner_is_taken_over_and_that_of_a_live_one_is_not() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = LockOwner::new(Process { pid: child.id(), started: 0 });
        let owner = LockOwner::new(Process::current());
        let lock = RobustLock(AtomicU32::new(0));
        assert_eq!(lock.acquire(&dead), Acquired::Free);
        child.wait().unwrap();
        assert_eq!(lock.acquire(&owner), Acquired::FromDeadOwner);
        assert_eq!(lock.try_acquire(&owner), None);
        lock.release();
        assert!(lock.is_free());
        assert_eq!(lock.try_acquire(&owner), Some(Acquired::Free));
    }

    #[test]
    fn try_acquire_gets_past_a_dead_owner() {
        let dead = LockOwner::new(Process { pid: 0, started: 0 });
        let owner = LockOwner::new(Process::current());
        // No process has pid 0; the flag keeps the word from reading as unlocked.
        let lock = RobustLock(AtomicU32::new(dead.word | WAITERS));
        let got = std::iter::repeat_with(|| lock.try_acquire(&owner)).find_map(|got| got);
        assert_eq!(got, Some(Acquired::FromDeadOwner));
    }

    #[test]
    fn threads_of_one_process_exclude_each_other() {
        let lock = RobustLock(AtomicU32::new(0));
        let owner = LockOwner::new(Process::current());
        let counter = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        lock.acquire(&owner);
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
