//! Threads that the library starts in a program.

use std::alloc::{GlobalAlloc as _, Layout, System};
use std::io;
use std::mem::MaybeUninit;

use xsched_core::Nanos;

/// The threads need little. Pages that they never touch take no memory.
const STACK_SIZE: usize = 256 * 1024;

/// How the kernel schedules a thread on machines without an idle CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CpuScheduling {
    /// As the thread that starts it.
    Inherited,
    /// Runs soon after it was woken, in place of another thread.
    Prompt,
    /// Never preempts another thread when it is woken.
    Batch,
}

/// The CPU time that a prompt thread requests at once. The kernel runs a thread that requests less earlier.
const PROMPT_RUNTIME: Nanos = Nanos::from_micros(200);

/// Starts a thread with all signals blocked: signals to the process are for the program's own threads.
pub(crate) fn start(
    name: &str,
    scheduling: CpuScheduling,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    if !has_memory_for_a_thread() {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let builder = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_SIZE);
    let work = move || {
        schedule_this_thread(scheduling);
        work();
    };
    without_signals(|| builder.spawn(work)).map(drop)
}

/// What a thread needs: its stack, and what the standard library and the C library allocate when it starts. Either aborts the program if it
/// cannot allocate that.
const THREAD_MEMORY: usize = 1 << 20;

/// Whether the C library can allocate what a thread needs.
fn has_memory_for_a_thread() -> bool {
    let layout = Layout::new::<[u8; THREAD_MEMORY]>();
    // SAFETY: the layout has a size, and the block is returned with it, unused.
    unsafe {
        let block = System.alloc(layout);
        if !block.is_null() {
            System.dealloc(block, layout);
        }
        !block.is_null()
    }
}

/// Has the kernel run the calling thread soon after it is woken. Needs no privilege.
pub fn make_this_thread_prompt() {
    schedule_this_thread(CpuScheduling::Prompt);
}

/// If the kernel refuses, the thread is scheduled as before: requests of short run times need Linux 6.12, and threads with a
/// real-time policy keep it.
pub(crate) fn schedule_this_thread(scheduling: CpuScheduling) {
    let (policy, runtime) = match scheduling {
        CpuScheduling::Inherited => return,
        CpuScheduling::Prompt => (libc::SCHED_OTHER, PROMPT_RUNTIME),
        CpuScheduling::Batch => (libc::SCHED_BATCH, Nanos::ZERO),
    };
    // SAFETY: reads the policy and the nice value of the calling thread.
    let (present, nice) = unsafe { (libc::sched_getscheduler(0), libc::getpriority(libc::PRIO_PROCESS, 0)) };
    if !matches!(present, libc::SCHED_OTHER | libc::SCHED_BATCH) {
        return;
    }
    let attributes = libc::sched_attr {
        size: u32::try_from(size_of::<libc::sched_attr>()).unwrap_or(0),
        sched_policy: u32::try_from(policy).unwrap_or(0),
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: runtime.0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the structure has the size that it states; 0 is the calling thread, and no flags are set.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

/// Calls `work` with all signals blocked on this thread. A thread that `work` starts keeps them blocked.
pub fn without_signals<R>(work: impl FnOnce() -> R) -> R {
    let _blocked = BlockedSignals::all();
    work()
}

/// Calls `work`, which returns whether the kernel has raised SIGPIPE on this thread. The program does not receive that signal.
pub(crate) fn without_sigpipe(work: impl FnOnce() -> bool) {
    let blocked = BlockedSignals::all();
    // One that the program has blocked itself stays pending.
    let was_pending = is_sigpipe_pending();
    if work() && !was_pending && is_sigpipe_pending() {
        let mut sigpipe = MaybeUninit::uninit();
        let no_wait = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `sigemptyset` initializes the set, which the other calls change and read; the signal is blocked.
        unsafe {
            libc::sigemptyset(sigpipe.as_mut_ptr());
            libc::sigaddset(sigpipe.as_mut_ptr(), libc::SIGPIPE);
            libc::sigtimedwait(sigpipe.as_ptr(), std::ptr::null_mut(), &raw const no_wait);
        }
    }
    drop(blocked);
}

fn is_sigpipe_pending() -> bool {
    let mut pending = MaybeUninit::uninit();
    // SAFETY: `sigpending` initializes the set.
    unsafe {
        libc::sigpending(pending.as_mut_ptr()) == 0 && libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1
    }
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
