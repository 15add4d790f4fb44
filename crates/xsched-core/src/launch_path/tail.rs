//! What a launch_path has launched, and how far the device has come with it: window, markers, idleness.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, TryLockError};
use std::time::Duration;

use super::{LaunchPath, lock};
use crate::gate::Epoch;
use crate::hal::Marker;
use crate::level::Level;
use crate::time::Nanos;
use crate::window::{Limit, Reservation, Window};

/// How long a thread waits for room in the window before it looks at the gate again.
const ROOM_PATIENCE: Duration = Duration::from_millis(10);

/// After so many looks at a queue that cannot be asked whether it is idle, it counts as idle.
const MOST_BLIND_LOOKS: u32 = 20;

/// A marker that has not come for so long is placed again: a device that has failed refuses it then.
const PROBE_AGAIN: Nanos = Nanos::from_secs(1);

/// What was launched last, and how far the device has come with it.
pub(super) struct Tail {
    pub(super) window: Window,
    /// A marker behind everything that had been launched in an epoch.
    pub(super) probe: Option<Probe>,
    /// Looks at a queue that could not be asked whether it is idle, one after the other.
    pub(super) blind_looks: u32,
    /// A marker was placed since the queue was held: what is launched now stays behind it.
    pub(super) fenced: bool,
}

/// What the tail takes note of when somebody launches next. Whoever has news must not wait for the tail: it may be held by
/// a thread that waits inside the driver for a queue which only they can let go on.
pub(super) struct News {
    /// How the window is to be measured, if somebody said so.
    pub(super) chosen: Option<Limit>,
    pub(super) level: Level,
    /// When the queue went on after it had been stopped.
    pub(super) went_on: Option<Nanos>,
}

impl News {
    fn limit(&self) -> Limit {
        self.chosen.unwrap_or(Limit::for_level(self.level))
    }
}

pub(super) struct Probe {
    pub(super) epoch: Epoch,
    pub(super) marker: Marker,
    pub(super) placed: Nanos,
}

impl Tail {
    /// The device no longer reports: what it did not report is not waited for, and shows nothing.
    fn abandon(&mut self) {
        self.window.abandon();
        self.probe = None;
    }
}

impl LaunchPath {
    pub(super) fn tail(&self) -> MutexGuard<'_, Tail> {
        let mut tail = lock(&self.tail);
        self.take_note(&mut tail);
        tail
    }

    fn take_note(&self, tail: &mut Tail) {
        if self.has_news.load(Ordering::Acquire) {
            // First, so that what comes meanwhile is not missed.
            self.has_news.store(false, Ordering::SeqCst);
            let mut news = lock(&self.news);
            tail.window.set_limit(news.limit());
            tail.window.suit(news.level);
            if let Some(at) = news.went_on.take() {
                tail.window.resumed(at);
                tail.fenced = false;
            }
        }
    }

    pub(super) fn tell_tail(&self, news: impl FnOnce(&mut News)) {
        news(&mut lock(&self.news));
        self.has_news.store(true, Ordering::SeqCst);
    }

    /// Takes a place in the window, or says which marker to wait for.
    pub(super) fn reserve(&self, is_held: bool, just_came: bool) -> Result<Reservation, Option<Marker>> {
        let mut tail = self.tail();
        if is_held && !tail.fenced && self.place_marker(&mut tail).is_none() {
            return Err(None);
        }
        tail.fenced = is_held;
        if let Some(place) = tail.window.reserve() {
            return Ok(place);
        }
        let (progress, now) = (self.hw.progress(), Nanos::now());
        if just_came {
            tail.window.observe(progress, now);
        } else {
            tail.window.observe_late(progress, now);
        }
        if let Some(place) = tail.window.reserve() {
            return Ok(place);
        }
        if tail.window.oldest_marker().is_none() && tail.window.has_unmarked() {
            self.place_marker(&mut tail);
        }
        Err(tail.window.oldest_marker())
    }

    /// Answers whether the marker has come.
    pub(super) fn wait_for_room(&self, marker: Option<Marker>) -> bool {
        match marker.map(|marker| self.hw.wait(marker, ROOM_PATIENCE)) {
            Some(Ok(came)) => return came,
            // The device cannot say how far it is: run on unpaced rather than wait for ever.
            Some(Err(_)) => self.tail().abandon(),
            // Other threads hold all places and have not launched yet.
            None => std::thread::yield_now(),
        }
        false
    }

    /// Places a marker behind everything launched so far.
    pub(super) fn place_marker(&self, tail: &mut Tail) -> Option<Marker> {
        let marker = self.hw.mark().ok();
        match marker {
            Some(marker) => tail.window.marked(marker),
            None => tail.abandon(),
        }
        marker
    }

    /// Places a marker behind everything this thread has launched.
    pub(crate) fn mark(&self) -> Option<Marker> {
        let gate = self.gate();
        // A queue that is stopped stands there: who waits for it has to be let go on.
        if self.held_by_device.load(Ordering::SeqCst) && !gate.is_free() {
            gate.mark_busy_again(&*self.link);
            self.show_work();
        }
        self.place_marker(&mut self.tail())
    }

    /// Finds out without waiting whether the queue has become idle; places a marker if none covers the work. To be
    /// called now and then while somebody waits for this queue's gaps and the program does not synchronise: while one of its
    /// threads has just begun to wait for it, the answer is no.
    pub fn poll_idle(&self) -> bool {
        let gate = self.gate();
        let epoch = gate.epoch();
        if epoch.is_idle() {
            return true;
        }
        if self.rest.take_back(gate, epoch) {
            return self.mark_idle(gate, epoch);
        }
        let is_seen_to = Nanos::now() < Nanos(self.seen_to_until.load(Ordering::SeqCst));
        if gate.is_occupied() || self.is_preempted() || is_seen_to {
            return false;
        }
        let mut tail = match self.tail.try_lock() {
            Ok(tail) => tail,
            Err(TryLockError::Poisoned(tail)) => tail.into_inner(),
            // Somebody launches at this moment.
            Err(TryLockError::WouldBlock) => return false,
        };
        self.take_note(&mut tail);
        let now = Nanos::now();
        let progress = self.hw.progress();
        tail.window.observe_late(progress, now);
        let newest = tail.window.newest_marker();
        let is_underway = tail.window.oldest_marker().is_some();
        match tail.probe.as_ref().filter(|probe| probe.marker == newest) {
            Some(probe) if !is_underway && probe.epoch == epoch => return self.mark_idle(gate, epoch),
            Some(probe) if is_underway && now < probe.placed + PROBE_AGAIN => return false,
            // What is before a marker that has not come is not done: no need for another one.
            None if is_underway => {
                // Which epoch it covers is not known, so it never shows that one is over.
                tail.probe = Some(Probe { epoch: Epoch::default(), marker: newest, placed: now });
                return false;
            }
            _ if self.hw.can_mark_from_any_thread() => {}
            _ => return false,
        }
        let Some(marker) = self.place_marker(&mut tail) else {
            // A context that was destroyed, or has failed, never answers again: others must not wait for it.
            tail.blind_looks += 1;
            return tail.blind_looks >= MOST_BLIND_LOOKS && self.mark_idle(gate, epoch);
        };
        tail.blind_looks = 0;
        tail.probe = Some(Probe { epoch, marker, placed: now });
        self.hw.progress().marker >= marker && self.mark_idle(gate, epoch)
    }

    /// How the window is measured.
    #[must_use]
    pub fn limit(&self) -> Limit {
        lock(&self.news).limit()
    }

    /// Whether somebody said how the window is measured.
    #[must_use]
    pub fn has_chosen_limit(&self) -> bool {
        lock(&self.news).chosen.is_some()
    }

    /// How many commands are in flight, as far as they were counted.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        let mut tail = self.tail();
        tail.window.observe_late(self.hw.progress(), Nanos::now());
        tail.window.in_flight().commands
    }

    /// Measures the window differently from now on; none: as it suits the level.
    pub fn set_limit(&self, limit: Option<Limit>) {
        self.tell_tail(|news| news.chosen = limit);
    }
}
