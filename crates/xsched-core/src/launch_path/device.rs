//! The device's side of a launch path: executes what the table in `device_state` returns.

use super::LaunchPath;
use super::device_state::{Call, DeviceState, DeviceWord, Event, Target};
use crate::gate::{BusyEnd, Epoch, Gate};
use crate::hal::HalError;
use crate::level::{Level, LevelRequest};
use crate::sync::{Mutex, fence_for_loom, lock};
use crate::time::Nanos;

/// What the device was ordered to do with the queue.
pub(super) struct Device {
    pub(super) state: DeviceWord,
    /// Held by the thread that changes `state`, also during calls of the driver.
    enforcement: Mutex<()>,
    /// Held while `set_has_work` is called, so that the last call reports the latest state.
    work_report: Mutex<()>,
}

impl Device {
    pub(super) fn new(level: Level, accepts_launches: bool) -> Self {
        Self {
            state: DeviceWord::new(DeviceState::new(level, accepts_launches)),
            enforcement: Mutex::new(()),
            work_report: Mutex::new(()),
        }
    }
}

impl LaunchPath {
    /// The level in force.
    #[must_use]
    pub fn level(&self) -> Level {
        self.device.state.load().level
    }

    /// Whether the device has stopped this queue.
    #[must_use]
    pub fn is_preempted(&self) -> bool {
        self.device.state.load().is_stopped()
    }

    /// Changes the level at which this queue is stopped. A queue that is stopped is resumed and stopped again at the new
    /// level.
    pub fn set_level(&self, request: LevelRequest) -> Result<Level, HalError> {
        let level = self.hw.capabilities().negotiate(request)?;
        let _enforcement = lock(&self.device.enforcement);
        self.apply_order(level)?;
        Ok(level)
    }

    /// Makes the device follow the gate. The thread that changed the gate's word, or saw that it changed, calls this.
    pub fn enforce(&self) -> Result<(), HalError> {
        let _enforcement = lock(&self.device.enforcement);
        self.apply_order(self.level())
    }

    /// Brings the device to what the gate requires at a level. The caller holds the enforcement lock.
    fn apply_order(&self, level: Level) -> Result<(), HalError> {
        loop {
            let before = self.device.state.load();
            let gate = self.gate();
            let target = Target::new(
                level,
                gate.order(),
                gate.is_closed(),
                self.hw.preempts_by_time_slice(),
                self.hw.accepts_launches_while_stopped(),
            );
            if target.is_stop {
                self.release_deferred();
            }
            let transition = before.next(Event::Target(target));
            if transition.gives_order {
                self.hw.order_changed(transition.state.order);
            }
            // Before the call, which may last until the queue has stopped: what is launched meanwhile lies behind the stop.
            self.device.state.store(transition.state);
            if transition.has_resumed {
                self.post_resumed();
            }
            if transition.state.level != before.level {
                self.post_update(|update| update.level = level);
            }
            if transition.gives_order || transition.call.is_some() {
                self.report_work_before_stop();
            }
            if let Some(call) = transition.call {
                self.call_device(call)?;
            }
            if self.level() == level {
                return Ok(());
            }
        }
    }

    fn call_device(&self, call: Call) -> Result<(), HalError> {
        let result = match call {
            Call::Preempt(level) => self.hw.preempt(level),
            Call::Restore => self.hw.restore(),
        };
        let event = if result.is_ok() { Event::CallCompleted } else { Event::CallRejected };
        let transition = self.device.state.load().next(event);
        self.device.state.store(transition.state);
        if transition.has_resumed {
            self.post_resumed();
        }
        result
    }

    fn post_resumed(&self) {
        self.post_update(|update| update.resumed_at = Some(Nanos::now()));
    }

    /// Marks the queue idle if nothing was launched since the epoch. Returns whether the queue is idle.
    pub(super) fn mark_idle(&self, gate: &Gate, epoch: Epoch) -> bool {
        let end = self.end_busy_period(gate, epoch);
        match end {
            BusyEnd::Reported => self.link.notify(),
            BusyEnd::Unreported => self.end_unreported(gate),
            BusyEnd::AlreadyIdle | BusyEnd::StillBusy => {}
        }
        end != BusyEnd::StillBusy
    }

    /// As [`LaunchPath::mark_idle`]. The caller notifies the scheduler, or accounts for what was not reported.
    pub(super) fn end_busy_period(&self, gate: &Gate, epoch: Epoch) -> BusyEnd {
        let end = gate.mark_idle_without_notification(epoch);
        // The epoch is written first and the device's state is read second; the enforcing thread stores the state first and
        // reads the epoch second. SeqCst on both sides: one of the two threads reports that there is no work.
        fence_for_loom();
        if end != BusyEnd::StillBusy && self.device.state.load().is_ordered_to_stop() {
            self.report_work();
        }
        end
    }

    /// Reports to the device whether the queue has work. Called after each change of that while the queue is stopped.
    pub(super) fn report_work(&self) {
        let _work_report = lock(&self.device.work_report);
        self.hw.set_has_work(!self.gate().epoch().is_idle());
    }

    fn report_work_before_stop(&self) {
        fence_for_loom();
        if self.gate().has_uncounted() && self.hw.can_mark_from_any_thread() {
            // Launches that were not counted do not show in the epoch.
            self.hw.set_has_work(true);
        } else {
            self.report_work();
        }
    }
}
