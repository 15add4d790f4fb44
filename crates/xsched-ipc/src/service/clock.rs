//! The timer that wakes the service when nobody rings.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use xsched_core::Nanos;

/// A timer on the monotonic clock.
pub(super) struct Clock {
    fd: OwnedFd,
    /// When it will ring.
    armed: Option<Nanos>,
}

impl Clock {
    pub(super) fn new() -> rustix::io::Result<Self> {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        Ok(Self { fd, armed: None })
    }

    /// It has rung.
    pub(super) fn answer(&mut self) {
        let _ = rustix::io::read(&self.fd, &mut [0_u8; 8]);
        self.armed = None;
    }

    /// Rings no later than `at`. It may ring before: setting it back would cost more than waking up once for nothing.
    pub(super) fn wake_at(&mut self, at: Option<Nanos>) {
        let Some(at) = at.filter(|at| self.armed.is_none_or(|armed| *at < armed)) else { return };
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec {
            tv_sec: i64::try_from(at.0 / 1_000_000_000).unwrap_or(i64::MAX),
            // Zero would disarm it.
            tv_nsec: i64::try_from((at.0 % 1_000_000_000).max(1)).unwrap_or(1),
        };
        let ring = Itimerspec { it_interval: zero, it_value: value };
        if timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &ring).is_ok() {
            self.armed = Some(at);
        }
    }
}

impl AsFd for Clock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
