//! The in-flight window: how much a paced queue may have on the device at once.
//!
//! A fixed number of commands is either too many (16 of 5 ms) or too few (16 of 2 us), so the window is measured in
//! time: it admits commands while the estimated work in flight fits a latency budget. The estimate comes from
//! markers: numbers the device reports once everything before them has completed.
//!
//! ```text
//!    launched ──► c c c c M1 c c c M2 c c        M2 and what follows are in flight,
//!                 └ batch 1 ┘└ batch 2┘└ unmarked┘   M1 came back: batch 1 took so long
//! ```
//!
//! A count can be set instead, for compatibility: `threshold` commands in flight, a marker every `batch_size`.
//!
//! This is plain state without threads, clocks or devices in it; [`crate::XQueue`] brings those.

use std::collections::VecDeque;

use crate::hal::{Marker, Progress};
use crate::hint::HintError;
use crate::level::Level;
use crate::time::Nanos;

/// How the window is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Estimated work in flight, but at least [`Limit::MIN_COMMANDS`] commands.
    Budget(Nanos),
    /// Commands in flight, and commands from one marker to the next.
    Count {
        /// At most this many in flight.
        threshold: u32,
        /// A marker after this many.
        batch_size: u32,
    },
}

impl Limit {
    /// One runs, one waits behind it: with fewer the device would pause between two commands.
    pub const MIN_COMMANDS: u32 = 2;
    /// What is in flight at most, and how often a marker is placed, where commands are counted and nobody says how many.
    /// Those of the reference.
    pub const DEFAULT_THRESHOLD: i64 = 16;
    /// See [`Limit::DEFAULT_THRESHOLD`].
    pub const DEFAULT_BATCH_SIZE: i64 = 8;

    /// What a queue has that is stopped at this level, unless told otherwise.
    ///
    /// From level 2 on what is in flight can be stopped, so it need not be kept short for others' sake, and keeps a program's
    /// device busy through the pauses of its host. At level 1 whoever takes the place waits for all of it.
    #[must_use]
    pub const fn for_level(level: Level) -> Self {
        match level {
            Level::Block => Self::Budget(Nanos::from_millis(1)),
            Level::Deactivate | Level::Interrupt => Self::Budget(Nanos::from_millis(200)),
        }
    }

    /// A budget of time, 10 us to 10 s.
    pub fn budget(budget: Nanos) -> Result<Self, HintError> {
        if (Nanos::from_micros(10)..=Nanos::from_secs(10)).contains(&budget) {
            Ok(Self::Budget(budget))
        } else {
            Err(HintError { field: "budget", value: budget.to_string(), allowed: "10 us to 10 s" })
        }
    }

    /// A count of commands; `batch_size` at most `threshold`.
    pub fn count(threshold: i64, batch_size: i64) -> Result<Self, HintError> {
        const MOST: u32 = 65_536;
        let refuse = |field, value: i64, allowed| Err(HintError { field, value: value.to_string(), allowed });
        let threshold = match u32::try_from(threshold) {
            Ok(n) if (1..=MOST).contains(&n) => n,
            _ => return refuse("threshold", threshold, "1 to 65536 (commands in flight)"),
        };
        match u32::try_from(batch_size) {
            Ok(n) if (1..=threshold).contains(&n) => Ok(Self::Count { threshold, batch_size: n }),
            _ => refuse("batch_size", batch_size, "1 to the threshold"),
        }
    }
}

/// Commands and the work they are estimated to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// How many.
    pub commands: u32,
    /// How long they take, by the estimate at the time each was admitted.
    pub work: Nanos,
}

impl Load {
    fn add(&mut self, other: Self) {
        self.commands += other.commands;
        self.work += other.work;
    }

    fn take(&mut self, other: Self) {
        self.commands = self.commands.saturating_sub(other.commands);
        self.work = self.work - other.work;
    }
}

/// A place in the window. Give it back with [`Window::launched`] or [`Window::cancel`].
#[derive(Debug)]
#[must_use = "a reservation that is dropped is never given back"]
pub struct Reservation(Load);

#[derive(Clone, Copy, Debug)]
struct Batch {
    marker: Marker,
    load: Load,
    /// When its first command was launched.
    began: Nanos,
}

/// The window of one queue.
#[derive(Debug)]
pub struct Window {
    limit: Limit,
    /// Length of one command; none until the first marker came back.
    estimate: Option<Nanos>,
    in_flight: Load,
    /// Launched since the last marker.
    unmarked: Load,
    unmarked_since: Nanos,
    outstanding: VecDeque<Batch>,
    last_marker: Marker,
    /// When the device was last known to turn to this queue's next batch, and whether that is when it did, or only when
    /// somebody looked.
    device_free_at: Nanos,
    is_exact: bool,
    /// What is in flight can be stopped, at the markers.
    stoppable: bool,
}

/// Enough for a stop point every [`STOP_EVERY`] of the largest window and then some; markers beyond it are not placed.
const MOST_OUTSTANDING: usize = 256;
/// A marker at least this often, so that the count of what is in flight stays fresh.
const MOST_UNMARKED: u32 = 64;
/// Where a queue can be stopped at its markers: how much it runs on at most. Closer together they would cost more than
/// they gain, for a device that stops at one takes a few microseconds to find out that it need not.
const STOP_EVERY: Nanos = Nanos::from_millis(1);

impl Window {
    /// An empty window.
    #[must_use]
    pub fn new(limit: Limit) -> Self {
        Self {
            limit,
            estimate: None,
            in_flight: Load::default(),
            unmarked: Load::default(),
            unmarked_since: Nanos::ZERO,
            outstanding: VecDeque::with_capacity(MOST_OUTSTANDING),
            last_marker: 0,
            device_free_at: Nanos::ZERO,
            is_exact: true,
            stoppable: false,
        }
    }

    /// Places markers so that the queue can be stopped at this level.
    pub fn set_level(&mut self, level: Level) {
        self.stoppable = level > Level::Block;
    }

    /// Measures differently from now on. What is in flight stays.
    pub fn set_limit(&mut self, limit: Limit) {
        self.limit = limit;
    }

    /// How it is measured.
    #[must_use]
    pub fn limit(&self) -> Limit {
        self.limit
    }

    /// What is in flight, as far as is known.
    #[must_use]
    pub fn in_flight(&self) -> Load {
        self.in_flight
    }

    /// How long one command is thought to take.
    #[must_use]
    pub fn estimate(&self) -> Option<Nanos> {
        self.estimate
    }

    /// Admits one command if there is room.
    pub fn reserve(&mut self) -> Option<Reservation> {
        let next = Load { commands: 1, work: self.expected_length() };
        let room = match self.limit {
            Limit::Budget(budget) => {
                self.in_flight.commands < Limit::MIN_COMMANDS || self.in_flight.work + next.work <= budget
            }
            Limit::Count { threshold, .. } => self.in_flight.commands < threshold,
        };
        room.then(|| {
            self.in_flight.add(next);
            Reservation(next)
        })
    }

    /// The command was not launched after all.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "consuming the place keeps it from being given back twice"
    )]
    pub fn cancel(&mut self, place: Reservation) {
        self.in_flight.take(place.0);
    }

    /// The command has been launched. Answers whether a marker is due now.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "consuming the place keeps it from being given back twice"
    )]
    pub fn launched(&mut self, place: Reservation, now: impl FnOnce() -> Nanos) -> bool {
        if self.unmarked.commands == 0 {
            self.unmarked_since = now();
        }
        self.unmarked.add(place.0);
        let due = match self.limit {
            // A quarter of the budget: room comes back in steps small enough to keep the device busy.
            Limit::Budget(budget) => {
                let furthest = if self.stoppable { STOP_EVERY } else { Nanos::MAX };
                let distance = (budget.0 / 4).min(furthest.0);
                self.unmarked.work.0 >= distance || self.unmarked.commands >= MOST_UNMARKED
            }
            Limit::Count { batch_size, .. } => self.unmarked.commands >= batch_size,
        };
        due && self.outstanding.len() < MOST_OUTSTANDING
    }

    /// Whether something was launched that no marker covers.
    #[must_use]
    pub fn has_unmarked(&self) -> bool {
        self.unmarked.commands > 0
    }

    /// A marker was placed behind everything launched so far.
    pub fn marked(&mut self, marker: Marker) {
        self.last_marker = marker;
        let load = std::mem::take(&mut self.unmarked);
        let full = self.outstanding.len() >= MOST_OUTSTANDING;
        match self.outstanding.back_mut() {
            // The batch joins the newest one: its commands are given back with the later marker.
            Some(last) if full => {
                last.load.add(load);
                last.marker = marker;
            }
            _ => self.outstanding.push_back(Batch { marker, load, began: self.unmarked_since }),
        }
    }

    /// The marker whose completion makes room first, if any is on its way.
    #[must_use]
    pub fn oldest_marker(&self) -> Option<Marker> {
        self.outstanding.front().map(|batch| batch.marker)
    }

    /// The last marker that was placed; 0 before the first.
    #[must_use]
    pub fn newest_marker(&self) -> Marker {
        self.last_marker
    }

    /// Takes note of how far the device has just come. `now` stands in where the device does not tell the time.
    pub fn observe(&mut self, progress: Progress, now: Nanos) {
        self.take_note(progress, now, true);
    }

    /// Takes note of how far the device had come when somebody looked, which may have been long after. Without the
    /// device's own clock the time says little about the length of commands.
    pub fn observe_late(&mut self, progress: Progress, now: Nanos) {
        self.take_note(progress, now, progress.at.is_some());
    }

    fn take_note(&mut self, progress: Progress, now: Nanos, exact: bool) {
        let mut done = Load::default();
        let mut began = None;
        while let Some(batch) = self.outstanding.front().copied() {
            if batch.marker > progress.marker {
                break;
            }
            self.outstanding.pop_front();
            done.add(batch.load);
            began.get_or_insert(batch.began);
        }
        let Some(began) = began else { return };
        self.in_flight.take(done);
        let finished = progress.at.unwrap_or(now);
        // The batch ran from when the device was free of the one before, or from its launch if that was later.
        let span = finished - self.device_free_at.max(began);
        let from_exact = self.is_exact || began >= self.device_free_at;
        // Whoever looks late now looked late then, too: the mean is right as long as the device was busy all the time.
        let busy_throughout = began <= self.device_free_at && !self.outstanding.is_empty();
        let says_much = (exact && from_exact) || (self.stoppable && busy_throughout);
        (self.device_free_at, self.is_exact) = (finished, exact);
        if done.commands > 0 && (self.estimate.is_none() || says_much) {
            self.learn(Nanos(span.0 / u64::from(done.commands)));
        }
    }

    /// Nothing ran before `now`: the queue was suspended, and the time must not count as work.
    pub fn resumed(&mut self, now: Nanos) {
        self.device_free_at = self.device_free_at.max(now);
        self.is_exact = true;
    }

    /// The device no longer reports: forget what is in flight rather than wait for it for ever.
    pub fn abandon(&mut self) {
        self.in_flight = Load::default();
        self.unmarked = Load::default();
        self.outstanding.clear();
    }

    /// Up fast, down slowly: too low an estimate lets too much in flight, too high a one costs a little throughput. What
    /// can be stopped does no harm in flight: there the mean is wanted.
    fn learn(&mut self, sample: Nanos) {
        self.estimate = Some(match self.estimate {
            None => sample,
            Some(old) if sample > old && self.stoppable => Nanos(old.0 + (sample.0 - old.0) / 8),
            Some(old) if sample > old => Nanos(old.0.midpoint(sample.0)),
            Some(old) => Nanos(old.0 - (old.0 - sample.0) / 8),
        });
    }

    /// An unknown command might be anything: count it as half of the budget, so that two are admitted at first.
    fn expected_length(&self) -> Nanos {
        match (self.estimate, self.limit) {
            (Some(estimate), _) => estimate,
            (None, Limit::Budget(budget)) => Nanos(budget.0 / 2),
            (None, Limit::Count { .. }) => Nanos::ZERO,
        }
    }
}
