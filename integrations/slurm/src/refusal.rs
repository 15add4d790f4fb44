//! Tells the tasks of a step that the step is refused, and why.
//!
//! `slurmstepd` knows it only when it has forked the tasks. The tasks wait for it before they execute their programs, then read the
//! reason from memory that they share, report it on their own standard error, and fail. An error in `slurmstepd` itself would take
//! the node out of service.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

const CAPACITY: usize = 2_048;

/// Memory that `slurmstepd` shares with the tasks that it forks.
#[repr(C)]
struct Shared {
    length: AtomicUsize,
    bytes: [AtomicU8; CAPACITY],
}

static SHARED: OnceLock<Option<&'static Shared>> = OnceLock::new();

/// Allocates the memory. Called before the tasks are forked.
pub(crate) fn prepare() -> bool {
    SHARED.get_or_init(map).is_some()
}

fn map() -> Option<&'static Shared> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<Shared>(), protection, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping has the size of the structure, is aligned to a page, is never unmapped, and zeros are valid atomics.
    Some(unsafe { &*address.cast::<Shared>() })
}

/// Refuses the step.
pub(crate) fn refuse(why: &str) {
    if let Some(Some(shared)) = SHARED.get() {
        let length = why.len().min(CAPACITY);
        for (to, from) in shared.bytes.iter().zip(why.bytes()) {
            to.store(from, Ordering::Relaxed);
        }
        // Pairs with the load in `reason`: the task sees the bytes.
        shared.length.store(length, Ordering::Release);
    }
}

/// Why the step is refused; none if it is not.
pub(crate) fn reason() -> Option<String> {
    let shared = (*SHARED.get()?)?;
    // Pairs with the store in `refuse`.
    let length = shared.length.load(Ordering::Acquire).min(CAPACITY);
    let bytes: Vec<_> = shared.bytes.iter().take(length).map(|byte| byte.load(Ordering::Relaxed)).collect();
    (length > 0).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forked_process_reads_why_the_step_is_refused() {
        assert!(prepare());
        assert_eq!(reason(), None);
        // SAFETY: the child only waits, reads the shared memory and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while reason().is_none() && std::time::Instant::now() < deadline {
                std::thread::yield_now();
            }
            let status = i32::from(reason().as_deref() != Some("too much"));
            // SAFETY: ends the child without the destructors of its parent.
            unsafe { libc::_exit(status) };
        }
        refuse("too much");
        let mut status = -1;
        // SAFETY: waits for the child of this test.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        refuse(&"x".repeat(CAPACITY + 1));
        assert_eq!(reason().map(|why| why.len()), Some(CAPACITY));
    }
}
