//! A simulated task: its jobs in the order they came, and how far the first of them has got.

use std::collections::VecDeque;

use super::Histogram;
use super::file::Arrival;
use super::random::{LengthStream, Random};
use super::spec::{Spec, TaskGroup};

/// What a task had and suffered while it was measured. Times in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TaskTally {
    pub(super) jobs: u64,
    pub(super) used: u64,
    pub(super) held: u64,
    pub(super) preemptions: u64,
    /// Jobs whose deadline was met or has passed.
    pub(super) due: u64,
    pub(super) missed: u64,
}

#[derive(Debug)]
pub(super) struct Task<'a> {
    pub(super) group: &'a TaskGroup,
    pub(super) group_index: usize,
    /// Its place among the tasks of its device.
    pub(super) seat: usize,
    /// May run, by the last decision.
    pub(super) granted: bool,
    /// Was preempted, so running again costs the device a restore.
    pub(super) stopped: bool,
    /// What is left of the command at the head; 0 when the next one has not been looked at.
    pub(super) head_left: u64,
    /// Device time since the beginning, measured or not: what the policy sees.
    pub(super) used: u64,
    pub(super) tally: TaskTally,
    /// Its own latencies, where each task is reported by itself.
    pub(super) latencies: Option<Histogram>,
    /// Arrivals of the jobs that are not finished, oldest first.
    jobs: VecDeque<u64>,
    /// Commands of the oldest job that are not finished.
    commands_left: u32,
    held_since: Option<u64>,
    /// Periodic jobs that have come.
    released: u64,
    arrivals: Random,
    lengths: LengthStream<'a>,
}

impl<'a> Task<'a> {
    pub(super) fn new(spec: &'a Spec, task: usize, seat: usize, by_itself: bool) -> Self {
        let group_index = spec.tasks[task].group as usize;
        let group = &spec.task_groups[group_index];
        let stream = |kind: u64| Random::stream(spec.seed, 2 * task as u64 + kind);
        Self {
            group,
            group_index,
            seat,
            granted: false,
            stopped: false,
            head_left: 0,
            used: 0,
            tally: TaskTally::default(),
            latencies: by_itself.then(Histogram::default),
            jobs: VecDeque::new(),
            commands_left: 0,
            held_since: None,
            released: 0,
            arrivals: stream(0),
            lengths: LengthStream::new(&group.lengths, stream(1)),
        }
    }

    /// When the first job comes.
    pub(super) fn first_arrival(&mut self) -> u64 {
        match self.group.arrival {
            Arrival::Closed { .. } => 0,
            _ => self.next_arrival(0).unwrap_or(0),
        }
    }

    /// When the job after the one that came at `now` comes, unless that depends on when work is finished.
    pub(super) fn next_arrival(&mut self, now: u64) -> Option<u64> {
        match self.group.arrival {
            Arrival::Periodic { every, phase, jitter } => {
                let nominal = phase.0 + self.released * every;
                self.released += 1;
                Some(nominal + self.arrivals.between(0, jitter.0))
            }
            Arrival::Poisson { mean } => Some(now + self.arrivals.exponential(mean)),
            Arrival::Closed { .. } => None,
        }
    }

    pub(super) fn set_has_work(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// May run and wants to.
    pub(super) fn eligible(&self) -> bool {
        self.granted && self.set_has_work()
    }

    /// When its oldest unfinished job came.
    pub(super) fn ready_since(&self) -> Option<u64> {
        self.jobs.front().copied()
    }

    /// Takes a job in; says whether the task was idle before.
    pub(super) fn release(&mut self, now: u64) -> bool {
        let was_idle = self.jobs.is_empty();
        if was_idle {
            self.commands_left = self.group.commands;
        }
        self.jobs.push_back(now);
        was_idle
    }

    /// Makes sure that the command at the head has a length, and says which.
    pub(super) fn head(&mut self) -> u64 {
        if self.head_left == 0 {
            self.head_left = self.lengths.next();
        }
        self.head_left
    }

    /// Counts the command at the head as finished; says whether it was its job's last.
    pub(super) fn finish_command(&mut self) -> bool {
        self.commands_left -= 1;
        self.commands_left == 0
    }

    /// Counts the oldest job as finished: its latency, and when the next job comes if it waited for this one.
    pub(super) fn finish_job(&mut self, now: u64) -> (u64, Option<u64>) {
        let arrival = self.jobs.pop_front().unwrap_or(now);
        if self.set_has_work() {
            self.commands_left = self.group.commands;
        }
        let latency = now - arrival;
        self.tally.jobs += 1;
        if let Some(deadline) = self.group.hints.deadline {
            self.tally.due += 1;
            self.tally.missed += u64::from(latency > deadline.get().0);
        }
        let next = match self.group.arrival {
            Arrival::Closed { think } => Some(now + think.0),
            _ => None,
        };
        (latency, next)
    }

    /// Commands that were there before `now`, so may have been launched by then.
    pub(super) fn launchable(&self, now: u64) -> u64 {
        let older = self.jobs.iter().rev().skip_while(|arrival| **arrival == now).count() as u64;
        match older.checked_sub(1) {
            Some(whole) => whole * u64::from(self.group.commands) + u64::from(self.commands_left),
            None => 0,
        }
    }

    /// Keeps count of the time it wants to run and may not.
    pub(super) fn count_held(&mut self, now: u64) {
        match self.held_since {
            None if !self.granted && self.set_has_work() => self.held_since = Some(now),
            Some(since) if self.granted || !self.set_has_work() => {
                self.tally.held += now - since;
                self.held_since = None;
            }
            _ => {}
        }
    }

    /// Begins to measure.
    pub(super) fn reset(&mut self, now: u64) {
        self.tally = TaskTally::default();
        self.held_since = self.held_since.map(|_| now);
    }

    /// Closes the books: what is held counts up to now, and a job that is late without being done is late.
    pub(super) fn close(&mut self, now: u64) {
        if let Some(since) = self.held_since.take() {
            self.tally.held += now - since;
        }
        if let Some(deadline) = self.group.hints.deadline {
            let late =
                self.jobs.iter().take_while(|arrival| **arrival + deadline.get().0 <= now).count() as u64;
            self.tally.due += late;
            self.tally.missed += late;
        }
    }
}
