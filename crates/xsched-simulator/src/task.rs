//! A simulated task: its jobs in the order of their arrival, and the progress of the oldest one.

use std::collections::VecDeque;

use xsched_core::Order;

use crate::Histogram;
use crate::file::Arrival;
use crate::random::{LengthStream, Random};
use crate::spec::{Spec, TaskGroup};

/// What was counted about a task in the measured time. Times in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TaskTotals {
    pub(crate) jobs: u64,
    pub(crate) used: u64,
    pub(crate) held: u64,
    pub(crate) preemptions: u64,
    /// Jobs whose deadline was met or has passed.
    pub(crate) due: u64,
    pub(crate) missed: u64,
}

#[derive(Debug)]
pub(crate) struct Task<'a> {
    pub(crate) group: &'a TaskGroup,
    pub(crate) group_index: usize,
    /// Its device, as an index into the domain's.
    pub(crate) device: usize,
    /// Its index among the tasks of its device.
    pub(crate) index_on_device: usize,
    /// Its order, by the last plan.
    pub(crate) order: Order,
    /// Was preempted, so the device pays for a restore when it runs again.
    pub(crate) needs_restore: bool,
    /// What is left of the oldest command; 0 before its length is drawn.
    pub(crate) head_left: u64,
    /// Device time since the start, warm-up included: what the policy sees.
    pub(crate) used: u64,
    pub(crate) totals: TaskTotals,
    /// Its own latencies, where each task has a row in the report.
    pub(crate) latencies: Option<Histogram>,
    /// Arrivals of the jobs that are not finished, oldest first.
    jobs: VecDeque<u64>,
    /// Commands of the oldest job that are not finished.
    commands_left: u32,
    held_since: Option<u64>,
    /// Periodic jobs that have arrived.
    released: u64,
    arrivals: Random,
    lengths: LengthStream<'a>,
}

impl<'a> Task<'a> {
    pub(crate) fn new(
        spec: &'a Spec,
        task: usize,
        device: usize,
        index_on_device: usize,
        by_itself: bool,
    ) -> Self {
        let group_index = spec.tasks[task].group as usize;
        let group = &spec.task_groups[group_index];
        let stream = |kind: u64| Random::stream(spec.seed, 2 * task as u64 + kind);
        Self {
            group,
            group_index,
            device,
            index_on_device,
            order: Order::Yield,
            needs_restore: false,
            head_left: 0,
            used: 0,
            totals: TaskTotals::default(),
            latencies: by_itself.then(Histogram::default),
            jobs: VecDeque::new(),
            commands_left: 0,
            held_since: None,
            released: 0,
            arrivals: stream(0),
            lengths: LengthStream::new(&group.lengths, stream(1)),
        }
    }

    /// When the first job arrives.
    pub(crate) fn first_arrival(&mut self) -> u64 {
        match self.group.arrival {
            Arrival::Closed { .. } => 0,
            _ => self.next_arrival(0).unwrap_or(0),
        }
    }

    /// When the job after the one that arrived at `now` arrives, unless that depends on when work is finished.
    pub(crate) fn next_arrival(&mut self, now: u64) -> Option<u64> {
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

    /// Has a job that is not finished.
    pub(crate) fn has_work(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Its order lets it run.
    pub(crate) fn may_run(&self) -> bool {
        !self.order.stops()
    }

    /// May run and has work.
    pub(crate) fn can_run(&self) -> bool {
        self.may_run() && self.has_work()
    }

    /// When its oldest unfinished job arrived.
    pub(crate) fn ready_since(&self) -> Option<u64> {
        self.jobs.front().copied()
    }

    /// Adds a job. Returns whether the task was idle before.
    pub(crate) fn add_job(&mut self, now: u64) -> bool {
        let was_idle = self.jobs.is_empty();
        if was_idle {
            self.commands_left = self.group.commands;
        }
        self.jobs.push_back(now);
        was_idle
    }

    /// The time left of the oldest command. Draws its length if it has not started.
    pub(crate) fn head(&mut self) -> u64 {
        if self.head_left == 0 {
            self.head_left = self.lengths.next();
        }
        self.head_left
    }

    /// Counts the oldest command as finished. Returns whether it was the last of its job.
    pub(crate) fn finish_command(&mut self) -> bool {
        self.commands_left -= 1;
        self.commands_left == 0
    }

    /// Counts the oldest job as finished. Returns its latency, and when the next job arrives if that waited for this one.
    pub(crate) fn finish_job(&mut self, now: u64) -> (u64, Option<u64>) {
        let arrival = self.jobs.pop_front().unwrap_or(now);
        if self.has_work() {
            self.commands_left = self.group.commands;
        }
        let latency = now - arrival;
        self.totals.jobs += 1;
        if let Some(deadline) = self.group.hints.deadline {
            self.totals.due += 1;
            self.totals.missed += u64::from(latency > deadline.get().0);
        }
        let next = match self.group.arrival {
            Arrival::Closed { think } => Some(now + think.0),
            _ => None,
        };
        (latency, next)
    }

    /// Commands that arrived before `now`, so may have been launched by then.
    pub(crate) fn launchable(&self, now: u64) -> u64 {
        let older = self.jobs.iter().rev().skip_while(|arrival| **arrival == now).count() as u64;
        match older.checked_sub(1) {
            Some(whole) => whole * u64::from(self.group.commands) + u64::from(self.commands_left),
            None => 0,
        }
    }

    /// Counts the time it has work and is held.
    pub(crate) fn count_held(&mut self, now: u64) {
        match self.held_since {
            None if !self.may_run() && self.has_work() => self.held_since = Some(now),
            Some(since) if self.may_run() || !self.has_work() => {
                self.totals.held += now - since;
                self.held_since = None;
            }
            _ => {}
        }
    }

    /// Starts measuring.
    pub(crate) fn reset(&mut self, now: u64) {
        self.totals = TaskTotals::default();
        self.held_since = self.held_since.map(|_| now);
    }

    /// Ends the measurement: time held counts up to now, and an unfinished job whose deadline has passed counts as missed.
    pub(crate) fn finish(&mut self, now: u64) {
        if let Some(since) = self.held_since.take() {
            self.totals.held += now - since;
        }
        if let Some(deadline) = self.group.hints.deadline {
            let late =
                self.jobs.iter().take_while(|arrival| **arrival + deadline.get().0 <= now).count() as u64;
            self.totals.due += late;
            self.totals.missed += late;
        }
    }
}
