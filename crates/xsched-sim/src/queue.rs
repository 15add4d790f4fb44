//! One hardware queue: programs launch on it, and the scheduler preempts it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use xsched_core::{Capabilities, DeviceId, HalError, HwQueue, Level, LevelRequest, Marker, Nanos, Progress};

use crate::device::{Attachment, WaitStatus};
use crate::error::SimError;
use crate::model::{Model, QUEUE_CAPACITY, QueueError, SlotId, Work};
use crate::notifier::Notification;

/// A queue of a [`crate::SimDevice`]. Dropping it lets its pending commands run to completion.
pub struct SimQueue {
    attachment: Arc<Attachment>,
    id: SlotId,
    /// The last marker placed. Once the device has reported it, progress cannot change.
    marked: AtomicU64,
}

impl SimQueue {
    pub(crate) fn new(attachment: Arc<Attachment>, id: SlotId) -> Self {
        Self { attachment, id, marked: AtomicU64::new(0) }
    }

    /// Launches a command that runs for `length`. Blocks while the queue is full, as hardware queues do.
    pub fn launch(&self, length: Duration) -> Result<(), SimError> {
        self.submit(Work::Run(length.into()))
    }

    /// Makes what is launched after this wait until `other` has reported `marker`, which may be placed later. A queue
    /// that is dropped and empty satisfies every wait.
    pub fn wait_for(&self, other: &Self, marker: Marker) -> Result<(), SimError> {
        self.submit(Work::Wait { queue: other.id, marker })
    }

    /// Device time that this queue has used so far.
    pub fn busy(&self) -> Result<Nanos, SimError> {
        self.attachment.with(|model| model.queue_busy(self.id))
    }

    /// How many of the launched commands have completed.
    pub fn finished(&self) -> Result<u64, SimError> {
        self.attachment.with(|model| model.finished(self.id))
    }

    /// How many commands, markers and waits in the queue have not completed.
    pub fn pending(&self) -> Result<u64, SimError> {
        self.attachment.with(|model| model.positions(self.id)).map(|(head, tail)| tail.saturating_sub(head))
    }

    /// The number of the queue on its device, as the timeline gives it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.id.index
    }

    fn submit(&self, work: Work) -> Result<(), SimError> {
        let push = |model: &mut Model| match model.push(self.id, work) {
            Ok(()) => Ok(WaitStatus::Reached),
            Err(QueueError::Full) => {
                let (_, tail) = model.positions(self.id)?;
                Ok(WaitStatus::NotBefore(model.earliest(self.id, tail.saturating_sub(QUEUE_CAPACITY - 2))))
            }
            Err(gone) => Err(gone),
        };
        self.attachment.wait(Nanos::MAX, push).map(|_| ())
    }

    /// Waits until the model time is `time`.
    fn wait_until(&self, time: Nanos) -> Result<(), SimError> {
        let check = |model: &mut Model| {
            Ok(if model.now() >= time { WaitStatus::Reached } else { WaitStatus::NotBefore(time) })
        };
        self.attachment.wait(Nanos::MAX, check).map(|_| ())
    }

    fn failed(&self, what: &'static str) -> impl Fn(SimError) -> HalError + use<> {
        let device = self.attachment.config().name();
        move |error| HalError::Driver { device: device.clone(), what, why: error.to_string() }
    }
}

impl HwQueue for SimQueue {
    fn device(&self) -> DeviceId {
        self.attachment.config().device
    }

    fn capabilities(&self) -> &Capabilities {
        &self.attachment.capabilities
    }

    fn mark(&self) -> Result<Marker, HalError> {
        let placed = self.attachment.with(|model| {
            // Under the lock, so that a marker is never reported before `marked` counts it.
            let marker = self.marked.load(Ordering::Relaxed) + 1;
            model.push(self.id, Work::Mark(marker))?;
            self.marked.store(marker, Ordering::Relaxed);
            model.notify(Notification::MarkerPlaced);
            Ok(marker)
        });
        placed.map_err(self.failed("placing a marker"))
    }

    fn progress(&self) -> Progress {
        let reports = self.attachment.segment.reports(self.id.index);
        let known = reports.read();
        let complete = known.marker >= self.marked.load(Ordering::Relaxed);
        if complete
            || self.attachment.segment.is_up_to_date(Nanos::now())
            || !self.attachment.is_attached_process()
        {
            return known;
        }
        // Locking advances the model to the present; unlocking publishes its reports.
        drop(self.attachment.segment.try_lock(&self.attachment.lock_owner));
        reports.read()
    }

    fn wait(&self, marker: Marker, timeout: Duration) -> Result<bool, HalError> {
        let check = |model: &mut Model| {
            if model.marker(self.id)? >= marker {
                return Ok(WaitStatus::Reached);
            }
            let place = model.position_of(self.id, marker);
            Ok(place.map_or(WaitStatus::MarkerNotPlaced, |place| {
                WaitStatus::NotBefore(model.earliest(self.id, place))
            }))
        };
        let deadline = Nanos::now() + timeout.into();
        self.attachment.wait(deadline, check).map_err(self.failed("waiting for a marker"))
    }

    fn synchronize(&self) -> Result<(), HalError> {
        let mut end = None;
        let check = |model: &mut Model| {
            let (head, tail) = model.positions(self.id)?;
            let end = *end.get_or_insert(tail);
            Ok(if head >= end {
                WaitStatus::Reached
            } else {
                WaitStatus::NotBefore(model.earliest(self.id, end))
            })
        };
        self.attachment.wait(Nanos::MAX, check).map(|_| ()).map_err(self.failed("synchronizing"))
    }

    fn preempt(&self, level: Level) -> Result<(), HalError> {
        self.capabilities().negotiate(LevelRequest::Exactly(level))?;
        let stop = self.attachment.with(|model| {
            let effect = model.preempt(self.id, level)?;
            // Other contexts may get the device earlier than their waiters computed.
            model.notify(Notification::StateChanged);
            Ok(effect)
        });
        stop.and_then(|effect| self.wait_until(effect)).map_err(self.failed("stopping a queue"))
    }

    fn restore(&self) -> Result<(), HalError> {
        let restored = self.attachment.with(|model| {
            model.restore(self.id)?;
            model.notify(Notification::StateChanged);
            Ok(())
        });
        restored.map_err(self.failed("restoring a queue"))
    }
}

impl Drop for SimQueue {
    fn drop(&mut self) {
        let _ = self.attachment.with(|model| {
            model.close_queue(self.id)?;
            model.notify(Notification::StateChanged);
            Ok(())
        });
    }
}

impl fmt::Debug for SimQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimQueue").field("number", &self.id.index).finish_non_exhaustive()
    }
}
