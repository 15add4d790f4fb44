//! Fork and exit.

/// Has `child` called in every child that this process forks, before the fork returns there.
///
/// A child has one thread and everybody's locks as they were: `child` may make system calls and write atomics, and
/// nothing else. Answers whether it will be called.
#[must_use]
pub fn in_every_child(child: extern "C" fn()) -> bool {
    // SAFETY: `child` is a function of this library, which is never unloaded while a program runs that it was
    // preloaded into.
    unsafe { libc::pthread_atfork(None, None, Some(child)) == 0 }
}

/// Has `leave` called when the program exits, before everything that asked for the same earlier. Answers whether it
/// will be called.
#[must_use]
pub fn at_exit(leave: extern "C" fn()) -> bool {
    // SAFETY: as above.
    unsafe { libc::atexit(leave) == 0 }
}
