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

use std::sync::{Arc, Mutex, OnceLock};

use crate::command::{Outcome, Ticket, Worker};
use crate::gate::{Gate, Link};
use crate::hal::{HalError, HwQueue, Marker};
use crate::ids::{DeviceId, QueueId};
use crate::lane::{Lane, lock};
use crate::level::{LevelError, LevelRequest};
use crate::sync::Shared;
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
    lane: Arc<Lane>,
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
        link: Arc<dyn Link>,
        level: LevelRequest,
    ) -> Result<Self, LevelError> {
        let lane = Arc::new(Lane::new(hw, gate, link, level)?);
        Ok(Self { id, lane, worker: OnceLock::new(), starting: Mutex::new(()) })
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> QueueId {
        self.id
    }

    /// The device it runs on.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.lane.hw().device()
    }

    /// Its way to the device.
    #[must_use]
    pub fn lane(&self) -> &Arc<Lane> {
        &self.lane
    }

    /// Calls `real` on this thread, exactly once, as soon as the queue may launch.
    #[inline]
    pub fn launch<R>(&self, real: impl FnOnce() -> R) -> R {
        self.lane.launch(real)
    }

    /// Hands over a command to be launched, in order, when it is this queue's turn.
    pub fn submit(&self, launch: impl FnOnce() + Send + 'static) -> Result<Ticket, QueueError> {
        let worker = match self.worker.get() {
            Some(worker) => worker,
            None => self.start_worker()?,
        };
        Ok(worker.submit(Box::new(launch)))
    }

    fn start_worker(&self) -> Result<&Worker, QueueError> {
        let _one_at_a_time = lock(&self.starting);
        if let Some(worker) = self.worker.get() {
            return Ok(worker);
        }
        // From now on there is somebody to wait for: every launch counts.
        self.lane.gate().count_all();
        let worker = Worker::start(Arc::clone(&self.lane)).map_err(|e| QueueError::NoWorker(self.id, e))?;
        Ok(self.worker.get_or_init(|| worker))
    }

    /// Waits until a submitted command has completed on the device, or was dropped.
    pub fn wait(&self, ticket: &Ticket) -> Result<Outcome, QueueError> {
        match self.worker.get() {
            Some(worker) => Ok(worker.wait(&self.lane, ticket)?),
            // Nothing was ever submitted here: the ticket is another queue's.
            None => Ok(Outcome::Dropped),
        }
    }

    /// Waits until every command submitted so far has completed on the device.
    pub fn wait_all(&self) -> Result<(), QueueError> {
        if let Some(worker) = self.worker.get()
            && let Some(newest) = worker.newest()
        {
            worker.wait(&self.lane, &newest)?;
        }
        self.lane.synchronized(|| self.lane.hw().synchronize())?;
        Ok(())
    }

    /// Whether the queue has work.
    #[must_use]
    pub fn state(&self) -> QueueState {
        let commands_wait = self.worker.get().is_some_and(|worker| !worker.is_empty());
        if commands_wait || !self.lane.poll_idle() || self.lane.gate().is_ready() {
            QueueState::Ready
        } else {
            QueueState::Idle
        }
    }

    /// Stops new launches at once, and what the device holds as far as the level reaches. May be repeated; a queue
    /// that is suspended already has nothing left to wait for.
    pub fn suspend(&self, how: Suspend) -> Result<(), QueueError> {
        if self.lane.gate().is_closed() {
            return Ok(self.lane.enforce()?);
        }
        if how.wait_all || how.wait_idle {
            self.wait_all()?;
        }
        loop {
            self.lane.close();
            if how.sync_hw_queue || how.wait_idle {
                self.lane.synchronized(|| self.lane.hw().synchronize())?;
            }
            let more_came = how.wait_idle && self.worker.get().is_some_and(|worker| !worker.is_empty());
            if !more_came {
                break;
            }
            self.lane.open();
            self.wait_all()?;
        }
        Ok(self.lane.enforce()?)
    }

    /// Lets launches go on where they were stopped. May be repeated.
    pub fn resume(&self, how: Resume) -> Result<(), QueueError> {
        if how.drop_commands
            && let Some(worker) = self.worker.get()
        {
            worker.drop_pending();
        }
        self.lane.open();
        Ok(self.lane.enforce()?)
    }

    /// Limits what is in flight from now on, whatever the scheduler asks for; `None` leaves it to the scheduler.
    pub fn set_limit(&self, limit: Option<Limit>) {
        self.lane.set_limit(limit);
        self.lane.gate().pace_always(limit.is_some());
    }

    /// Notes a point that other queues can wait for. Nothing is noted while nobody competes: then nobody is held, and
    /// nothing needs to be inherited.
    #[must_use]
    pub fn record(&self) -> Option<RecordedEvent> {
        if self.lane.gate().is_free() {
            return None;
        }
        self.lane.mark().map(|marker| RecordedEvent { queue: self.id, marker })
    }

    /// Whether a point recorded on this queue has been reached.
    #[must_use]
    pub fn has_reached(&self, event: RecordedEvent) -> bool {
        event.queue == self.id && self.lane.hw().progress().marker >= event.marker
    }
}

impl Drop for XQueue {
    /// What was suspended is let go: a queue nobody can resume any more must not hold work for ever.
    fn drop(&mut self) {
        drop(self.worker.take());
        self.lane.open();
        let _ = self.lane.enforce();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{NullQueue, Order, Unlinked};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    fn gate() -> Shared<Gate> {
        Shared::from(Arc::new(Gate::default()))
    }

    #[test]
    fn a_queue_whose_gate_moves_keeps_what_its_program_wanted() {
        let old = gate();
        old.give(Order::Hold);
        let hw = Arc::new(NullQueue::default());
        let queue = XQueue::new(QueueId(1), hw, old.clone(), Arc::new(Unlinked), LevelRequest::Auto).unwrap();
        let launches = AtomicUsize::new(0);
        std::thread::scope(|threads| {
            threads.spawn(|| queue.launch(|| launches.fetch_add(1, Ordering::SeqCst)));
            while !old.is_ready() {
                std::thread::yield_now();
            }
            // Held by the scheduler, and now by the program too; then the scheduler is replaced.
            queue.suspend(Suspend::default()).unwrap();
            let new = gate();
            queue.lane().move_to(new.clone());
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
        fn mark(&self, _: crate::Marker) -> Result<(), HalError> {
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

    #[test]
    fn nobody_waits_for_ever_for_a_device_that_does_not_answer() {
        let (gate, hw) = (gate(), Arc::new(Gone(NullQueue::default())));
        gate.give(Order::Watched);
        let queue =
            XQueue::new(QueueId(1), hw, gate.clone(), Arc::new(Unlinked), LevelRequest::Auto).unwrap();
        queue.launch(|| ());
        assert!(gate.is_ready());
        assert!(!queue.lane().poll_idle(), "it may answer the next time");
        let looks = (0..1_000).find(|_| queue.lane().poll_idle());
        assert!(looks.is_some() && !gate.is_ready());
    }
}
