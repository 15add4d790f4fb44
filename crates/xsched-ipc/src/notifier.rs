//! The notifier: how a process wakes its scheduler. An eventfd, so that the scheduler can wait for several at once.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// Wakes a scheduler with one write that never blocks. Several notifications before the scheduler reads them count as one.
#[derive(Debug)]
pub struct Notifier(OwnedFd);

impl Notifier {
    /// Creates a notifier.
    pub fn new() -> rustix::io::Result<Self> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self)
    }

    /// Wraps a descriptor that was passed to this process.
    #[must_use]
    pub fn attach(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// A second handle on the same notifier.
    pub fn try_clone(&self) -> std::io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Wakes the scheduler.
    pub fn notify(&self) {
        // Fails if the counter is full: then a notification is pending.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Clears all notifications so far.
    pub fn acknowledge(&self) {
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
