//! Whether the scheduler is alive, as a held process finds out: the heartbeat in its page changes every 20 ms.
//!
//! The process does not know what the value means. It measures with its own clock how long the value has stayed the same: a
//! process in another time namespace has another clock than the scheduler.

use std::sync::{Mutex, TryLockError};

use xsched_core::{HEARTBEAT, Nanos};

/// A scheduler without a heartbeat for this long counts as dead. On a busy machine its thread waits for a processor for up to 0.3 s;
/// the connection of one that was killed closes at once.
const SCHEDULER_HEARTBEAT_TIMEOUT: Nanos = Nanos::from_millis(500);

/// Observes the heartbeat of the scheduler.
#[derive(Debug, Default)]
pub(crate) struct HeartbeatMonitor(Mutex<Observation>);

#[derive(Debug, Default)]
struct Observation {
    heartbeat: u64,
    checked_at: Nanos,
    /// For how long the heartbeat has stayed the same.
    silent_for: Nanos,
}

impl HeartbeatMonitor {
    /// Whether the heartbeat has changed within [`SCHEDULER_HEARTBEAT_TIMEOUT`].
    pub(crate) fn is_fresh(&self, heartbeat: u64, now: Nanos) -> bool {
        match self.0.try_lock() {
            Ok(mut observation) => observation.is_fresh(heartbeat, now),
            Err(TryLockError::Poisoned(lock)) => lock.into_inner().is_fresh(heartbeat, now),
            // Another thread is checking. It frees the process if the scheduler is dead.
            Err(TryLockError::WouldBlock) => true,
        }
    }
}

impl Observation {
    fn is_fresh(&mut self, heartbeat: u64, now: Nanos) -> bool {
        // A held thread checks every `HEARTBEAT`. A longer time since the last check was not spent waiting for the
        // scheduler: no thread was held, the process was stopped, or the clock jumped.
        let since_last_check = (now - self.checked_at).min(HEARTBEAT.into());
        self.checked_at = now;
        if heartbeat == self.heartbeat {
            self.silent_for += since_last_check;
        } else {
            (self.heartbeat, self.silent_for) = (heartbeat, Nanos::ZERO);
        }
        self.silent_for < SCHEDULER_HEARTBEAT_TIMEOUT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scheduler_is_dead_when_its_heartbeat_has_not_changed_for_500_ms_of_waiting() {
        let monitor = HeartbeatMonitor::default();
        let is_fresh = |heartbeat, ms| monitor.is_fresh(heartbeat, Nanos::from_millis(ms));
        // The value means nothing to the process: it may be far ahead of its clock or far behind.
        assert!((1_000..1_500).step_by(50).all(|ms| is_fresh(u64::MAX, ms)));
        assert!(!is_fresh(u64::MAX, 1_500));
        assert!((1_550..2_050).step_by(50).all(|ms| is_fresh(7, ms)), "alive again");
        assert!(!is_fresh(7, 2_050));
    }

    #[test]
    fn jump_of_the_clock_is_not_the_death_of_the_scheduler() {
        let monitor = HeartbeatMonitor::default();
        assert!(monitor.is_fresh(1, Nanos::from_secs(10)));
        assert!(monitor.is_fresh(1, Nanos::from_secs(10_000)));
        assert!(monitor.is_fresh(1, Nanos::from_secs(5)));
        assert!(monitor.is_fresh(1, Nanos::from_secs(20_000)));
    }
}
