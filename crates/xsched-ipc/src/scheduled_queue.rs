//! A queue with a slot in the page its program sits on.

use std::ops::Deref;
use std::sync::{Arc, Mutex};

use xsched_core::sync::Shared;
use xsched_core::{
    Epoch, Gate, HalError, HwQueue, LevelError, LevelRequest, Limit, RecordedEvent, Resume,
    SchedulerLink as _, XQueue,
};

use crate::client::JoinError;
use crate::hinting::{self, HintFailure};
use crate::page::{Dependencies, Page, Slot};
use crate::program::{Program, lock};
use crate::protocol::{HintRequest, Settings};

/// An XQueue under the scheduler's control. Gives its slot back when it is retired or dropped.
pub struct ScheduledQueue {
    queue: XQueue,
    /// None: there was no slot left, or the queue is retired; then it runs unscheduled.
    place: Mutex<Option<Place>>,
    /// What the watcher saw of it when it looked last.
    look: Mutex<Epoch>,
    /// What it was given of its own, kept for the next scheduler.
    hint_request: Mutex<HintRequest>,
    program: Arc<Program>,
}

struct Place {
    page: Arc<Page>,
    number: usize,
    slot: Shared<Slot>,
}

impl Place {
    fn take(page: &Arc<Page>, hw: &dyn HwQueue) -> Option<Self> {
        let number = page.allocate_slot(hw.device())?;
        Some(Self { page: Arc::clone(page), number, slot: page.shared_slot(number)? })
    }

    fn gate(&self) -> Shared<Gate> {
        self.slot.project(|slot| &slot.gate)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.page.release_slot(self.number);
    }
}

impl Deref for ScheduledQueue {
    type Target = XQueue;
    fn deref(&self) -> &XQueue {
        &self.queue
    }
}

impl ScheduledQueue {
    pub(crate) fn new(
        program: &Arc<Program>,
        page: &Arc<Page>,
        hw: Arc<dyn HwQueue>,
        level: LevelRequest,
    ) -> Result<Arc<Self>, JoinError> {
        let place = Place::take(page, &*hw).ok_or(JoinError::NoSlot)?;
        let queue = XQueue::new(program.next_queue_id(), hw, place.gate(), Arc::clone(program) as _, level)?;
        let place = Mutex::new(Some(place));
        let program = Arc::clone(program);
        let joined =
            Arc::new(Self { queue, place, look: Mutex::default(), hint_request: Mutex::default(), program });
        joined.publish_settings();
        Ok(joined)
    }

    /// The number of its slot in the page, by which the scheduler knows it, as long as it has one.
    #[must_use]
    pub fn slot(&self) -> Option<usize> {
        lock(&self.place).as_ref().map(|place| place.number)
    }

    /// Gives the queue hint_request of its own, and with them a task of its own. They count when this returns, and with every
    /// scheduler that comes later.
    pub fn hint(&self, hint_request: &HintRequest) -> Result<(), HintFailure> {
        let mut own = lock(&self.hint_request);
        let merged = own.clone().with(hint_request);
        merged.applied_to(xsched_core::Hints::default())?;
        let told = match self.slot() {
            Some(slot) => hinting::hint_queue(&self.program.seat().call, slot, &merged),
            None => Ok(()),
        };
        // A service that is silent was told, and may yet hear it.
        if matches!(told, Ok(()) | Err(HintFailure::NoReply)) {
            *own = merged;
        }
        told
    }

    /// The slot it has, and what it was given of its own, if it was.
    pub(crate) fn own_hint_request(&self) -> Option<(usize, HintRequest)> {
        let hint_request = lock(&self.hint_request).clone();
        (hint_request != HintRequest::default()).then_some((self.slot()?, hint_request))
    }

    /// Limits what is in flight from now on, whatever the scheduler asks for.
    pub fn set_own_limit(&self, limit: Limit) {
        self.queue.set_limit(Some(limit));
        self.publish_settings();
    }

    /// Changes how deep the queue is stopped. Answers the level it has from now on.
    pub fn set_level(&self, level: LevelRequest) -> Result<xsched_core::Level, HalError> {
        let level = self.launch_path().set_level(level)?;
        self.publish_settings();
        Ok(level)
    }

    /// Says that what is launched here from now on waits for a point on another queue, so that the other is not held
    /// while this one may run.
    pub fn depends_on(self: &Arc<Self>, holder: &Arc<Self>, event: RecordedEvent) {
        if Arc::ptr_eq(self, holder) || holder.has_reached(event) {
            return;
        }
        self.program.waits.add(self, holder, event);
        self.program.notify();
        self.program.poll_now();
    }

    /// Says that what is on this queue now may wait for any queue of this program, until it is done.
    pub fn depends_on_any(self: &Arc<Self>) {
        if let Some(point) = self.record() {
            self.program.waits.add_unknown(self, point);
            if self.program.is_divided() {
                self.program.notify();
                self.program.poll_now();
            }
        }
    }

    /// Limits what is in flight while the scheduler asks for little of it.
    pub fn set_throttled_limit(&self, limit: Limit) {
        self.launch_path().set_limit(Some(limit));
        self.publish_settings();
    }

    /// Changes how the queue is preempted and how much of it may be in flight. Changes nothing if one is out of range.
    pub(crate) fn configure(&self, settings: Settings) -> Result<(), ConfigureError> {
        let limit = match (settings.threshold, settings.batch_size) {
            (None, None) => None,
            (threshold, batch_size) => {
                let (old_threshold, old_batch) = match self.launch_path().limit() {
                    Limit::Count { threshold, batch_size } => (threshold.into(), batch_size.into()),
                    Limit::Budget(_) => (Limit::DEFAULT_THRESHOLD, Limit::DEFAULT_BATCH_SIZE),
                };
                let threshold = threshold.unwrap_or(old_threshold);
                Some(Limit::count(threshold, batch_size.unwrap_or(old_batch.min(threshold)))?)
            }
        };
        if let Some(level) = settings.level {
            self.launch_path().set_level(level.to_string().parse::<LevelRequest>()?)?;
        }
        if let Some(limit) = limit {
            self.launch_path().set_limit(Some(limit));
        }
        self.publish_settings();
        Ok(())
    }

    /// Takes a slot in another page, and goes through the gate there from now on.
    pub(crate) fn move_to(&self, page: &Arc<Page>) {
        let mut place = lock(&self.place);
        // Who had no slot gets none now: it may be retired.
        let Some(old) = place.take() else { return };
        *place = Place::take(page, self.launch_path().hw());
        let gate = place.as_ref().map_or_else(private_gate, Place::gate);
        self.launch_path().move_to(gate);
        drop(place);
        drop(old);
        self.publish_settings();
    }

    /// The hardware queue is about to be destroyed: lets go what is stopped, and has the scheduler forget it.
    pub fn retire(&self) {
        let place = lock(&self.place).take();
        if place.is_some() {
            self.launch_path().move_to(private_gate());
            // A device that refuses has lost the queue already.
            let _ = self.queue.resume(Resume::default());
            drop(place);
            hinting::queue_left(
                &self.program.seat().call,
                lock(&self.hint_request).clone() != HintRequest::default(),
            );
            self.program.notify();
        }
    }

    /// Shows the scheduler that the device runs nothing of this queue any more, or may again. Answers whether that is
    /// news. A device that refused to stop it has been asked, and others have waited long enough.
    pub(crate) fn show_off(&self, off: bool) -> bool {
        lock(&self.place).as_ref().is_some_and(|place| place.slot.set_drained(off) != off)
    }

    /// Notes what the watcher sees now. Answers what it saw last.
    pub(crate) fn note_look(&self, now: Epoch) -> Epoch {
        std::mem::replace(&mut lock(&self.look), now)
    }

    pub(crate) fn publish_dependencies(&self, waits: Dependencies) {
        if let Some(place) = &*lock(&self.place) {
            place.slot.set_dependencies(waits);
        }
    }

    fn publish_settings(&self) {
        let level = self.launch_path().level().number();
        let (threshold, batch_size) = match self.launch_path().limit() {
            Limit::Count { threshold, batch_size } => (threshold, batch_size),
            Limit::Budget(_) => (0, 0),
        };
        if let Some(place) = &*lock(&self.place) {
            let cost =
                self.launch_path().hw().capabilities().cost(self.launch_path().level()).unwrap_or_default();
            place.slot.publish_settings(level, threshold, batch_size);
            place.slot.publish_switch_cost(cost.preempt + cost.restore);
        }
    }
}

impl Drop for ScheduledQueue {
    fn drop(&mut self) {
        self.retire();
    }
}

fn private_gate() -> Shared<Gate> {
    Shared::from(Arc::new(Gate::default()))
}

/// Why a queue's settings were not changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigureError {
    #[error(transparent)]
    Hint(#[from] xsched_core::HintError),
    #[error(transparent)]
    Level(#[from] LevelError),
    #[error(transparent)]
    Hardware(#[from] HalError),
}
