//! Fork and exit.

/// Calls `child` in every child process that this process forks, before `fork` returns there. Returns whether it was
/// registered.
///
/// A child has one thread, and locks that other threads of the parent held at the fork stay locked: `child` may make
/// system calls and write atomics, and nothing else.
#[must_use]
pub fn at_fork_in_child(child: extern "C" fn()) -> bool {
    // SAFETY: `child` is a function of this library, which is never unloaded from a process that preloaded it.
    unsafe { libc::pthread_atfork(None, None, Some(child)) == 0 }
}

/// Calls `prepare` before this process forks, and `parent` and `child` afterwards, each on the thread that forks. Returns whether they were
/// registered. As for [`at_fork_in_child`], `child` may do little.
#[must_use]
pub fn around_fork(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) -> bool {
    // SAFETY: as above.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) == 0 }
}

/// Calls `handler` when the process exits, before all handlers that were registered earlier. Returns whether it was
/// registered.
#[must_use]
pub fn at_exit(handler: extern "C" fn()) -> bool {
    // SAFETY: as above.
    unsafe { libc::atexit(handler) == 0 }
}
