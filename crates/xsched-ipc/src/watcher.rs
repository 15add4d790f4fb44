//! The watcher thread of a scheduled process: finds out which queues have become idle and which dependencies are resolved.
//!
//! It places markers. A hardware queue that is full blocks it, as it would block any launch. Therefore it is a thread of its
//! own: the enforcers must not be delayed.
//!
//! It also notifies the scheduler on behalf of the launching threads of leaders. They wake only this thread, which runs under
//! `SCHED_BATCH` and so never preempts them. Beside a sync-bound queue it has to be prompt instead: it reports the end of a
//! request, for which evicted tasks wait.
//!
//! It samples tasks that are alone on their device: see [`crate::sampler`]. While a tool traces kernels, it sends their names to the
//! service.

use std::sync::{Arc, Weak};
use std::time::Duration;

use xsched_core::{Nanos, Order, SchedulerLink as _};

use crate::kernel_log;
use crate::process_threads::{ORDER_WAIT_TIMEOUT, WATCHER_WAKE_MASK, repeat_on_orders};
use crate::sampler::Sampler;
use crate::scheduled_process::ScheduledProcess;
use crate::scheduled_queue::ScheduledQueue;
use crate::threads::{self, CpuScheduling};

/// How often a busy queue is polled while the scheduler needs to know when it becomes idle.
const BUSY_QUEUE_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// How often a busy queue is polled that has not launched since the last poll: other tasks may wait for its end.
const QUIET_QUEUE_POLL_INTERVAL: Duration = Duration::from_micros(250);

/// The body of the watcher thread. Returns when the process is gone.
pub(crate) fn run(process: &Weak<ScheduledProcess>) {
    let mut scheduling = CpuScheduling::Batch;
    let mut sampler = Sampler::default();
    repeat_on_orders(process, WATCHER_WAKE_MASK, |process| {
        let timeout = watch(process);
        attend_to_deferral(process);
        let queues = process.queues();
        let timeout = timeout.min(sampler.sample(process, &queues));
        let timeout = timeout.min(kernel_log::send_to_service(process, &queues));
        let wanted = scheduling_beside(&queues);
        if wanted != std::mem::replace(&mut scheduling, wanted) {
            threads::schedule_this_thread(wanted);
        }
        Some(timeout)
    });
}

/// Publishes why launches are not deferred, and starts the thread that releases deferred launches, if it is needed.
fn attend_to_deferral(process: &ScheduledProcess) {
    let deferral = process.deferral_handle();
    process.binding().page.set_not_deferred(deferral.reasons());
    if deferral.take_timer_request() {
        let timed = Arc::clone(deferral);
        let sleep_until = |at: Nanos| std::thread::sleep((at - Nanos::now()).into());
        let started =
            threads::start("xsched-defer", CpuScheduling::Prompt, move || timed.run_timer(sleep_until));
        if started.is_err() {
            deferral.timer_not_started();
        }
    }
}

fn scheduling_beside(queues: &[Arc<ScheduledQueue>]) -> CpuScheduling {
    let is_sync_bound = queues.iter().any(|queue| queue.launch_path().gate().is_sync_bound());
    if is_sync_bound { CpuScheduling::Prompt } else { CpuScheduling::Batch }
}

/// Polls all queues of the process. Returns how soon to poll again.
fn watch(process: &ScheduledProcess) -> Duration {
    let mut timeout = ORDER_WAIT_TIMEOUT;
    process.relay_notification();
    if process.binding().page.count_poll() {
        process.notify();
    }
    let queues = process.queues();
    for queue in &queues {
        queue.launch_path().notify_of_blocked_launch();
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
        // Also if the queue was busy before, or cannot be marked busy by this thread: the first launch of a new task may wait
        // until the scheduler knows.
        process.notify();
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
