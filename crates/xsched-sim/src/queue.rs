//! One hardware queue, as programs launch on it and as the core stops it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use xsched_core::{Capabilities, DeviceId, HalError, HwQueue, Level, LevelRequest, Marker, Nanos, Progress};

use crate::device::{Attachment, Goal};
use crate::error::SimError;
use crate::model::{Model, Name, RING, Refusal, Work};
use crate::sleep::Ring;

/// A queue of a [`crate::SimDevice`]. Dropping it lets what it holds run to its end.
pub struct SimQueue {
    attachment: Arc<Attachment>,
    name: Name,
    /// The last marker placed: while it is reported, there is nothing to look for.
    marked: AtomicU64,
}

impl SimQueue {
    pub(crate) fn new(attachment: Arc<Attachment>, name: Name) -> Self {
        Self { attachment, name, marked: AtomicU64::new(0) }
    }

    /// Launches a command that uses the device for `length`. Blocks while the queue is full, as hardware queues do.
    pub fn launch(&self, length: Duration) -> Result<(), SimError> {
        self.submit(Work::Run(length.into()))
    }

    /// Holds back what is launched after this until `other` has reported `marker`, which may be placed later. A queue that is
    /// dropped and empty holds nobody back.
    pub fn wait_for(&self, other: &Self, marker: Marker) -> Result<(), SimError> {
        self.submit(Work::Wait { queue: other.name, marker })
    }

    /// Device time this queue has used until now.
    pub fn busy(&self) -> Result<Nanos, SimError> {
        self.attachment.with(|model| model.queue_busy(self.name))
    }

    /// How many of the launched commands have run to their end.
    pub fn finished(&self) -> Result<u64, SimError> {
        self.attachment.with(|model| model.finished(self.name))
    }

    /// How many commands, markers and waits the queue holds that are not finished.
    pub fn pending(&self) -> Result<u64, SimError> {
        self.attachment.with(|model| model.positions(self.name)).map(|(head, tail)| tail.saturating_sub(head))
    }

    /// The number of the queue on its device, as in the timeline.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.name.index
    }

    fn submit(&self, work: Work) -> Result<(), SimError> {
        let push = |model: &mut Model| match model.push(self.name, work) {
            Ok(()) => Ok(Goal::Reached),
            Err(Refusal::Full) => {
                let (_, tail) = model.positions(self.name)?;
                Ok(Goal::NotBefore(model.earliest(self.name, tail.saturating_sub(RING - 2))))
            }
            Err(gone) => Err(gone),
        };
        self.attachment.wait(Nanos::MAX, push).map(|_| ())
    }

    /// Dependencies until the model has come to `time`.
    fn wait_until(&self, time: Nanos) -> Result<(), SimError> {
        let look =
            |model: &mut Model| Ok(if model.now() >= time { Goal::Reached } else { Goal::NotBefore(time) });
        self.attachment.wait(Nanos::MAX, look).map(|_| ())
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
            // Under the lock: a marker is never reported before it is known to have been placed.
            let marker = self.marked.load(Ordering::Relaxed) + 1;
            model.push(self.name, Work::Mark(marker))?;
            self.marked.store(marker, Ordering::Relaxed);
            model.ring(Ring::Mark);
            Ok(marker)
        });
        placed.map_err(self.failed("placing a marker"))
    }

    fn progress(&self) -> Progress {
        let board = self.attachment.segment.board(self.name.index);
        let known = board.read();
        let complete = known.marker >= self.marked.load(Ordering::Relaxed);
        if complete || self.attachment.segment.is_quiet(Nanos::now()) || !self.attachment.is_mine() {
            return known;
        }
        // Taking the lock brings the model to the present, giving it back brings the board there.
        drop(self.attachment.segment.try_lock(&self.attachment.locker));
        board.read()
    }

    fn wait(&self, marker: Marker, timeout: Duration) -> Result<bool, HalError> {
        let look = |model: &mut Model| {
            if model.marker(self.name)? >= marker {
                return Ok(Goal::Reached);
            }
            let place = model.position_of(self.name, marker);
            Ok(place.map_or(Goal::NotPlaced, |place| Goal::NotBefore(model.earliest(self.name, place))))
        };
        let deadline = Nanos::now() + timeout.into();
        self.attachment.wait(deadline, look).map_err(self.failed("waiting for a marker"))
    }

    fn synchronize(&self) -> Result<(), HalError> {
        let mut end = None;
        let look = |model: &mut Model| {
            let (head, tail) = model.positions(self.name)?;
            let end = *end.get_or_insert(tail);
            Ok(if head >= end { Goal::Reached } else { Goal::NotBefore(model.earliest(self.name, end)) })
        };
        self.attachment.wait(Nanos::MAX, look).map(|_| ()).map_err(self.failed("synchronizing"))
    }

    fn preempt(&self, level: Level) -> Result<(), HalError> {
        self.capabilities().negotiate(LevelRequest::Exactly(level))?;
        let stop = self.attachment.with(|model| {
            let effect = model.preempt(self.name, level)?;
            // Others may get the device sooner than they were told.
            model.ring(Ring::Change);
            Ok(effect)
        });
        stop.and_then(|effect| self.wait_until(effect)).map_err(self.failed("stopping a queue"))
    }

    fn restore(&self) -> Result<(), HalError> {
        let restored = self.attachment.with(|model| {
            model.restore(self.name)?;
            model.ring(Ring::Change);
            Ok(())
        });
        restored.map_err(self.failed("restoring a queue"))
    }
}

impl Drop for SimQueue {
    fn drop(&mut self) {
        let _ = self.attachment.with(|model| {
            model.close_queue(self.name)?;
            model.ring(Ring::Change);
            Ok(())
        });
    }
}

impl fmt::Debug for SimQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimQueue").field("number", &self.name.index).finish_non_exhaustive()
    }
}
