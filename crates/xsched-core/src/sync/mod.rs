//! The only module that knows how threads and processes meet: atomics, futexes, and pointers into shared memory.
//!
//! Everything else takes its atomics from here, so that building with `--cfg loom` swaps them for loom's and lets it
//! try every interleaving of the gate.

mod futex;
mod shared;

pub use futex::Futex;
pub use shared::{Movable, Shared};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Loom treats sequentially consistent accesses as acquire and release; only its fences are sequentially consistent.
/// Where the hardware and the language need no more than `SeqCst` on both accesses, this tells loom the same.
#[inline]
pub(crate) fn fence_for_loom() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}
