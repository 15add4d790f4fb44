//! The watchdog: aborts a service whose scheduling thread makes no rounds any more.
//!
//! A thread wakes the scheduling thread every 10 s and expects a round. If none comes within 10 s more, the process aborts: the
//! kernel closes all connections, which frees every program, and the service manager starts the next service. The service
//! manager receives a sign of life after every such round, if it expects one.
//!
//! Without clients the watchdog sleeps, unless the service manager expects signs of life.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::manager::{notify_manager, watchdog_timeout};
use crate::notifier::Notifier;
use crate::report::write_to_stderr;

/// How many times in a row the watchdog finds no round before it aborts. It counts its own wake-ups and not the time: a process
/// that was stopped and continued has made no rounds meanwhile.
const CHECKS: u32 = 10;

/// See the head of this file. Dropping it ends its thread.
pub(super) struct Watchdog {
    shared: Arc<Shared>,
}

struct Shared {
    /// Wakes the scheduling thread.
    notifier: Notifier,
    /// How many times the scheduling thread was woken by it.
    rounds: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    is_used: bool,
    /// The service manager expects signs of life, also without clients.
    is_managed: bool,
    is_ended: bool,
}

impl Watchdog {
    /// Starts the thread.
    pub(super) fn start(timeout: Duration) -> std::io::Result<Self> {
        let manager_timeout = watchdog_timeout();
        let shared = Arc::new(Shared {
            notifier: Notifier::new()?,
            rounds: AtomicU64::new(0),
            state: Mutex::new(State {
                is_used: false,
                is_managed: manager_timeout.is_some(),
                is_ended: false,
            }),
            changed: Condvar::new(),
        });
        // Three signs of life in the time that the manager waits: one of them may be late.
        let interval = manager_timeout.map_or(timeout, |manager| (manager / 3).min(timeout));
        let watched = Arc::clone(&shared);
        std::thread::Builder::new().name("xsched-watchdog".to_owned()).spawn(move || {
            while watched.sleep(interval, true) {
                if !watched.expect_round(timeout / CHECKS) {
                    return;
                }
                if manager_timeout.is_some() {
                    notify_manager("WATCHDOG=1");
                }
            }
        })?;
        Ok(Self { shared })
    }

    /// The scheduling thread makes a round.
    pub(super) fn acknowledge(&self) {
        self.shared.notifier.acknowledge();
        self.shared.rounds.fetch_add(1, Ordering::SeqCst);
    }

    /// Sets whether the service has clients.
    pub(super) fn set_used(&self, is_used: bool) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut state.is_used, is_used) != is_used {
            self.shared.changed.notify_one();
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).is_ended = true;
        self.shared.changed.notify_one();
    }
}

impl AsFd for Watchdog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.notifier.as_fd()
    }
}

impl Shared {
    /// Sleeps for this time. With `until_used`, sleeps on while the service has no clients. Returns false if the service ends.
    fn sleep(&self, time: Duration, until_used: bool) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while until_used && !state.is_used && !state.is_managed && !state.is_ended {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let sleeps = |state: &mut State| !state.is_ended;
        let slept = self.changed.wait_timeout_while(state, time, sleeps);
        !slept.unwrap_or_else(PoisonError::into_inner).0.is_ended
    }

    /// Wakes the scheduling thread, and aborts if it makes no round. Returns false if the service ends.
    fn expect_round(&self, check_interval: Duration) -> bool {
        let before = self.rounds.load(Ordering::SeqCst);
        self.notifier.notify();
        for _ in 0..CHECKS {
            if self.rounds.load(Ordering::SeqCst) != before {
                return true;
            }
            if !self.sleep(check_interval, false) {
                return false;
            }
        }
        if self.rounds.load(Ordering::SeqCst) != before {
            return true;
        }
        // Never blocks: a service whose output is not read has to abort, too.
        write_to_stderr(
            b"xsched: the scheduling thread makes no rounds: the service aborts; its programs run unscheduled until the next \
              service runs\n",
        );
        std::process::abort()
    }
}
