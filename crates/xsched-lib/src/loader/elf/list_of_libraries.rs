//! The process does not fork while a thread of it reads the loader's list of libraries here.
//!
//! The loader locks its list meanwhile, and a child after fork inherits the lock as it is: if another thread of the parent had it, the
//! first look-up of a symbol in the child would wait for it without end. So a thread that forks waits for the readers, and readers wait
//! for it. Both waits are bounded, because a thread may be stopped at any time.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use xsched_interpose::lifetime;

/// Reading takes microseconds, and so does fork, except in a large process.
const MAX_WAIT: Duration = Duration::from_millis(100);
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// Threads that read the list.
static READERS: AtomicU32 = AtomicU32::new(0);
/// Threads that are about to fork.
static FORKING: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// This thread must not wait for a thread that forks: it forks itself, and a fork handler of another library looks up a symbol; or
    /// it reads the list already.
    static NEVER_WAITS: Cell<bool> = const { Cell::new(false) };
}

/// A thread that reads the list.
pub(super) struct Reader {
    never_waited: bool,
}

/// Waits while another thread forks.
pub(super) fn read() -> Reader {
    // SeqCst, here and in `prepare`: a thread counts itself first and reads the other count second. At least one of two threads sees
    // the other one.
    READERS.fetch_add(1, Ordering::SeqCst);
    // On a thread that is ending: as if it forked.
    let never_waited = NEVER_WAITS.try_with(|never_waits| never_waits.replace(true)).unwrap_or(true);
    if FORKING.load(Ordering::SeqCst) != 0 && !never_waited {
        READERS.fetch_sub(1, Ordering::SeqCst);
        wait_until(|| FORKING.load(Ordering::SeqCst) == 0);
        READERS.fetch_add(1, Ordering::SeqCst);
    }
    Reader { never_waited }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = NEVER_WAITS.try_with(|never_waits| never_waits.set(self.never_waited));
        // Not below zero: a child begins with none.
        let _ = READERS.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |readers| readers.checked_sub(1));
    }
}

fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + MAX_WAIT;
    while !condition() && Instant::now() < deadline {
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Registers what this module does around fork. Returns whether that succeeded.
#[must_use]
pub(crate) fn register_fork_handlers() -> bool {
    lifetime::around_fork(prepare, in_parent, in_child)
}

extern "C" fn prepare() {
    let _ = NEVER_WAITS.try_with(|never_waits| never_waits.set(true));
    FORKING.fetch_add(1, Ordering::SeqCst);
    wait_until(|| READERS.load(Ordering::SeqCst) == 0);
}

extern "C" fn in_parent() {
    FORKING.fetch_sub(1, Ordering::SeqCst);
    let _ = NEVER_WAITS.try_with(|never_waits| never_waits.set(false));
}

extern "C" fn in_child() {
    FORKING.store(0, Ordering::SeqCst);
    READERS.store(0, Ordering::SeqCst);
    let _ = NEVER_WAITS.try_with(|never_waits| never_waits.set(false));
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::loader::elf::each_image;

    fn read_all() {
        each_image(&mut |_| ControlFlow::Continue(()));
    }

    /// Without the handlers a child hangs within a few forks.
    #[test]
    fn child_can_read_the_list_although_threads_of_its_parent_read_it_all_the_time() {
        assert!(register_fork_handlers());
        let end = AtomicBool::new(false);
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    while !end.load(Ordering::SeqCst) {
                        read_all();
                    }
                });
            }
            let failure = (0..200).map(|_| status_of_a_child()).find(|status| *status != 0);
            end.store(true, Ordering::SeqCst);
            assert_eq!(failure, None, "the status of a child");
        });
    }

    fn status_of_a_child() -> i32 {
        // SAFETY: the child makes system calls, and calls `read_all`, which takes the lock that is tested.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                // Ends a child that hangs.
                libc::alarm(20);
                read_all();
                libc::_exit(0);
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            status
        }
    }
}
