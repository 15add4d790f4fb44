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
//! | `requests`  | which requests of a leader are not reported                          |
//! | `host_bound`| whether the host limits the queue, and which launches are deferred    |
//!
//! The launching thread of a leader calls the driver first and notifies the scheduler afterwards, without waking a thread that
//! can preempt it. If the call waits for the device, the thread notifies the scheduler before the call.
//!
//! The life of one launch is [`LaunchPath::launch`].

mod control;
mod device;
mod device_state;
mod host_bound;
mod idle_gaps;
mod in_flight;
mod requests;

use std::sync::Arc;
use std::time::Duration;

use crate::deferral::{Deferral, WaitingThread};
use crate::gate::{Epoch, Gate, Order, SchedulerLink};
use crate::hal::{HwQueue, Marker};
use crate::level::{LevelError, LevelRequest};
use crate::sync::{AtomicBool, Ordering, Shared, sleep};
use crate::time::Nanos;
use crate::window::Reservation;
use control::Gates;
use device::Device;
use host_bound::HostBound;
use idle_gaps::IdleGapFilter;
use in_flight::{InFlightWindow, Probe};
use requests::RequestHistory;

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
    requests: RequestHistory,
    host_bound: HostBound,
    /// A launching thread notifies the scheduler when its launch has returned.
    notification_due: AtomicBool,
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
            window: InFlightWindow::new(level, hw.stop_distance()),
            hw,
            link,
            gates: Gates::new(gate),
            idle_gaps: IdleGapFilter::default(),
            requests: RequestHistory::default(),
            host_bound: HostBound::default(),
            notification_due: AtomicBool::new(false),
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
        self.launch_then(real, |_| ())
    }

    /// As [`LaunchPath::launch`]. After a launch that is counted, calls `then` with the result.
    #[inline]
    pub fn launch_then<R>(&self, real: impl FnOnce() -> R, then: impl FnOnce(&R)) -> R {
        if self.is_free() {
            return real();
        }
        let mut admitted = self.admit();
        let result = real();
        admitted.launched();
        drop(admitted);
        then(&result);
        result
    }

    /// As [`LaunchPath::launch`], for a `real` that takes long to reach the device, such as a graph of many commands.
    pub fn launch_large<R>(&self, real: impl FnOnce() -> R) -> R {
        let gate = self.gate();
        // Not if the task is held or has peers: the context switch would only preempt a task of the same precedence.
        let order = gate.order();
        if order == Order::Leader && gate.epoch().is_idle() && !self.is_deferrable(gate, order) {
            self.hw.trigger_context_switch();
        }
        if self.hw.preempts_by_time_slice() || self.is_free() {
            return self.launch(real);
        }
        let mut admitted = self.admit();
        // Without time slices the device runs the other tasks until the scheduler holds them: it has to know of the first command
        // before the last one is launched.
        admitted.notify();
        let result = real();
        admitted.launched();
        result
    }

    /// As [`LaunchPath::launch`], for a `real` that returns only when everything launched so far has completed. Marks the
    /// queue idle then.
    pub fn launch_and_finish<R>(&self, real: impl FnOnce() -> R) -> R {
        if self.is_free() {
            return real();
        }
        let _waiting = self.link.deferral().map(Deferral::begin_wait);
        let mut admitted = self.admit();
        let gate = admitted.gate;
        let epoch = gate.epoch();
        // As in `begin_wait`, where this thread is the only one inside.
        let is_covered = gate.occupants() == 1;
        admitted.notify();
        let result = real();
        admitted.launched();
        drop(admitted);
        if is_covered {
            self.completed(gate, epoch);
        }
        result
    }

    /// Whether a launch may proceed uncounted. The first launch of a queue waits for the scheduler's decision about it.
    #[inline]
    fn is_free(&self) -> bool {
        self.gate().is_free() || (self.gate().is_undecided() && self.is_free_once_decided())
    }

    /// A launch without a decision is counted: the scheduler reads that the queue is busy when it decides.
    #[cold]
    fn is_free_once_decided(&self) -> bool {
        self.gate().wait_until_decided() && self.gate().is_free()
    }

    /// Waits until launching is allowed. The thread stays inside the gate until the returned value is dropped.
    pub(crate) fn admit(&self) -> Admitted<'_> {
        let mut has_changed_kind = self.end_gap();
        let mut marker_just_completed = false;
        let mut is_window_full = false;
        let mut is_marked_busy = false;
        let mut has_waited_for_enforcement = false;
        loop {
            let gate = self.gate();
            // Commands of the program's own queue, and a queue that has just moved to a new scheduler.
            if gate.is_undecided() {
                gate.wait_until_decided();
            }
            let waits_at_gate = is_window_full || !self.device.state.load().holds_launches();
            let order =
                if waits_at_gate { gate.enter(&*self.link) } else { gate.enter_despite_order(&*self.link) };
            // The device has been ordered to stop the queue: this launch waits there.
            let is_stopped = order.stops() && self.device.state.load().is_ordered_to_stop();
            // The order has not reached the device: this launch runs, and the next one has to stop behind it.
            let runs_before_stop = order.stops() && !is_stopped;
            // From here on dropping `admitted` leaves the gate, also in a panic.
            let mut admitted = Admitted {
                launch_path: self,
                gate,
                reservation: None,
                needs_marker: runs_before_stop,
                notifies: false,
            };
            if !std::ptr::eq(gate, self.gate()) {
                // The queue moved to another gate, which decides now.
                continue;
            }
            // Before any call that may block inside the driver: a thread that blocks there on a stopped queue must count as
            // work, or the scheduler would never resume the queue.
            if std::mem::replace(&mut is_marked_busy, true) {
                gate.count_as_repeated();
            }
            let is_deferred = self.is_deferrable(gate, order);
            let is_unreported = is_deferred || self.is_report_needless(gate, order);
            if is_unreported && gate.epoch().is_idle() {
                self.begin_unreported();
            }
            let begins_report = gate.mark_busy_without_notification(is_unreported);
            // The scheduler resumes the other tasks.
            let ends_report = is_deferred && gate.stop_reporting();
            if begins_report || ends_report || std::mem::take(&mut has_changed_kind) {
                admitted.notify_when_due(order);
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
                    Err(awaited) => {
                        drop(admitted);
                        marker_just_completed = self.wait_for_room(&awaited);
                        continue;
                    }
                }
            }
            if is_deferred && let Some(deferral) = self.link.deferral() {
                self.defer(deferral);
            }
            return admitted;
        }
    }

    /// Ends an idle gap, and decides what kind of queue this is. Returns whether the scheduler has to be notified of that.
    fn end_gap(&self) -> bool {
        let gap = self.idle_gaps.end_gap();
        self.requests.launch();
        self.host_bound.launch();
        if gap.is_some_and(|gap| gap.is_short) {
            self.requests.short_gap();
        }
        let is_sync_bound = gap.and_then(|gap| gap.is_sync_bound);
        is_sync_bound.is_some_and(|is_sync_bound| self.gate().set_sync_bound(is_sync_bound))
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
        let waiting = self.link.deferral().map(Deferral::begin_wait);
        // A thread that is inside may launch behind the point that is waited for: then the wait proves nothing.
        let begun = (!gate.is_free()).then(Nanos::now);
        Wait {
            launch_path: self,
            gate,
            covered: (!gate.is_occupied()).then_some(epoch),
            begun,
            _waiting: waiting,
        }
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
    /// When it began; none if the launches were not counted.
    begun: Option<Nanos>,
    _waiting: Option<WaitingThread<'a>>,
}

impl Wait<'_> {
    /// All of it has completed.
    pub fn finish(self) {
        if let Some(epoch) = self.covered {
            self.launch_path.completed(self.gate, epoch);
        }
        if let Some(begun) = self.begun {
            self.launch_path.waited(begun);
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
    /// The scheduler is notified when this is dropped.
    notifies: bool,
}

impl Admitted<'_> {
    /// Notifies the scheduler: after the launch if the task leads, because the thread that is woken may preempt the launching
    /// thread; otherwise now.
    fn notify_when_due(&mut self, order: Order) {
        let link = &*self.launch_path.link;
        if matches!(order, Order::Leader | Order::Peer) {
            self.notifies = true;
            // If the launch blocks, another thread notifies the scheduler.
            self.launch_path.notification_due.store(true, Ordering::SeqCst);
        } else {
            link.notify();
            link.watch();
        }
    }

    /// Notifies the scheduler if the launch has not done so yet. Call this before a launch that may return only when the device
    /// has completed it: the other tasks have to be held meanwhile.
    pub(crate) fn notify(&mut self) {
        if std::mem::take(&mut self.notifies) {
            self.launch_path.notification_due.store(false, Ordering::SeqCst);
            self.launch_path.notify_as_leader(self.gate);
        }
    }

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
        self.notify();
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
