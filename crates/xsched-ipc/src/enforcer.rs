//! The enforcer threads: one for each device of a scheduled process. Each makes its device follow the orders in the page.
//!
//! ```text
//!   the scheduler writes orders and wakes the page's futex
//!      ├─► xsched-enf-0: queues of the first device  ─► preempt, restore
//!      └─► xsched-enf-1: queues of the second device ─► preempt, restore
//! ```
//!
//! A platform may block for 10 ms until a device has stopped. That delays the orders for this device only, because every
//! device has an enforcer of its own. An enforcer never waits for work to complete.
//!
//! An enforcer also frees its queues if the scheduler has died: a dead scheduler would hold them until the process ends.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use xsched_core::{DeviceId, HEARTBEAT, Order, SchedulerLink as _};

use crate::process_threads::{ENFORCER_WAKE_MASK, ORDER_WAIT_TIMEOUT, repeat_on_orders};
use crate::scheduled_process::ScheduledProcess;
use crate::scheduled_queue::ScheduledQueue;

/// How long an enforcer stays after the last queue of its device is gone. A program that creates a stream for each piece of
/// work must not start a thread for each.
const EXIT_DELAY: Duration = Duration::from_secs(1);

/// The body of an enforcer thread. Returns when the process is gone, or when the device has had no queue for
/// [`EXIT_DELAY`].
pub(crate) fn run(process: &Weak<ScheduledProcess>, device: DeviceId) {
    let mut without_queues_since = None;
    repeat_on_orders(process, ENFORCER_WAKE_MASK, |process| {
        let queues = process.queues_on(device);
        if !queues.is_empty() {
            without_queues_since = None;
            return Some(enforce(process, &queues));
        }
        let since: Instant = *without_queues_since.get_or_insert_with(Instant::now);
        let exits = since.elapsed() >= EXIT_DELAY && process.threads().end_enforcer(process, device);
        (!exits).then_some(EXIT_DELAY)
    });
}

/// Carries out the orders of one device's queues. Returns how long to wait for the next order at most.
fn enforce(process: &ScheduledProcess, queues: &[Arc<ScheduledQueue>]) -> Duration {
    let mut timeout = ORDER_WAIT_TIMEOUT;
    for queue in queues {
        let (launch_path, gate) = (queue.launch_path(), queue.launch_path().gate());
        if gate.order().stops() {
            timeout = HEARTBEAT;
            if !process.is_alive() {
                gate.set_order(Order::Free);
            }
        }
        launch_path.report_deferred_idle();
        launch_path.report_unreported();
        launch_path.notify_of_blocked_launch();
        // If the device refuses, the gate still holds the queue at level 1. The enforcer retries, because a queue that was
        // to resume must not stay stopped.
        if launch_path.enforce().is_err() {
            timeout = HEARTBEAT;
        }
    }
    // After all queues: a device may stop the running command only when the last of its queues was ordered to stop.
    let mut is_changed = false;
    for queue in queues {
        is_changed |= queue.publish_drained(queue.launch_path().gate().order() == Order::Drain);
    }
    if is_changed {
        process.notify();
    }
    timeout
}
