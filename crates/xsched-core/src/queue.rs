//! The XQueue: a hardware queue that can be suspended and resumed.
//!
//! ```text
//!              launch, submit                          suspend
//!     Idle ──────────────────────► Ready      Running ─────────► Suspended
//!          ◄──────────────────────                    ◄─────────
//!         everything has completed                      resume
//! ```
//! The two states are independent: a suspended queue with work is ready and waits. Suspending and resuming may be repeated
//! without effect, and neither changes the order of commands.

use std::sync::{Arc, OnceLock};

use crate::command::{Outcome, Ticket, Worker};
use crate::gate::{Gate, SchedulerLink};
use crate::hal::{HalError, HwQueue, Marker};
use crate::ids::{DeviceId, QueueId};
use crate::launch_path::LaunchPath;
use crate::level::{LevelError, LevelRequest};
use crate::sync::{Mutex, Shared, lock};
use crate::window::Limit;

/// Whether a queue has work. The values are those of the original C++ XSched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum QueueState {
    /// Everything launched has completed, and no thread is held.
    Idle = 1,
    /// Work has not completed, or a thread is held at the gate.
    Ready = 2,
}

/// What [`XQueue::suspend`] waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Suspend {
    /// After stopping launches, wait until the device has completed everything of this queue.
    pub sync_hw_queue: bool,
    /// First wait for every command submitted so far.
    pub wait_all: bool,
    /// First wait until the queue is idle.
    pub wait_idle: bool,
}

/// What [`XQueue::resume`] does with submitted commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resume {
    /// Discard the submitted commands that were not launched.
    pub drop_commands: bool,
}

/// Why an operation on a queue failed.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The hardware queue returned an error.
    #[error(transparent)]
    Hardware(#[from] HalError),
    /// The thread for callback commands could not be started.
    #[error("cannot start a thread for the commands of {0}: {1}")]
    NoWorker(QueueId, std::io::Error),
    /// The queue is being destroyed.
    #[error("{0} accepts no more commands: it is being destroyed")]
    Finished(QueueId),
}

/// A point on a queue that other queues can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedEvent {
    /// The queue on which it was recorded.
    pub queue: QueueId,
    /// The marker of that queue that completes when the point is reached.
    pub marker: Marker,
}

/// A scheduled hardware queue.
pub struct XQueue {
    id: QueueId,
    launch_path: Arc<LaunchPath>,
    worker: OnceLock<Worker>,
    /// Held while the worker is started, so that only one is.
    starting: Mutex<()>,
}

impl XQueue {
    /// Schedules a hardware queue. Fails if the device lacks the requested level.
    pub fn new(
        id: QueueId,
        hw: Arc<dyn HwQueue>,
        gate: Shared<Gate>,
        link: Arc<dyn SchedulerLink>,
        level: LevelRequest,
    ) -> Result<Self, LevelError> {
        let launch_path = Arc::new(LaunchPath::new(hw, gate, link, level)?);
        Ok(Self { id, launch_path, worker: OnceLock::new(), starting: Mutex::new(()) })
    }

    /// The id.
    #[must_use]
    pub fn id(&self) -> QueueId {
        self.id
    }

    /// The device of the hardware queue.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.launch_path.hw().device()
    }

    /// The path of its launches to the device.
    #[must_use]
    pub fn launch_path(&self) -> &Arc<LaunchPath> {
        &self.launch_path
    }

    /// Calls `real` on this thread, exactly once, as soon as the queue may launch.
    #[inline]
    pub fn launch<R>(&self, real: impl FnOnce() -> R) -> R {
        self.launch_path.launch(real)
    }

    /// Submits a command, which is launched after those submitted before it, as soon as launching is allowed.
    pub fn submit(&self, launch: impl FnOnce() + Send + 'static) -> Result<Ticket, QueueError> {
        self.start_worker()?.submit(&self.launch_path, Box::new(launch)).ok_or(QueueError::Finished(self.id))
    }

    /// Waits while the queue has too many pending commands. Returns at once while the queue is stopped.
    pub fn wait_for_room(&self) {
        if let Some(worker) = self.worker.get() {
            worker.wait_for_room(&self.launch_path);
        }
    }

    /// Launches commands on the thread that submits them, which waits while the queue is stopped. Returns false if a command
    /// was submitted before.
    pub fn launch_where_submitted(&self) -> bool {
        let _one_at_a_time = lock(&self.starting);
        self.prepare_for_commands();
        self.worker.set(Worker::without_thread()).is_ok()
    }

    /// Whether commands were submitted, or are launched on the thread that submits them.
    #[must_use]
    pub fn has_worker(&self) -> bool {
        self.worker.get().is_some()
    }

    /// Whether commands are launched on the thread that submits them.
    #[must_use]
    pub fn launches_where_submitted(&self) -> bool {
        self.worker.get().is_some_and(|worker| !worker.has_thread())
    }

    /// Starts the thread that launches submitted commands, unless it runs.
    pub fn start(&self) -> Result<(), QueueError> {
        self.start_worker().map(drop)
    }

    fn start_worker(&self) -> Result<&Worker, QueueError> {
        if let Some(worker) = self.worker.get() {
            return Ok(worker);
        }
        let _one_at_a_time = lock(&self.starting);
        if let Some(worker) = self.worker.get() {
            return Ok(worker);
        }
        self.prepare_for_commands();
        let worker =
            Worker::start(Arc::clone(&self.launch_path)).map_err(|e| QueueError::NoWorker(self.id, e))?;
        Ok(self.worker.get_or_init(|| worker))
    }

    /// Counts every launch from now on, so that threads can wait for commands, and limits the window as the original C++ XSched
    /// does.
    fn prepare_for_commands(&self) {
        self.launch_path.gate().count_all();
        if !self.launch_path.has_chosen_limit() {
            self.set_limit(Limit::count(Limit::DEFAULT_THRESHOLD, Limit::DEFAULT_BATCH_SIZE).ok());
        }
    }

    /// Prepares the queue for its destruction: it can no longer be suspended, accepts no more commands, and launches those that
    /// are pending before this returns. Does not wait if a command of this queue calls it.
    pub fn finish(&self) {
        self.launch_path.release();
        // A device that rejects this has lost the queue.
        let _ = self.launch_path.enforce();
        if let Some(worker) = self.worker.get() {
            worker.finish();
        }
    }

    /// How many commands are pending or, as far as they are counted, in flight.
    #[must_use]
    pub fn commands(&self) -> u64 {
        let pending = self.worker.get().map_or(0, Worker::pending) as u64;
        pending + u64::from(self.launch_path.in_flight())
    }

    /// Waits until a submitted command has completed on the device or was dropped.
    pub fn wait(&self, ticket: &Ticket) -> Result<Outcome, QueueError> {
        match self.worker.get() {
            Some(worker) => Ok(worker.wait(&self.launch_path, ticket)?),
            // No command was submitted to this queue: the ticket belongs to another queue.
            None => Ok(Outcome::Dropped),
        }
    }

    /// Waits until every command submitted so far has completed on the device.
    pub fn wait_all(&self) -> Result<(), QueueError> {
        if let Some(worker) = self.worker.get()
            && let Some(newest) = worker.newest()
        {
            worker.wait(&self.launch_path, &newest)?;
        }
        self.launch_path.synchronized(|| self.launch_path.hw().synchronize())?;
        Ok(())
    }

    /// Whether the queue has work.
    #[must_use]
    pub fn state(&self) -> QueueState {
        let has_pending = self.worker.get().is_some_and(|worker| !worker.is_empty());
        if has_pending || !self.launch_path.poll_idle() || self.launch_path.gate().is_ready() {
            QueueState::Ready
        } else {
            QueueState::Idle
        }
    }

    /// Stops new launches at once, and work on the device as far as the level allows. May be repeated; a queue that is
    /// suspended already is not waited for.
    pub fn suspend(&self, how: Suspend) -> Result<(), QueueError> {
        if self.launch_path.gate().is_closed() {
            return Ok(self.launch_path.enforce()?);
        }
        if how.wait_all || how.wait_idle {
            self.wait_all()?;
        }
        loop {
            self.launch_path.close();
            if how.sync_hw_queue || how.wait_idle {
                self.launch_path.synchronized(|| self.launch_path.hw().synchronize())?;
            }
            let has_new_commands =
                how.wait_idle && self.worker.get().is_some_and(|worker| !worker.is_empty());
            if !has_new_commands {
                break;
            }
            self.launch_path.open();
            self.wait_all()?;
        }
        Ok(self.launch_path.enforce()?)
    }

    /// As [`XQueue::suspend`], called by a command of this queue: its own launch is not waited for.
    pub fn suspend_from_command(&self) -> Result<(), QueueError> {
        self.launch_path.close_without_waiting();
        Ok(self.launch_path.enforce()?)
    }

    /// Resumes launches and the work on the device. May be repeated.
    pub fn resume(&self, how: Resume) -> Result<(), QueueError> {
        if how.drop_commands
            && let Some(worker) = self.worker.get()
        {
            worker.drop_pending();
        }
        self.launch_path.open();
        Ok(self.launch_path.enforce()?)
    }

    /// Limits the in-flight window whatever the scheduler's order; `None` leaves it to the scheduler.
    pub fn set_limit(&self, limit: Option<Limit>) {
        self.launch_path.set_limit(limit);
        self.launch_path.gate().throttle_always(limit.is_some());
    }

    /// Records a point that other queues can wait for. `None` while the task is alone on its device: then no task is held, and
    /// no dependency matters.
    #[must_use]
    pub fn record(&self) -> Option<RecordedEvent> {
        if self.launch_path.gate().is_free() {
            return None;
        }
        self.launch_path.mark().map(|marker| RecordedEvent { queue: self.id, marker })
    }

    /// Whether the device has reached a point recorded on this queue.
    #[must_use]
    pub fn has_reached(&self, event: RecordedEvent) -> bool {
        event.queue == self.id && self.launch_path.hw().progress().marker >= event.marker
    }
}

impl Drop for XQueue {
    /// Resumes the queue: after this the program cannot do so, and its work must complete.
    fn drop(&mut self) {
        drop(self.worker.take());
        self.launch_path.open();
        let _ = self.launch_path.enforce();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{NoScheduler, NullQueue, Order};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    fn gate() -> Shared<Gate> {
        Shared::from(Arc::new(Gate::default()))
    }

    #[test]
    fn queue_that_moves_to_another_gate_stays_suspended() {
        let old = gate();
        old.set_order(Order::Yield);
        let hw = Arc::new(NullQueue::default());
        let queue =
            XQueue::new(QueueId(1), hw, old.clone(), Arc::new(NoScheduler), LevelRequest::Auto).unwrap();
        let launches = AtomicUsize::new(0);
        std::thread::scope(|threads| {
            threads.spawn(|| queue.launch(|| launches.fetch_add(1, Ordering::SeqCst)));
            while !old.is_ready() {
                std::thread::yield_now();
            }
            // Held by the scheduler and suspended by the program; then the scheduler is replaced.
            queue.suspend(Suspend::default()).unwrap();
            let new = gate();
            queue.launch_path().move_to(new.clone());
            assert!(new.is_closed() && !old.is_stopped());
            while !new.is_ready() {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(2));
            assert_eq!(launches.load(Ordering::SeqCst), 0, "launched while the program suspended the queue");
            queue.resume(Resume::default()).unwrap();
        });
        assert_eq!(launches.load(Ordering::SeqCst), 1);
    }

    /// A device whose context was destroyed: it rejects markers.
    struct DestroyedQueue(NullQueue);

    impl HwQueue for DestroyedQueue {
        fn device(&self) -> crate::DeviceId {
            self.0.device()
        }
        fn capabilities(&self) -> &crate::Capabilities {
            self.0.capabilities()
        }
        fn mark(&self) -> Result<Marker, HalError> {
            Err(HalError::Driver {
                device: String::new(),
                what: "placing a marker",
                why: "the context was destroyed".into(),
            })
        }
        fn progress(&self) -> crate::Progress {
            self.0.progress()
        }
        fn wait(&self, marker: crate::Marker, timeout: Duration) -> Result<bool, HalError> {
            self.0.wait(marker, timeout)
        }
        fn synchronize(&self) -> Result<(), HalError> {
            self.0.synchronize()
        }
        fn preempt(&self, level: crate::Level) -> Result<(), HalError> {
            self.0.preempt(level)
        }
        fn restore(&self) -> Result<(), HalError> {
            self.0.restore()
        }
    }

    /// The thread may also wait for other queues, which are stopped until this one is found idle.
    #[test]
    fn polling_relies_on_a_synchronizing_thread_only_for_a_limited_time() {
        let (gate, hw) = (gate(), Arc::new(NullQueue::default()));
        gate.set_order(Order::Leader);
        let queue =
            XQueue::new(QueueId(1), hw, gate.clone(), Arc::new(NoScheduler), LevelRequest::Auto).unwrap();
        queue.launch(|| ());
        queue.launch_path().synchronized(|| {
            let mut polls = 0;
            while !queue.launch_path().poll_idle() {
                polls += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(polls > 0 && !gate.is_ready());
        });
    }

    #[test]
    fn queue_of_a_failed_device_counts_as_idle_after_some_polls() {
        let (gate, hw) = (gate(), Arc::new(DestroyedQueue(NullQueue::default())));
        gate.set_order(Order::Leader);
        let queue =
            XQueue::new(QueueId(1), hw, gate.clone(), Arc::new(NoScheduler), LevelRequest::Auto).unwrap();
        queue.launch(|| ());
        assert!(gate.is_ready());
        assert!(!queue.launch_path().poll_idle(), "the next marker may be accepted");
        let polls = (0..1_000).find(|_| queue.launch_path().poll_idle());
        assert!(polls.is_some() && !gate.is_ready());
    }
}
