//! The XQueue: a hardware queue that can be suspended and resumed.
//!
//! ```text
//!              launch, submit                          suspend
//!     Idle ──────────────────────► Ready      Running ─────────► Suspended
//!          ◄──────────────────────                    ◄─────────
//!            the device is done                         resume
//! ```
//! The two are independent: a suspended queue with work is ready and waits. Suspending and resuming may be repeated
//! without effect, and neither changes the order of what was launched or submitted.

use std::sync::{Arc, OnceLock};

use crate::command::{Outcome, Ticket, Worker};
use crate::gate::{Gate, SchedulerLink};
use crate::hal::{HalError, HwQueue, Marker};
use crate::ids::{DeviceId, QueueId};
use crate::launch_path::LaunchPath;
use crate::level::{LevelError, LevelRequest};
use crate::sync::{Mutex, Shared, lock};
use crate::window::Limit;

/// Whether a queue has work. Values are those of the reference interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum QueueState {
    /// Nothing launched that is not finished, and nobody waits to launch.
    Idle = 1,
    /// Has work that is not finished, or a thread held at the gate.
    Ready = 2,
}

/// What to wait for when suspending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Suspend {
    /// Afterwards, wait for what is already on the device: when the call returns, the device has nothing of this queue.
    pub sync_hw_queue: bool,
    /// Before, wait for every command submitted so far.
    pub wait_all: bool,
    /// Before, wait until the queue is idle.
    pub wait_idle: bool,
}

/// What to do when resuming.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resume {
    /// Discard the submitted commands that still wait.
    pub drop_commands: bool,
}

/// Why an operation on a queue failed.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The hardware did not do it.
    #[error(transparent)]
    Hardware(#[from] HalError),
    /// The worker for callback commands could not be started.
    #[error("no thread for the commands of {0}: {1}")]
    NoWorker(QueueId, std::io::Error),
    /// It is being destroyed.
    #[error("{0} takes no more commands: it is being destroyed")]
    Finished(QueueId),
}

/// A point on a queue that other queues can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedEvent {
    /// Whose point it is.
    pub queue: QueueId,
    /// Reached when this marker of that queue completes.
    pub marker: Marker,
}

/// A handle on a hardware queue through which it is scheduled.
pub struct XQueue {
    id: QueueId,
    launch_path: Arc<LaunchPath>,
    worker: OnceLock<Worker>,
    /// Held while the worker is started, so that there is only one.
    starting: Mutex<()>,
}

impl XQueue {
    /// Takes control of a hardware queue. Fails if the device lacks the level asked for.
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

    /// Its name.
    #[must_use]
    pub fn id(&self) -> QueueId {
        self.id
    }

    /// The device it runs on.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.launch_path.hw().device()
    }

    /// Its way to the device.
    #[must_use]
    pub fn launch_path(&self) -> &Arc<LaunchPath> {
        &self.launch_path
    }

    /// Calls `real` on this thread, exactly once, as soon as the queue may launch.
    #[inline]
    pub fn launch<R>(&self, real: impl FnOnce() -> R) -> R {
        self.launch_path.launch(real)
    }

    /// Hands over a command to be launched, in order, when it is this queue's turn.
    pub fn submit(&self, launch: impl FnOnce() + Send + 'static) -> Result<Ticket, QueueError> {
        self.start_worker()?.submit(&self.launch_path, Box::new(launch)).ok_or(QueueError::Finished(self.id))
    }

    /// Dependencies while so many commands wait that no more should be submitted. Not at all while the queue is stopped.
    pub fn wait_for_room(&self) {
        if let Some(worker) = self.worker.get() {
            worker.wait_for_room(&self.launch_path);
        }
    }

    /// Has commands launched on the thread that submits them, which waits while the queue is stopped. To be said before
    /// the first is submitted; answers whether it was.
    pub fn launch_where_submitted(&self) -> bool {
        let _one_at_a_time = lock(&self.starting);
        self.drive();
        self.worker.set(Worker::without_thread()).is_ok()
    }

    /// Whether commands were submitted, or can be without starting a thread.
    #[must_use]
    pub fn has_worker(&self) -> bool {
        self.worker.get().is_some()
    }

    /// Whether commands are launched on the thread that submits them.
    #[must_use]
    pub fn launches_where_submitted(&self) -> bool {
        self.worker.get().is_some_and(|worker| !worker.has_thread())
    }

    /// Starts the thread that launches commands, unless there is one.
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
        self.drive();
        let worker =
            Worker::start(Arc::clone(&self.launch_path)).map_err(|e| QueueError::NoWorker(self.id, e))?;
        Ok(self.worker.get_or_init(|| worker))
    }

    /// From now on there is somebody to wait for: every launch counts, and no more is in flight than the reference has.
    fn drive(&self) {
        self.launch_path.gate().count_all();
        if !self.launch_path.has_chosen_limit() {
            self.set_limit(Limit::count(Limit::DEFAULT_THRESHOLD, Limit::DEFAULT_BATCH_SIZE).ok());
        }
    }

    /// Cannot be suspended any more, takes no more commands, and waits until those that wait have been launched: nothing
    /// of the program's runs here afterwards. Does not wait if a command of this queue asks for it.
    pub fn finish(&self) {
        self.launch_path.release();
        // A device that refuses has lost the queue already.
        let _ = self.launch_path.enforce();
        if let Some(worker) = self.worker.get() {
            worker.finish();
        }
    }

    /// How many commands wait here or are in flight, as far as they are counted.
    #[must_use]
    pub fn commands(&self) -> u64 {
        let waiting = self.worker.get().map_or(0, Worker::waiting) as u64;
        waiting + u64::from(self.launch_path.in_flight())
    }

    /// Dependencies until a submitted command has completed on the device, or was dropped.
    pub fn wait(&self, ticket: &Ticket) -> Result<Outcome, QueueError> {
        match self.worker.get() {
            Some(worker) => Ok(worker.wait(&self.launch_path, ticket)?),
            // Nothing was ever submitted here: the ticket is another queue's.
            None => Ok(Outcome::Dropped),
        }
    }

    /// Dependencies until every command submitted so far has completed on the device.
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
        let commands_wait = self.worker.get().is_some_and(|worker| !worker.is_empty());
        if commands_wait || !self.launch_path.poll_idle() || self.launch_path.gate().is_ready() {
            QueueState::Ready
        } else {
            QueueState::Idle
        }
    }

    /// Stops new launches at once, and what the device holds as far as the level reaches. May be repeated; a queue
    /// that is suspended already has nothing left to wait for.
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
            let more_came = how.wait_idle && self.worker.get().is_some_and(|worker| !worker.is_empty());
            if !more_came {
                break;
            }
            self.launch_path.open();
            self.wait_all()?;
        }
        Ok(self.launch_path.enforce()?)
    }

    /// As [`XQueue::suspend`] for a command of this queue: the launch it is part of is not waited for.
    pub fn suspend_from_command(&self) -> Result<(), QueueError> {
        self.launch_path.close_without_waiting();
        Ok(self.launch_path.enforce()?)
    }

    /// Lets launches go on where they were stopped. May be repeated.
    pub fn resume(&self, how: Resume) -> Result<(), QueueError> {
        if how.drop_commands
            && let Some(worker) = self.worker.get()
        {
            worker.drop_pending();
        }
        self.launch_path.open();
        Ok(self.launch_path.enforce()?)
    }

    /// Limits what is in flight from now on, whatever the scheduler asks for; `None` leaves it to the scheduler.
    pub fn set_limit(&self, limit: Option<Limit>) {
        self.launch_path.set_limit(limit);
        self.launch_path.gate().throttle_always(limit.is_some());
    }

    /// Notes a point that other queues can wait for. Nothing is noted while nobody competes: then nobody is held, and
    /// nothing needs to be inherited.
    #[must_use]
    pub fn record(&self) -> Option<RecordedEvent> {
        if self.launch_path.gate().is_free() {
            return None;
        }
        self.launch_path.mark().map(|marker| RecordedEvent { queue: self.id, marker })
    }

    /// Whether a point recorded on this queue has been reached.
    #[must_use]
    pub fn has_reached(&self, event: RecordedEvent) -> bool {
        event.queue == self.id && self.launch_path.hw().progress().marker >= event.marker
    }
}

impl Drop for XQueue {
    /// What was suspended is let go: a queue nobody can resume any more must not hold work for ever.
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
    fn a_queue_whose_gate_moves_keeps_what_its_program_wanted() {
        let old = gate();
        old.give(Order::Yield);
        let hw = Arc::new(NullQueue::default());
        let queue =
            XQueue::new(QueueId(1), hw, old.clone(), Arc::new(NoScheduler), LevelRequest::Auto).unwrap();
        let launches = AtomicUsize::new(0);
        std::thread::scope(|threads| {
            threads.spawn(|| queue.launch(|| launches.fetch_add(1, Ordering::SeqCst)));
            while !old.is_ready() {
                std::thread::yield_now();
            }
            // Held by the scheduler, and now by the program too; then the scheduler is replaced.
            queue.suspend(Suspend::default()).unwrap();
            let new = gate();
            queue.launch_path().move_to(new.clone());
            assert!(new.is_closed() && !old.is_stopped());
            while !new.is_ready() {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(2));
            assert_eq!(
                launches.load(Ordering::SeqCst),
                0,
                "launched though the program had suspended the queue"
            );
            queue.resume(Resume::default()).unwrap();
        });
        assert_eq!(launches.load(Ordering::SeqCst), 1);
    }

    /// A device whose context was destroyed: it answers nothing any more.
    struct Gone(NullQueue);

    impl HwQueue for Gone {
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
                why: "it is gone".into(),
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

    /// It may wait for other queues as well, which stand still until this one is seen to be idle.
    #[test]
    fn who_waits_for_a_queue_is_trusted_to_see_its_end_for_a_moment() {
        let (gate, hw) = (gate(), Arc::new(NullQueue::default()));
        gate.give(Order::Leader);
        let queue =
            XQueue::new(QueueId(1), hw, gate.clone(), Arc::new(NoScheduler), LevelRequest::Auto).unwrap();
        queue.launch(|| ());
        queue.launch_path().synchronized(|| {
            let mut looks = 0;
            while !queue.launch_path().poll_idle() {
                looks += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(looks > 0 && !gate.is_ready());
        });
    }

    #[test]
    fn nobody_waits_for_ever_for_a_device_that_does_not_answer() {
        let (gate, hw) = (gate(), Arc::new(Gone(NullQueue::default())));
        gate.give(Order::Leader);
        let queue =
            XQueue::new(QueueId(1), hw, gate.clone(), Arc::new(NoScheduler), LevelRequest::Auto).unwrap();
        queue.launch(|| ());
        assert!(gate.is_ready());
        assert!(!queue.launch_path().poll_idle(), "it may answer the next time");
        let looks = (0..1_000).find(|_| queue.launch_path().poll_idle());
        assert!(looks.is_some() && !gate.is_ready());
    }
}
