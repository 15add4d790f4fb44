//! The timer that wakes the service without a notification.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use xsched_core::Nanos;

/// A timer on the monotonic clock.
pub(super) struct Timer {
    fd: OwnedFd,
    /// The time it is set to.
    armed: Option<Nanos>,
}

impl Timer {
    pub(super) fn new() -> rustix::io::Result<Self> {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        Ok(Self { fd, armed: None })
    }

    /// Clears an expiration.
    pub(super) fn acknowledge(&mut self) {
        let _ = rustix::io::read(&self.fd, &mut [0_u8; 8]);
        self.armed = None;
    }

    /// Expires no later than `at`. It may expire earlier: to set it back costs more than one needless wake-up.
    pub(super) fn wake_at(&mut self, at: Option<Nanos>) {
        let Some(at) = at.filter(|at| self.armed.is_none_or(|armed| *at < armed)) else { return };
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec {
            tv_sec: i64::try_from(at.0 / 1_000_000_000).unwrap_or(i64::MAX),
            // Zero would disarm it.
            tv_nsec: i64::try_from((at.0 % 1_000_000_000).max(1)).unwrap_or(1),
        };
        let setting = Itimerspec { it_interval: zero, it_value: value };
        if timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &setting).is_ok() {
            self.armed = Some(at);
        }
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
