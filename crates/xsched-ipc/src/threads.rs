//! Threads that the library starts in a program.

use std::io;
use std::mem::MaybeUninit;

/// The threads need little. Pages that they never touch take no memory.
const STACK_SIZE: usize = 256 * 1024;

/// Starts a thread with all signals blocked: signals to the process are for the program's own threads.
pub(crate) fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let builder = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_SIZE);
    without_signals(|| builder.spawn(work)).map(drop)
}

/// Calls `work` with all signals blocked on this thread. A thread that `work` starts keeps them blocked.
pub fn without_signals<R>(work: impl FnOnce() -> R) -> R {
    let _blocked = BlockedSignals::all();
    work()
}

/// Blocks all signals on this thread until it is dropped. Holds the previous mask.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn all() -> Self {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: both point to memory for a signal set; `sigfillset` fills the first, `pthread_sigmask` the second, and
        // neither fails with these arguments.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: `all` has initialized the set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}
