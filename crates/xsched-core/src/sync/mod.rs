//! Everything that threads and processes synchronize with: atomics, locks, futexes, and pointers into shared memory.
//!
//! The gate, the launch path and the protocol of the page take these types from here and from nowhere else. A build with `--cfg
//! loom` replaces them with loom's, so that `tests/loom_*.rs` can explore the interleavings of their threads.

mod futex;
mod shared;

use std::sync::PoisonError;
use std::time::Duration;

pub use futex::Futex;
pub use shared::{Movable, Owner, Shared};

#[cfg(loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Condvar, Mutex, MutexGuard, RwLock},
    thread,
};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    sync::{Condvar, Mutex, MutexGuard, RwLock},
    thread,
};

/// Makes two `SeqCst` accesses sequentially consistent for loom too.
///
/// Loom treats a `SeqCst` access as acquire or release; only its fences are sequentially consistent. The language needs
/// no fence here, so that other builds compile this to nothing.
#[inline]
pub(crate) fn fence_for_loom() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

/// Locks a mutex, also after a thread panicked while it held the lock.
///
/// A panic in a program's callback must not disable the queue. The state behind these locks is valid after every
/// statement.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Suspends the thread. Loom has no clock: there it only lets the other threads run.
pub(crate) fn sleep(duration: Duration) {
    #[cfg(not(loom))]
    thread::sleep(duration);
    #[cfg(loom)]
    {
        let _ = duration;
        thread::yield_now();
    }
}
