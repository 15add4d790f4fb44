//! What a queue has in flight, and how far the device has come with it: window, markers, detection of idle queues.

use std::sync::TryLockError;
use std::time::Duration;

use super::LaunchPath;
use crate::gate::Epoch;
use crate::hal::Marker;
use crate::level::Level;
use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering, lock, thread};
use crate::time::Nanos;
use crate::window::{Limit, Reservation, Window};

/// How long a thread waits for room in the window before it reads the gate again.
const ROOM_WAIT: Duration = Duration::from_millis(10);
/// After this many consecutive polls that could not place a marker the queue counts as idle.
const MAX_FAILED_PROBES: u32 = 20;
/// A marker that has not completed for this long is placed again: a device that has failed rejects it then.
const PROBE_TIMEOUT: Nanos = Nanos::from_secs(1);

/// The window of one queue and the updates that it has not read.
pub(super) struct InFlightWindow {
    /// Held while a marker is placed, and so for as long as the driver blocks.
    in_flight: Mutex<InFlight>,
    pending: Mutex<PendingUpdates>,
    /// `pending` holds updates that `in_flight` has not read.
    has_pending: AtomicBool,
}

/// What is in flight.
pub(super) struct InFlight {
    pub(super) window: Window,
    /// The marker that shows when the queue is idle.
    pub(super) probe: Option<Probe>,
    /// Consecutive polls that could not place a marker.
    failed_probes: u32,
    /// A marker was placed since the device was ordered to stop the queue: what is launched now lies behind it.
    has_stop_marker: bool,
}

/// Updates that the next thread which locks [`InFlight`] reads.
///
/// A thread that posts one must not wait for that lock: the thread that holds it may be blocked inside the driver on a queue
/// that only the posting thread can resume.
pub(super) struct PendingUpdates {
    /// The limit that the program chose.
    pub(super) chosen_limit: Option<Limit>,
    pub(super) level: Level,
    /// When the queue resumed after a stop.
    pub(super) resumed_at: Option<Nanos>,
}

impl PendingUpdates {
    fn limit(&self) -> Limit {
        self.chosen_limit.unwrap_or(Limit::for_level(self.level))
    }
}

/// What a thread waits for that found no room in the window.
pub(super) struct AwaitedRoom {
    /// The marker whose completion makes room; none if other threads have reserved the whole window and not launched yet.
    marker: Option<Marker>,
    /// When there is room without that.
    at: Option<Nanos>,
}

/// A marker behind everything that was launched in an epoch.
pub(super) struct Probe {
    pub(super) epoch: Epoch,
    pub(super) marker: Marker,
    pub(super) placed: Nanos,
}

impl InFlightWindow {
    pub(super) fn new(level: Level, stop_distance: Nanos) -> Self {
        let mut window = Window::new(Limit::for_level(level));
        window.set_level(level);
        window.set_stop_distance(stop_distance);
        let in_flight = InFlight { window, probe: None, failed_probes: 0, has_stop_marker: false };
        let pending = PendingUpdates { chosen_limit: None, level, resumed_at: None };
        Self {
            in_flight: Mutex::new(in_flight),
            pending: Mutex::new(pending),
            has_pending: AtomicBool::new(false),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, InFlight> {
        let mut in_flight = lock(&self.in_flight);
        self.read_updates(&mut in_flight);
        in_flight
    }

    /// None while another thread launches or places a marker.
    fn try_lock(&self) -> Option<MutexGuard<'_, InFlight>> {
        let mut in_flight = match self.in_flight.try_lock() {
            Ok(in_flight) => in_flight,
            Err(TryLockError::Poisoned(in_flight)) => in_flight.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.read_updates(&mut in_flight);
        Some(in_flight)
    }

    fn read_updates(&self, in_flight: &mut InFlight) {
        if self.has_pending.load(Ordering::Acquire) {
            // Cleared first: an update that is posted meanwhile sets it again.
            self.has_pending.store(false, Ordering::SeqCst);
            let mut pending = lock(&self.pending);
            in_flight.window.set_limit(pending.limit());
            in_flight.window.set_level(pending.level);
            if let Some(at) = pending.resumed_at.take() {
                in_flight.window.resumed(at);
                in_flight.has_stop_marker = false;
            }
        }
    }

    fn post(&self, update: impl FnOnce(&mut PendingUpdates)) {
        update(&mut lock(&self.pending));
        // Release, with the Acquire in `read_updates`.
        self.has_pending.store(true, Ordering::SeqCst);
    }
}

impl InFlight {
    /// The device no longer reports progress: what it has not reported is not waited for.
    fn abandon(&mut self) {
        self.window.abandon();
        self.probe = None;
    }
}

impl LaunchPath {
    pub(super) fn post_update(&self, update: impl FnOnce(&mut PendingUpdates)) {
        self.window.post(update);
    }

    /// Reserves room in the window, or returns what to wait for.
    ///
    /// `is_stopped`: the launch must lie behind a marker that was placed after the device was ordered to stop the queue.
    /// `marker_just_completed`: the calling thread has waited for a marker, so that the time of its completion is known.
    pub(super) fn reserve(
        &self,
        is_stopped: bool,
        marker_just_completed: bool,
    ) -> Result<Reservation, AwaitedRoom> {
        let mut in_flight = self.window.lock();
        if is_stopped && !in_flight.has_stop_marker && self.place_marker(&mut in_flight).is_none() {
            return Err(AwaitedRoom { marker: None, at: None });
        }
        in_flight.has_stop_marker = is_stopped;
        if let Some(reservation) = in_flight.window.reserve(Nanos::now) {
            return Ok(reservation);
        }
        let (progress, now) = (self.hw.progress(), Nanos::now());
        if marker_just_completed {
            in_flight.window.observe(progress, now);
        } else {
            in_flight.window.observe_late(progress, now);
        }
        if let Some(reservation) = in_flight.window.reserve(|| now) {
            return Ok(reservation);
        }
        if in_flight.window.oldest_marker().is_none() && in_flight.window.has_unmarked() {
            self.place_marker(&mut in_flight);
        }
        Err(AwaitedRoom { marker: in_flight.window.oldest_marker(), at: in_flight.window.room_at() })
    }

    /// Waits until there is room, or until the marker that makes it has completed, for at most 10 ms. Returns whether the
    /// marker has completed.
    pub(super) fn wait_for_room(&self, awaited: &AwaitedRoom) -> bool {
        let until_room = awaited.at.map_or(ROOM_WAIT, |at| Duration::from(at - Nanos::now()));
        match awaited.marker.map(|marker| self.hw.wait(marker, until_room.min(ROOM_WAIT))) {
            Some(Ok(completed)) => return completed,
            // The device cannot report its progress: launching without a limit is better than blocking the program.
            Some(Err(_)) => self.window.lock().abandon(),
            // Other threads have reserved the whole window and not launched yet.
            None => thread::yield_now(),
        }
        false
    }

    /// Places a marker behind everything launched so far.
    pub(super) fn place_marker(&self, in_flight: &mut InFlight) -> Option<Marker> {
        let marker = self.hw.mark().ok();
        match marker {
            Some(marker) => in_flight.window.marked(marker),
            None => in_flight.abandon(),
        }
        marker
    }

    /// Places a marker behind everything this thread has launched.
    pub(crate) fn mark(&self) -> Option<Marker> {
        let gate = self.gate();
        // A stopped queue stalls at the marker: it must count as busy, or the scheduler would never resume it.
        if self.device.state.load().holds_launches() && !gate.is_free() {
            gate.mark_busy_again(&*self.link);
            self.report_work();
        }
        // As in `poll_idle`: a thread that is inside may launch behind the marker.
        let (epoch, is_covered) = (gate.epoch(), !gate.is_occupied());
        let mut in_flight = self.window.lock();
        let marker = self.place_marker(&mut in_flight);
        if let Some(marker) = marker.filter(|_| is_covered && !self.hw.can_mark_from_any_thread()) {
            // The watcher thread cannot place another one: this one has to show when the queue is idle.
            in_flight.probe = Some(Probe { epoch, marker, placed: Nanos::now() });
        }
        marker
    }

    /// Finds out without waiting whether the queue has become idle; places a marker if none covers the work.
    ///
    /// The watcher thread calls this about once a millisecond while another task waits for this queue's gaps. Returns false
    /// while a thread of the program has just begun to synchronize with the queue, because that thread marks it idle itself.
    pub fn poll_idle(&self) -> bool {
        let gate = self.gate();
        let epoch = gate.epoch();
        if epoch.is_idle() {
            return true;
        }
        if self.idle_gaps.take_deferred(gate, epoch) {
            return self.mark_idle(gate, epoch);
        }
        if gate.is_occupied() || self.is_preempted() || self.idle_gaps.has_sync_waiter() {
            return false;
        }
        let Some(mut in_flight) = self.window.try_lock() else { return false };
        let now = Nanos::now();
        let progress = self.hw.progress();
        in_flight.window.observe_late(progress, now);
        let newest = in_flight.window.newest_marker();
        let is_underway = in_flight.window.oldest_marker().is_some();
        match in_flight.probe.as_ref().filter(|probe| probe.marker == newest) {
            Some(probe) if !is_underway && probe.epoch == epoch => return self.mark_idle(gate, epoch),
            Some(probe) if is_underway && now < probe.placed + PROBE_TIMEOUT => return false,
            // Work before a marker that is outstanding has not completed: no other marker is needed.
            None if is_underway => {
                // The epoch that this marker covers is not known, so the probe never marks one idle.
                in_flight.probe = Some(Probe { epoch: Epoch::default(), marker: newest, placed: now });
                return false;
            }
            _ if self.hw.can_mark_from_any_thread() => {}
            _ => return false,
        }
        let Some(marker) = self.place_marker(&mut in_flight) else {
            // A context that was destroyed or has failed never reports again: other tasks must not wait for it.
            in_flight.failed_probes += 1;
            return in_flight.failed_probes >= MAX_FAILED_PROBES && self.mark_idle(gate, epoch);
        };
        in_flight.failed_probes = 0;
        in_flight.probe = Some(Probe { epoch, marker, placed: now });
        self.hw.progress().marker >= marker && self.mark_idle(gate, epoch)
    }

    /// The limit of the in-flight window.
    #[must_use]
    pub fn limit(&self) -> Limit {
        lock(&self.window.pending).limit()
    }

    /// Whether the program chose the limit of the in-flight window.
    #[must_use]
    pub fn has_chosen_limit(&self) -> bool {
        lock(&self.window.pending).chosen_limit.is_some()
    }

    /// How many counted commands are in flight.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        let mut in_flight = self.window.lock();
        in_flight.window.observe_late(self.hw.progress(), Nanos::now());
        in_flight.window.in_flight().commands
    }

    /// Limits the in-flight window from now on; `None`: as the level requires.
    pub fn set_limit(&self, limit: Option<Limit>) {
        self.post_update(|update| update.chosen_limit = limit);
    }
}
