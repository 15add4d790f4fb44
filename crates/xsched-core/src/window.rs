//! The in-flight window: how much work a throttled queue may have on the device.
//!
//! A fixed number of commands is either too many (16 of 5 ms) or too few (16 of 2 us), so the window is measured in
//! time: it admits commands while the estimated work in flight fits a latency budget. The estimate comes from
//! markers: numbers that the device reports once everything before them has completed.
//!
//! ```text
//!    launched ──► c c c c M1 c c c M2 c c        M2 and what follows are in flight,
//!                 └ batch 1 ┘└ batch 2┘└ unmarked┘   M1 completed: the duration of batch 1 is known
//! ```
//!
//! The original C++ XSched limits the number of commands. That can be set instead: `threshold` commands in flight, a marker
//! after every `batch_size`.
//!
//! This module has no threads, clocks or devices; [`crate::LaunchPath`] adds them.

use std::collections::VecDeque;

use crate::hal::{Marker, Progress};
use crate::hint::HintError;
use crate::level::Level;
use crate::time::Nanos;

/// The limit of an in-flight window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The estimated work in flight. One more command may wait behind the running one ([`Limit::MIN_COMMANDS`]).
    Budget(Nanos),
    /// The number of commands in flight.
    Count {
        /// The most commands in flight.
        threshold: u32,
        /// The number of commands from one marker to the next.
        batch_size: u32,
    },
}

impl Limit {
    /// One command runs and one waits behind it, however long they take. With fewer the device would idle between two commands.
    /// Where work in flight cannot be stopped, the second one is admitted when the rest of the first fits half of the budget: the
    /// other half is for the time until an order arrives.
    pub const MIN_COMMANDS: u32 = 2;
    /// The default number of commands in flight where commands are counted, as in the original C++ XSched.
    pub const DEFAULT_THRESHOLD: i64 = 16;
    /// The default number of commands from one marker to the next, as in the original C++ XSched.
    pub const DEFAULT_BATCH_SIZE: i64 = 8;

    /// The default limit of a queue that is preempted at this level.
    ///
    /// From level 2 on work in flight can be stopped, so that the window can be large enough to keep the device busy while the
    /// host pauses. At level 1 a task of higher precedence waits for all of it.
    #[must_use]
    pub const fn for_level(level: Level) -> Self {
        match level {
            Level::Block => Self::Budget(Nanos::from_millis(1)),
            Level::Deactivate | Level::Interrupt => Self::Budget(Nanos::from_millis(200)),
        }
    }

    /// A limit of estimated work, 10 us to 10 s.
    pub fn budget(budget: Nanos) -> Result<Self, HintError> {
        if (Nanos::from_micros(10)..=Nanos::from_secs(10)).contains(&budget) {
            Ok(Self::Budget(budget))
        } else {
            Err(HintError { field: "budget", value: budget.to_string(), allowed: "10 us to 10 s" })
        }
    }

    /// A limit of commands, 1 to 65536, with a `batch_size` of 1 to `threshold`.
    pub fn count(threshold: i64, batch_size: i64) -> Result<Self, HintError> {
        const MAX_THRESHOLD: u32 = 65_536;
        let reject = |field, value: i64, allowed| Err(HintError { field, value: value.to_string(), allowed });
        let threshold = match u32::try_from(threshold) {
            Ok(n) if (1..=MAX_THRESHOLD).contains(&n) => n,
            _ => return reject("threshold", threshold, "1 to 65536 (commands in flight)"),
        };
        match u32::try_from(batch_size) {
            Ok(n) if (1..=threshold).contains(&n) => Ok(Self::Count { threshold, batch_size: n }),
            _ => reject("batch_size", batch_size, "1 to the threshold"),
        }
    }
}

/// A number of commands and their estimated duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// The number of commands.
    pub commands: u32,
    /// Their duration, by the estimate at the time each was admitted.
    pub work: Nanos,
}

impl Load {
    fn add(&mut self, other: Self) {
        self.commands += other.commands;
        self.work += other.work;
    }

    fn subtract(&mut self, other: Self) {
        self.commands = self.commands.saturating_sub(other.commands);
        self.work = self.work - other.work;
    }
}

/// Room for one command in the window. Return it with [`Window::launched`] or [`Window::cancel`].
#[derive(Debug)]
#[must_use = "a reservation that is dropped is never returned"]
pub struct Reservation(Load);

#[derive(Clone, Copy, Debug)]
struct Batch {
    marker: Marker,
    load: Load,
    /// When the first command of the batch was launched.
    began: Nanos,
}

/// The window of one queue.
#[derive(Debug)]
pub struct Window {
    limit: Limit,
    /// The duration of one command; none until the first marker has completed.
    estimate: Option<Nanos>,
    in_flight: Load,
    /// What was launched since the last marker.
    unmarked: Load,
    unmarked_since: Nanos,
    outstanding: VecDeque<Batch>,
    last_marker: Marker,
    /// When the device started this queue's next batch.
    device_free_at: Nanos,
    /// Whether `device_free_at` is the time of the completion, and not the later time at which a thread read the progress.
    is_exact: bool,
    /// The queue was stopped since the last observed progress.
    is_resumed: bool,
    /// Work in flight can be stopped, at the markers.
    is_stoppable: bool,
    /// The work between two markers at which the queue can be stopped.
    stop_distance: Nanos,
}

/// The most markers outstanding. Enough for the largest default window with the shortest distance of stop points: 200 ms with one
/// in at least two thirds of 0.5 ms.
const MAX_OUTSTANDING_MARKERS: usize = 640;
/// The most commands without a marker, so that the count of commands in flight stays current.
const MAX_UNMARKED_COMMANDS: u32 = 64;
/// The estimated work from one marker to the next of a queue that is stopped at its markers, unless its platform knows better
/// ([`crate::HwQueue::stop_distance`]). A device needs a few microseconds to pass a marker, so that closer markers would cost more
/// than they gain.
pub const DEFAULT_STOP_DISTANCE: Nanos = Nanos::from_millis(1);

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
            outstanding: VecDeque::with_capacity(MAX_OUTSTANDING_MARKERS),
            last_marker: 0,
            device_free_at: Nanos::ZERO,
            is_exact: true,
            is_resumed: false,
            is_stoppable: false,
            stop_distance: DEFAULT_STOP_DISTANCE,
        }
    }

    /// Sets how much work lies between two markers while the queue is stopped at them.
    pub fn set_stop_distance(&mut self, distance: Nanos) {
        self.stop_distance = distance;
    }

    /// Sets the level at which the queue is preempted. From level 2 on it is stopped at its markers.
    pub fn set_level(&mut self, level: Level) {
        self.is_stoppable = level > Level::Block;
    }

    /// Sets the limit. Work in flight stays.
    pub fn set_limit(&mut self, limit: Limit) {
        self.limit = limit;
    }

    /// The limit.
    #[must_use]
    pub fn limit(&self) -> Limit {
        self.limit
    }

    /// The work in flight, as of the last observed progress.
    #[must_use]
    pub fn in_flight(&self) -> Load {
        self.in_flight
    }

    /// The estimated duration of one command.
    #[must_use]
    pub fn estimate(&self) -> Option<Nanos> {
        self.estimate
    }

    /// Reserves room for one command, if there is any. Reads the clock only if that depends on the time.
    pub fn reserve(&mut self, now: impl FnOnce() -> Nanos) -> Option<Reservation> {
        let next = Load { commands: 1, work: self.expected_duration() };
        let room = match self.limit {
            Limit::Budget(budget) => {
                self.in_flight.work + next.work <= budget
                    || (self.in_flight.commands < Limit::MIN_COMMANDS
                        && self.room_at().is_none_or(|at| at <= now()))
            }
            Limit::Count { threshold, .. } => self.in_flight.commands < threshold,
        };
        room.then(|| {
            self.in_flight.add(next);
            Reservation(next)
        })
    }

    /// When the next command may wait behind the only one in flight, although both exceed the budget. A task of higher
    /// precedence then waits for the budget and one command at most, not for two commands. None if no command waits for that.
    #[must_use]
    pub fn room_at(&self) -> Option<Nanos> {
        let Limit::Budget(budget) = self.limit else { return None };
        if self.is_stoppable || self.in_flight.commands != 1 {
            return None;
        }
        let launched = match self.outstanding.front() {
            Some(batch) => batch.began,
            None if self.has_unmarked() => self.unmarked_since,
            // Another thread has reserved the room and not launched yet.
            None => return None,
        };
        Some(self.device_free_at.max(launched) + (self.in_flight.work - Nanos(budget.0 / 2)))
    }

    /// Returns a reservation whose command was not launched.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "consuming the reservation keeps it from being returned twice"
    )]
    pub fn cancel(&mut self, reservation: Reservation) {
        self.in_flight.subtract(reservation.0);
    }

    /// Notes that the command has been launched. Returns whether a marker is due.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "consuming the reservation keeps it from being returned twice"
    )]
    pub fn launched(&mut self, reservation: Reservation, now: impl FnOnce() -> Nanos) -> bool {
        if self.unmarked.commands == 0 {
            self.unmarked_since = now();
        }
        self.unmarked.add(reservation.0);
        let due = match self.limit {
            // A quarter of the budget: the window empties in steps that are small enough to keep the device busy.
            Limit::Budget(budget) => {
                let is_far = if self.is_stoppable {
                    // To the nearest command: commands that take a little less than the distance must not lie two between markers.
                    let rounded = self.unmarked.work + Nanos(self.expected_duration().0 / 2);
                    rounded >= self.stop_distance.min(Nanos(budget.0 / 4))
                } else {
                    self.unmarked.work.0 >= budget.0 / 4
                };
                is_far || self.unmarked.commands >= MAX_UNMARKED_COMMANDS
            }
            Limit::Count { batch_size, .. } => self.unmarked.commands >= batch_size,
        };
        due && self.outstanding.len() < MAX_OUTSTANDING_MARKERS
    }

    /// Whether a command was launched that no marker covers.
    #[must_use]
    pub fn has_unmarked(&self) -> bool {
        self.unmarked.commands > 0
    }

    /// Notes that a marker was placed behind everything launched so far.
    pub fn marked(&mut self, marker: Marker) {
        self.last_marker = marker;
        let load = std::mem::take(&mut self.unmarked);
        let full = self.outstanding.len() >= MAX_OUTSTANDING_MARKERS;
        match self.outstanding.back_mut() {
            // Merged with the newest batch: its commands complete with the later marker.
            Some(last) if full => {
                last.load.add(load);
                last.marker = marker;
            }
            _ => self.outstanding.push_back(Batch { marker, load, began: self.unmarked_since }),
        }
    }

    /// The first outstanding marker: its completion makes room.
    #[must_use]
    pub fn oldest_marker(&self) -> Option<Marker> {
        self.outstanding.front().map(|batch| batch.marker)
    }

    /// The last marker that was placed; 0 before the first.
    #[must_use]
    pub fn newest_marker(&self) -> Marker {
        self.last_marker
    }

    /// Notes progress that was made at `now`. A time that the device reports takes precedence.
    pub fn observe(&mut self, progress: Progress, now: Nanos) {
        self.note_progress(progress, now, true);
    }

    /// Notes progress that was read at `now` and may have been made long before. Without a time from the device it gives only
    /// a rough estimate of the duration of commands.
    pub fn observe_late(&mut self, progress: Progress, now: Nanos) {
        self.note_progress(progress, now, progress.at.is_some());
    }

    fn note_progress(&mut self, progress: Progress, now: Nanos, exact: bool) {
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
        self.in_flight.subtract(done);
        let finished = progress.at.unwrap_or(now);
        // The batch ran since the batch before it completed, or since its launch if that was later.
        let span = finished - self.device_free_at.max(began);
        let from_exact = self.is_exact || began >= self.device_free_at;
        // If both ends were read late, the mean is right as long as the device was busy throughout.
        let busy_throughout = began <= self.device_free_at && !self.outstanding.is_empty();
        let is_reliable = (exact && from_exact) || (self.is_stoppable && busy_throughout);
        (self.device_free_at, self.is_exact) = (finished, exact);
        // What was completed before the stop, or in part, would seem to take almost no time. From too low an estimate the window does
        // not recover: it places few markers, and learns from few of them.
        if std::mem::take(&mut self.is_resumed) && self.estimate.is_some() {
            return;
        }
        if done.commands > 0 && (self.estimate.is_none() || is_reliable) {
            self.learn(Nanos(span.0 / u64::from(done.commands)));
        }
    }

    /// Notes that the queue was stopped until `now`: the time before does not count as work.
    ///
    /// The first estimate includes that time: too high an estimate is corrected soon, because it places a marker behind each command.
    pub fn resumed(&mut self, now: Nanos) {
        self.is_resumed = true;
        if self.estimate.is_some() {
            self.device_free_at = self.device_free_at.max(now);
            self.is_exact = true;
        }
    }

    /// Discards what is in flight: the device no longer reports progress, and a thread that waits for it would block
    /// indefinitely.
    pub fn abandon(&mut self) {
        self.in_flight = Load::default();
        self.unmarked = Load::default();
        self.outstanding.clear();
    }

    /// Increases fast and decreases slowly: too low an estimate admits too much work, too high an estimate costs a little
    /// throughput. Work that can be stopped may be in flight, so that the mean is the best estimate there.
    fn learn(&mut self, sample: Nanos) {
        self.estimate = Some(match self.estimate {
            None => sample,
            Some(old) if sample > old && self.is_stoppable => Nanos(old.0 + (sample.0 - old.0) / 8),
            Some(old) if sample > old => Nanos(old.0.midpoint(sample.0)),
            Some(old) => Nanos(old.0 - (old.0 - sample.0) / 8),
        });
    }

    /// Until the first estimate a command counts as half of the budget, so that two are admitted.
    fn expected_duration(&self) -> Nanos {
        match (self.estimate, self.limit) {
            (Some(estimate), _) => estimate,
            (None, Limit::Budget(budget)) => Nanos(budget.0 / 2),
            (None, Limit::Count { .. }) => Nanos::ZERO,
        }
    }
}
