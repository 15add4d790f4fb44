//! The watcher thread of a scheduled process: finds out which queues have become idle and which dependencies are resolved.
//!
//! It places markers. A hardware queue that is full blocks it, as it would block any launch. Therefore it is a thread of its
//! own: the enforcers must not be delayed.

use std::sync::{Arc, Weak};
use std::time::Duration;

use xsched_core::{Order, SchedulerLink as _};

use crate::process_threads::{ORDER_WAIT_TIMEOUT, WATCHER_WAKE_MASK, repeat_on_orders};
use crate::scheduled_process::ScheduledProcess;
use crate::scheduled_queue::ScheduledQueue;

/// How often a busy queue is polled while the scheduler needs to know when it becomes idle.
const BUSY_QUEUE_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// How often a busy queue is polled that has not launched since the last poll: other tasks may wait for its end.
const QUIET_QUEUE_POLL_INTERVAL: Duration = Duration::from_micros(250);

/// The body of the watcher thread. Returns when the process is gone.
pub(crate) fn run(process: &Weak<ScheduledProcess>) {
    repeat_on_orders(process, WATCHER_WAKE_MASK, |process| Some(watch(process)));
}

/// Polls all queues of the process. Returns how soon to poll again.
fn watch(process: &ScheduledProcess) -> Duration {
    let mut timeout = ORDER_WAIT_TIMEOUT;
    let queues = process.queues();
    for queue in &queues {
        timeout = timeout.min(watch_queue(queue, process));
    }
    let (stopped, running): (Vec<_>, Vec<_>) =
        queues.iter().partition(|queue| queue.launch_path().gate().order().stops());
    if process.set_partly_stopped(!stopped.is_empty() && !running.is_empty()) {
        if process.start_dependency_tracking() {
            // Dependencies were not tracked while all queues had the same order.
            for queue in running {
                queue.depends_on_any();
            }
        }
        // The scheduler needs the published dependencies from now on.
        process.notify();
    }
    if process.dependencies.remove_resolved() {
        process.notify();
    }
    process.set_watcher_sleeps(timeout > BUSY_QUEUE_POLL_INTERVAL);
    timeout
}

/// Polls one queue. Returns how soon to poll it again.
fn watch_queue(queue: &Arc<ScheduledQueue>, process: &ScheduledProcess) -> Duration {
    let launch_path = queue.launch_path();
    let gate = launch_path.gate();
    let (order, epoch) = (gate.order(), gate.epoch());
    let last_epoch = queue.replace_last_epoch(epoch);
    if order != Order::Free && gate.take_uncounted() {
        // The queue may have work that was launched uncounted, and that work may depend on any queue of the process.
        launch_path.assume_busy();
        if let Some(event) = queue.record() {
            process.dependencies.add_unknown(queue, event);
        }
        return BUSY_QUEUE_POLL_INTERVAL;
    }
    // A queue that launches is busy: no need to query the device.
    let is_quiet = epoch == last_epoch;
    match order {
        Order::Free | Order::Yield | Order::Evict | Order::Drain => ORDER_WAIT_TIMEOUT,
        _ if epoch.is_idle() || (is_quiet && launch_path.poll_idle()) => ORDER_WAIT_TIMEOUT,
        Order::Leader | Order::Peer | Order::Throttled
            if is_quiet || launch_path.may_have_deferred_idle() =>
        {
            QUIET_QUEUE_POLL_INTERVAL
        }
        Order::Leader | Order::Peer | Order::Throttled => BUSY_QUEUE_POLL_INTERVAL,
    }
}
