//! The doorbell: how programs call the scheduler. An eventfd, so that the scheduler can wait for many things at once.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// A doorbell. Ringing is one write that never blocks; several rings before the scheduler looks count as one.
#[derive(Debug)]
pub struct Notifier(OwnedFd);

impl Notifier {
    /// A new one.
    pub fn new() -> rustix::io::Result<Self> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self)
    }

    /// One that was passed to this process.
    #[must_use]
    pub fn attach(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// A second handle on the same notifier.
    pub fn try_clone(&self) -> std::io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Calls the scheduler.
    pub fn notify(&self) {
        // Full means that it was rung four billion times and not answered: once more changes nothing.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Forgets all rings so far.
    pub fn acknowledge(&self) {
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
