//! Which branches an input reached. The compiler counts them if `scripts/fuzz` builds this program; otherwise there is nothing to
//! count, and every input counts as not new.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

static FIRST: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// Called at the start of the program by code that the compiler adds, with the counters of the program.
// SAFETY: the name is the one that the compiler's instrumentation calls, with these arguments; no other code defines it.
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_8bit_counters_init(first: *mut u8, end: *mut u8) {
    FIRST.store(first, Ordering::Relaxed);
    LENGTH.store((end as usize).saturating_sub(first as usize), Ordering::Relaxed);
}

/// The branches that were reached so far, by how often: in powers of two.
pub(crate) struct Coverage {
    seen: Vec<u8>,
}

impl Coverage {
    pub(crate) fn new() -> Self {
        Self { seen: vec![0; LENGTH.load(Ordering::Relaxed)] }
    }

    /// Whether this program counts branches.
    pub(crate) fn is_available(&self) -> bool {
        !self.seen.is_empty()
    }

    /// The number of branches reached so far.
    pub(crate) fn branches(&self) -> usize {
        self.seen.iter().filter(|seen| **seen != 0).count()
    }

    /// Whether the execution since the last call reached a branch, or a number of times, that none did before. Resets the counters.
    pub(crate) fn is_new(&mut self) -> bool {
        let mut is_new = false;
        let first = FIRST.load(Ordering::Relaxed);
        for (index, seen) in self.seen.chunks_mut(8).enumerate() {
            let mut counts = [0_u8; 8];
            // SAFETY: the compiler's code passed `LENGTH` counters at `FIRST`, which exist as long as the program, and `seen` has the
            // same length. Other threads may count at the same time: a lost count only makes the search less exact.
            unsafe {
                let counters = first.add(index * 8);
                if seen.len() == 8 && counters.cast::<u64>().read_unaligned() == 0 {
                    continue;
                }
                counters.copy_to_nonoverlapping(counts.as_mut_ptr(), seen.len());
                counters.write_bytes(0, seen.len());
            }
            for (seen, count) in seen.iter_mut().zip(counts).filter(|(_, count)| *count != 0) {
                let bucket = 1 << (7 - count.leading_zeros().min(7));
                is_new |= *seen & bucket == 0;
                *seen |= bucket;
            }
        }
        is_new
    }
}
