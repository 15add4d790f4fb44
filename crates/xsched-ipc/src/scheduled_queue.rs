//! A queue with a slot in the page of its process.

use std::ops::Deref;
use std::sync::{Arc, Mutex};

use xsched_core::sync::Shared;
use xsched_core::{
    Epoch, Gate, HalError, HwQueue, Level, LevelError, LevelRequest, Limit, Nanos, RecordedEvent, Resume,
    SchedulerLink as _, XQueue,
};

use crate::client::JoinError;
use crate::hinting::{self, HintFailure};
use crate::kernel_log::KernelName;
use crate::page::{Dependencies, Page, Slot};
use crate::protocol::{HintRequest, Settings};
use crate::scheduled_process::{ScheduledProcess, SchedulerBinding, lock};

/// An XQueue under the scheduler's control. Releases its slot when it is retired or dropped.
pub struct ScheduledQueue {
    queue: XQueue,
    /// None if there was no free slot, or the queue is retired: then it runs unscheduled.
    slot: Mutex<Option<AllocatedSlot>>,
    /// The epoch at the watcher's last poll.
    last_epoch: Mutex<Epoch>,
    /// The hints of this queue. They are sent to every later scheduler too.
    hint_request: Mutex<HintRequest>,
    process: Arc<ScheduledProcess>,
}

struct AllocatedSlot {
    page: Arc<Page>,
    index: usize,
    slot: Shared<Slot>,
}

impl AllocatedSlot {
    /// If the page has a scheduler, the first launch waits for that scheduler's first order.
    fn allocate(page: &Arc<Page>, has_scheduler: bool, hw: &dyn HwQueue) -> Option<Self> {
        let device = hw.device();
        let index =
            if has_scheduler { page.allocate_undecided_slot(device) } else { page.allocate_slot(device) }?;
        Some(Self { page: Arc::clone(page), index, slot: page.shared_slot(index)? })
    }

    fn gate(&self) -> Shared<Gate> {
        self.slot.project(|slot| &slot.gate)
    }
}

impl Drop for AllocatedSlot {
    fn drop(&mut self) {
        self.page.release_slot(self.index);
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
        process: &Arc<ScheduledProcess>,
        binding: &SchedulerBinding,
        hw: Arc<dyn HwQueue>,
        level: LevelRequest,
    ) -> Result<Arc<Self>, JoinError> {
        let slot = AllocatedSlot::allocate(&binding.page, binding.has_scheduler(), &*hw);
        let slot = slot.ok_or(JoinError::NoSlot)?;
        let queue = XQueue::new(process.next_queue_id(), hw, slot.gate(), Arc::clone(process) as _, level)?;
        let scheduled = Arc::new(Self {
            queue,
            slot: Mutex::new(Some(slot)),
            last_epoch: Mutex::default(),
            hint_request: Mutex::default(),
            process: Arc::clone(process),
        });
        scheduled.publish_settings();
        Ok(scheduled)
    }

    /// The index of its slot in the page, by which the scheduler identifies it. None if the queue is unscheduled.
    #[must_use]
    pub fn slot(&self) -> Option<usize> {
        lock(&self.slot).as_ref().map(|slot| slot.index)
    }

    /// Gives the queue hints of its own, which makes it a task of its own. They are in effect when this returns, and with
    /// every later scheduler.
    pub fn hint(&self, hint_request: &HintRequest) -> Result<(), HintFailure> {
        let mut current = lock(&self.hint_request);
        let merged = current.clone().with(hint_request);
        merged.applied_to(xsched_core::Hints::default())?;
        let result = match self.slot() {
            Some(slot) => hinting::hint_queue(&self.process.binding().endpoint, slot, &merged),
            None => Ok(()),
        };
        // A service that did not reply may still receive the request.
        if matches!(result, Ok(()) | Err(HintFailure::NoReply)) {
            *current = merged;
        }
        result
    }

    /// The slot and the hints of this queue, if it has both.
    pub(crate) fn own_hint_request(&self) -> Option<(usize, HintRequest)> {
        let hint_request = lock(&self.hint_request).clone();
        (hint_request != HintRequest::default()).then_some((self.slot()?, hint_request))
    }

    /// As [`LaunchPath::launch`], for a kernel. If a tool traces the names of kernels and the launch is counted, `name` is called after
    /// it and the name recorded.
    ///
    /// [`LaunchPath::launch`]: xsched_core::LaunchPath::launch
    #[inline]
    pub fn launch_kernel(&self, real: impl FnOnce(), name: impl FnOnce() -> Option<KernelName>) {
        self.launch_path().launch_then(real, |()| {
            let log = &self.process.kernel_log;
            if log.is_wanted()
                && let Some(name) = name()
            {
                log.record(self.id(), &name, Nanos::now());
            }
        });
    }

    /// Limits the work in flight from now on, whatever the order.
    pub fn set_own_limit(&self, limit: Limit) {
        self.queue.set_limit(Some(limit));
        self.publish_settings();
    }

    /// Changes the preemption level. Returns the level in effect from now on.
    pub fn set_level(&self, level: LevelRequest) -> Result<xsched_core::Level, HalError> {
        let level = self.launch_path().set_level(level)?;
        self.publish_settings();
        Ok(level)
    }

    /// Records that later launches of this queue depend on an event of `producer`, so that the scheduler does not hold
    /// `producer` while this queue may run.
    pub fn depends_on(self: &Arc<Self>, producer: &Arc<Self>, event: RecordedEvent) {
        if Arc::ptr_eq(self, producer) || producer.has_reached(event) {
            return;
        }
        self.process.dependencies.add(self, producer, event);
        self.process.notify();
        self.process.poll_now();
    }

    /// Records that the work now in this queue may depend on any queue of the process, until it has completed.
    pub fn depends_on_any(self: &Arc<Self>) {
        if let Some(event) = self.record() {
            self.process.dependencies.add_unknown(self, event);
            if self.process.is_partly_stopped() {
                self.process.notify();
                self.process.poll_now();
            }
        }
    }

    /// Limits the work in flight while the queue is throttled.
    pub fn set_throttled_limit(&self, limit: Limit) {
        self.launch_path().set_limit(Some(limit));
        self.publish_settings();
    }

    /// Changes the preemption level and the limit of work in flight. Changes nothing if a value is out of range.
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

    /// Allocates a slot in the page of another binding and uses the gate there from now on.
    pub(crate) fn move_to(&self, binding: &SchedulerBinding) {
        let mut slot = lock(&self.slot);
        // A queue without a slot stays without: it may be retired.
        let Some(old) = slot.take() else { return };
        *slot = AllocatedSlot::allocate(&binding.page, binding.has_scheduler(), self.launch_path().hw());
        let gate = slot.as_ref().map_or_else(private_gate, AllocatedSlot::gate);
        self.launch_path().move_to(gate);
        drop(slot);
        drop(old);
        self.publish_settings();
    }

    /// Resumes the queue if it is stopped, and removes it from the scheduler. Call this before the hardware queue is
    /// destroyed.
    pub fn retire(&self) {
        let slot = lock(&self.slot).take();
        if slot.is_some() {
            self.launch_path().move_to(private_gate());
            // If the device refuses, it has lost the queue already.
            let _ = self.queue.resume(Resume::default());
            drop(slot);
            let had_hints = *lock(&self.hint_request) != HintRequest::default();
            hinting::on_slot_released(&self.process.binding().endpoint, had_hints);
            self.process.notify();
        }
    }

    /// Publishes whether the device runs nothing of this queue any more. Returns whether that has changed. Also for a device
    /// that refused to stop: the next task has waited long enough.
    pub(crate) fn publish_drained(&self, is_drained: bool) -> bool {
        lock(&self.slot).as_ref().is_some_and(|slot| slot.slot.set_drained(is_drained) != is_drained)
    }

    /// Publishes a sample of the free task of this queue.
    pub(crate) fn publish_sample(&self, span: Nanos, is_busy: bool) {
        if let Some(slot) = &*lock(&self.slot) {
            slot.slot.add_sample(span, is_busy);
        }
    }

    /// Records the epoch that the watcher sees now. Returns the one before.
    pub(crate) fn replace_last_epoch(&self, now: Epoch) -> Epoch {
        std::mem::replace(&mut lock(&self.last_epoch), now)
    }

    pub(crate) fn publish_dependencies(&self, dependencies: Dependencies) {
        if let Some(slot) = &*lock(&self.slot) {
            slot.slot.set_dependencies(dependencies);
        }
    }

    fn publish_settings(&self) {
        let level = self.launch_path().level().number();
        let (threshold, batch_size) = match self.launch_path().limit() {
            Limit::Count { threshold, batch_size } => (threshold, batch_size),
            Limit::Budget(_) => (0, 0),
        };
        if let Some(slot) = &*lock(&self.slot) {
            let cost =
                self.launch_path().hw().capabilities().cost(self.launch_path().level()).unwrap_or_default();
            slot.slot.publish_settings(level, threshold, batch_size);
            let capabilities = self.launch_path().hw().capabilities();
            slot.slot
                .publish_levels(Level::ALL.into_iter().filter(|level| capabilities.cost(*level).is_ok()));
            slot.slot.publish_switch_cost(cost.preempt + cost.restore);
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

/// Why the settings of a queue were not changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigureError {
    #[error(transparent)]
    Hint(#[from] xsched_core::HintError),
    #[error(transparent)]
    Level(#[from] LevelError),
    #[error(transparent)]
    Hardware(#[from] HalError),
}
