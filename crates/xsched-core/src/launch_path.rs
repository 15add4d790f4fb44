//! The path of a launch to one hardware queue: gate, window, marker, preemption.
//!
//! ```text
//!                      gates                    window                      hw
//!   launch ──► free: one load ─────────────────────────────────────► real function ──► device
//!          └─► admit: wait at the gate ──► reserve room in flight ──┘      ▲
//!                  ▲                                                       │ preempt, restore, order_changed
//!              scheduler's order ──► enforce ──► device (state table) ─────┘
//! ```
//!
//! | part        | responsibility                                                        |
//! |-------------|-----------------------------------------------------------------------|
//! | `gates`     | what the scheduler ordered and the program requested                  |
//! | `device`    | what the device was ordered to do, as one word (`device_state`)       |
//! | `window`    | what is in flight                                                     |
//! | `idle_gaps` | whether the queue is idle, and which idle gaps are reported          |
//!
//! The life of one launch is [`LaunchPath::launch`].

mod control;
mod device;
mod device_state;
mod idle_gaps;
mod in_flight;

use std::sync::Arc;
use std::time::Duration;

use crate::gate::{Epoch, Gate, Order, SchedulerLink};
use crate::hal::{HwQueue, Marker};
use crate::level::{LevelError, LevelRequest};
use crate::sync::{Shared, sleep};
use crate::time::Nanos;
use crate::window::Reservation;
use control::Gates;
use device::Device;
use idle_gaps::IdleGapFilter;
use in_flight::{InFlightWindow, Probe};

/// How long a launching thread waits for the enforcer thread to stop the device, before it launches without that.
/// Enough on a machine that is not overloaded.
const ENFORCEMENT_TIMEOUT: Nanos = Nanos::from_millis(1);
const ENFORCEMENT_POLL_INTERVAL: Duration = Duration::from_micros(20);

/// What launches pass through on their way to one hardware queue.
pub struct LaunchPath {
    hw: Arc<dyn HwQueue>,
    link: Arc<dyn SchedulerLink>,
    gates: Gates,
    device: Device,
    window: InFlightWindow,
    idle_gaps: IdleGapFilter,
}

impl LaunchPath {
    /// Connects a hardware queue to a gate. Fails if the device lacks the requested level.
    pub fn new(
        hw: Arc<dyn HwQueue>,
        gate: Shared<Gate>,
        link: Arc<dyn SchedulerLink>,
        level: LevelRequest,
    ) -> Result<Self, LevelError> {
        let level = hw.capabilities().negotiate(level)?;
        Ok(Self {
            device: Device::new(level, hw.accepts_launches_while_stopped()),
            hw,
            link,
            gates: Gates::new(gate),
            window: InFlightWindow::new(level),
            idle_gaps: IdleGapFilter::default(),
        })
    }

    /// The gate, to which the scheduler's orders go.
    #[must_use]
    #[inline]
    pub fn gate(&self) -> &Gate {
        self.gates.current.get()
    }

    /// The hardware queue at the end of the path.
    #[must_use]
    pub fn hw(&self) -> &dyn HwQueue {
        &*self.hw
    }

    /// Calls `real` on this thread, exactly once, as soon as launching is allowed.
    #[inline]
    pub fn launch<R>(&self, real: impl FnOnce() -> R) -> R {
        if self.gate().is_free() {
            return real();
        }
        let mut admitted = self.admit();
        let result = real();
        admitted.launched();
        result
    }

    /// As [`LaunchPath::launch`], for a `real` that takes long to reach the device, such as a graph of many commands.
    pub fn launch_large<R>(&self, real: impl FnOnce() -> R) -> R {
        let gate = self.gate();
        // Not if the task is held or has peers: the context switch would only preempt a task of the same precedence.
        if gate.order() == Order::Leader && gate.epoch().is_idle() {
            self.hw.trigger_context_switch();
        }
        self.launch(real)
    }

    /// As [`LaunchPath::launch`], for a `real` that returns only when everything launched so far has completed. Marks the
    /// queue idle then.
    pub fn launch_and_finish<R>(&self, real: impl FnOnce() -> R) -> R {
        if self.gate().is_free() {
            return real();
        }
        let mut admitted = self.admit();
        let gate = admitted.gate;
        let epoch = gate.epoch();
        // As in `begin_wait`, where this thread is the only one inside.
        let is_covered = gate.occupants() == 1;
        let result = real();
        admitted.launched();
        drop(admitted);
        if is_covered {
            self.completed(gate, epoch);
        }
        result
    }

    /// Waits until launching is allowed. The thread stays inside the gate until the returned value is dropped.
    pub(crate) fn admit(&self) -> Admitted<'_> {
        if let Some(is_sync_bound) = self.idle_gaps.end_gap() {
            self.gate().set_sync_bound(is_sync_bound, &*self.link);
        }
        let mut marker_just_completed = false;
        let mut is_window_full = false;
        let mut is_marked_busy = false;
        let mut has_waited_for_enforcement = false;
        loop {
            let gate = self.gate();
            let waits_at_gate = is_window_full || !self.device.state.load().holds_launches();
            let order =
                if waits_at_gate { gate.enter(&*self.link) } else { gate.enter_despite_order(&*self.link) };
            // The device has been ordered to stop the queue: this launch waits there.
            let is_stopped = order.stops() && self.device.state.load().is_ordered_to_stop();
            // The order has not reached the device: this launch runs, and the next one has to stop behind it.
            let runs_before_stop = order.stops() && !is_stopped;
            // From here on dropping `admitted` leaves the gate, also in a panic.
            let mut admitted =
                Admitted { launch_path: self, gate, reservation: None, needs_marker: runs_before_stop };
            if !std::ptr::eq(gate, self.gate()) {
                // The queue moved to another gate, which decides now.
                continue;
            }
            // Before any call that may block inside the driver: a thread that blocks there on a stopped queue must count as
            // work, or the scheduler would never resume the queue.
            if std::mem::replace(&mut is_marked_busy, true) {
                gate.mark_busy_again(&*self.link);
            } else {
                gate.mark_busy(&*self.link);
            }
            if runs_before_stop && !std::mem::replace(&mut has_waited_for_enforcement, true) {
                drop(admitted);
                self.wait_for_enforcement();
                continue;
            }
            if order.stops() {
                // The device stops only queues that have work.
                self.report_work();
            }
            if order == Order::Throttled || order.stops() {
                match self.reserve(is_stopped, marker_just_completed) {
                    Ok(reservation) => admitted.reservation = Some(reservation),
                    Err(_) if order.stops() => {
                        is_window_full = true;
                        continue;
                    }
                    Err(marker) => {
                        drop(admitted);
                        marker_just_completed = self.wait_for_room(marker);
                        continue;
                    }
                }
            }
            return admitted;
        }
    }

    /// Waits until the device was ordered to stop the queue, or the order no longer stops it, for at most 1 ms.
    #[cold]
    fn wait_for_enforcement(&self) {
        let deadline = Nanos::now() + ENFORCEMENT_TIMEOUT;
        let is_pending = || !self.device.state.load().is_ordered_to_stop() && self.gate().order().stops();
        while is_pending() && Nanos::now() < deadline {
            sleep(ENFORCEMENT_POLL_INTERVAL);
        }
    }

    /// Calls `real`, which waits for the queue, and marks the queue idle if it is idle afterwards.
    pub fn synchronized<R>(&self, real: impl FnOnce() -> R) -> R {
        let wait = self.begin_wait();
        self.idle_gaps.begin_sync();
        let result = real();
        self.idle_gaps.end_sync();
        wait.finish();
        result
    }

    /// Notes what has been launched, before a thread waits for all of it.
    #[must_use]
    pub fn begin_wait(&self) -> Wait<'_> {
        let gate = self.gate();
        let epoch = gate.epoch();
        // A thread that is inside may launch behind the point that is waited for: then the wait proves nothing.
        Wait { launch_path: self, gate, covered: (!gate.is_occupied()).then_some(epoch) }
    }

    /// Marks the queue busy because uncounted work may be in flight, until a marker shows otherwise. Where no marker can be
    /// placed from this thread, the next launch marks it.
    pub fn assume_busy(&self) {
        if self.hw.can_mark_from_any_thread() {
            self.gate().mark_busy(&*self.link);
            self.report_work();
        }
    }
}

/// A wait for everything that a queue has launched.
pub struct Wait<'a> {
    launch_path: &'a LaunchPath,
    gate: &'a Gate,
    covered: Option<Epoch>,
}

impl Wait<'_> {
    /// All of it has completed.
    pub fn finish(self) {
        if let Some(epoch) = self.covered {
            self.launch_path.completed(self.gate, epoch);
        }
    }
}

/// A launch that was admitted. Dropping it leaves the gate and cancels the reservation unless it was used.
pub(crate) struct Admitted<'a> {
    launch_path: &'a LaunchPath,
    gate: &'a Gate,
    reservation: Option<Reservation>,
    /// A marker has to follow the launch, even if the window needs none.
    needs_marker: bool,
}

impl Admitted<'_> {
    /// The launch happened. Returns the marker behind it, if one was placed.
    pub(crate) fn launched(&mut self) -> Option<Marker> {
        let only_this_thread_marks = !self.launch_path.hw.can_mark_from_any_thread();
        if self.reservation.is_none() && !only_this_thread_marks {
            return None;
        }
        let mut in_flight = self.launch_path.window.lock();
        let is_due = self
            .reservation
            .take()
            .is_some_and(|reservation| in_flight.window.launched(reservation, Nanos::now))
            || self.needs_marker;
        if !is_due && !only_this_thread_marks {
            return None;
        }
        // Here too, for a thread that never has to wait for room.
        in_flight.window.observe_late(self.launch_path.hw.progress(), Nanos::now());
        let marker = self.launch_path.place_marker(&mut in_flight);
        if only_this_thread_marks {
            // The watcher thread cannot place a marker later: this one has to show when the queue is idle.
            let (epoch, placed) = (self.gate.epoch(), Nanos::now());
            in_flight.probe = marker.map(|marker| Probe { epoch, marker, placed });
        }
        marker
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            self.launch_path.window.lock().window.cancel(reservation);
        }
        self.gate.leave();
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
