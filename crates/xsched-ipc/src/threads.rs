//! Threads of ours in somebody else's program.

use std::io;
use std::mem::MaybeUninit;

/// Little is done on them; what is not touched costs nothing anyway.
const STACK: usize = 256 * 1024;

/// Starts a thread that takes none of the program's signals: they are for the program's own threads.
pub(crate) fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let builder = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK);
    without_signals(|| builder.spawn(work)).map(drop)
}

/// Does something with all signals blocked on this thread. A thread that is started by it has them blocked for good.
pub fn without_signals<R>(work: impl FnOnce() -> R) -> R {
    let _masked = Masked::all();
    work()
}

/// All signals are blocked on this thread until this is dropped.
struct Masked(libc::sigset_t);

impl Masked {
    fn all() -> Self {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: both point at memory for a signal set; `sigfillset` fills one, `pthread_sigmask` the other, and
        // neither fails with these arguments.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        // SAFETY: the set was filled in by `all`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}
