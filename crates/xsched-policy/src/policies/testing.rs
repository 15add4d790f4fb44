//! Helpers for the tests of policies: short constructors of tasks, and a device that runs one command at a time.

use xsched_core::{Hints, Nanos, Priority, ProcessId, Share, TaskId};

use crate::{Decision, Grant, Policy, TaskView};

pub(super) fn with_share(percent: i64) -> TaskView {
    let share = Share::new(percent).unwrap();
    TaskView { hints: Hints { share, ..Hints::default() }, ..TaskView::default() }
}

pub(super) fn priority(priority: i64) -> TaskView {
    let priority = Priority::new(priority).unwrap();
    TaskView { hints: Hints { priority, ..Hints::default() }, ..TaskView::default() }
}

pub(super) fn never() -> TaskView {
    priority(-256)
}

pub(super) fn of_process(pid: u32, task: TaskView) -> TaskView {
    TaskView { process: ProcessId(pid), ..task }
}

pub(super) fn ready(id: u64, task: TaskView) -> TaskView {
    TaskView { id: TaskId(id), ready: true, ..task }
}

pub(super) fn idle(id: u64, task: TaskView) -> TaskView {
    TaskView { id: TaskId(id), ready: false, ..task }
}

pub(super) fn decide(policy: &mut dyn Policy, at_us: u64, tasks: &[TaskView]) -> Decision {
    let mut out = Decision::default();
    out.reset(tasks.len());
    policy.decide(Nanos::from_micros(at_us), tasks, &mut out);
    out
}

pub(super) fn grants(policy: &mut dyn Policy, at_us: u64, tasks: &[TaskView]) -> Vec<Grant> {
    decide(policy, at_us, tasks).grants().to_vec()
}

/// Fails unless each utilization, in percent, is within `points` of what is expected.
#[track_caller]
pub(super) fn assert_shares(used: &[f64], expected: &[i64], points: f64) {
    let close = used.iter().zip(expected).all(|(used, &expected)| (used - expected as f64).abs() <= points);
    assert!(used.len() == expected.len() && close, "{used:.2?} percent, expected {expected:?}");
}

/// One task that the device runs.
struct Worker {
    task: TaskView,
    /// The length of its commands; none if it uses no device time.
    length: Option<Nanos>,
    /// How long it is idle after each.
    gap: Nanos,
    wakes: Nanos,
    /// Every command is a task of its own.
    short_lived: bool,
    used: Nanos,
}

/// The policy sees device time only when a command has completed: the most difficult case.
pub(super) struct Device {
    policy: Box<dyn Policy>,
    workers: Vec<Worker>,
    next_id: u64,
}

impl Device {
    pub(super) fn new(policy: Box<dyn Policy>) -> Self {
        Self { policy, workers: Vec::new(), next_id: 1 }
    }

    /// A task that launches its next command `gap_us` after the last has completed.
    pub(super) fn closed_loop(&mut self, length_us: u64, gap_us: u64, task: TaskView) {
        self.add(Some(Nanos::from_micros(length_us)), Nanos::from_micros(gap_us), task, false);
    }

    /// Tasks that exist for one command, each followed by the next.
    pub(super) fn short_lived(&mut self, length_us: u64, task: TaskView) {
        self.add(Some(Nanos::from_micros(length_us)), Nanos(1), task, true);
    }

    /// A task that is ready but uses no device time.
    pub(super) fn add_stalled(&mut self, task: TaskView) {
        self.add(None, Nanos::ZERO, task, false);
    }

    fn add(&mut self, length: Option<Nanos>, gap: Nanos, task: TaskView, short_lived: bool) {
        let task = ready(self.next_id, task);
        self.next_id += 1;
        self.workers.push(Worker { task, length, gap, wakes: Nanos::ZERO, short_lived, used: Nanos::ZERO });
    }

    /// Runs for so many seconds. Returns the utilization of each task, in percent.
    pub(super) fn run_secs(&mut self, secs: u64) -> Vec<f64> {
        let end = Nanos::from_secs(secs);
        let (mut now, mut out) = (Nanos::ZERO, Decision::default());
        let mut running: Option<(usize, Nanos)> = None;
        while now < end {
            let mut order: Vec<usize> = (0..self.workers.len()).collect();
            order.sort_by_key(|&worker| self.workers[worker].task.id);
            let tasks: Vec<_> = order.iter().map(|&worker| self.workers[worker].task).collect();
            out.reset(tasks.len());
            self.policy.decide(now, &tasks, &mut out);
            if running.is_none() {
                let may_run = |&worker: &usize| {
                    let at = order.iter().position(|&w| w == worker).unwrap();
                    tasks[at].ready && out.grants()[at].runs()
                };
                let candidates = order.iter().copied().filter(may_run);
                let least = candidates.filter_map(|w| self.workers[w].length.map(|length| (w, length)));
                running =
                    least.min_by_key(|&(w, _)| self.workers[w].used).map(|(w, length)| (w, now + length));
            }
            let wakes = self.workers.iter().filter(|w| !w.task.ready).map(|w| w.wakes);
            let events = wakes.chain(running.map(|(_, done)| done)).chain(out.next_look());
            let Some(next) = events.min() else { break };
            assert!(next > now, "a decision was requested for this instant");
            now = next;
            self.advance(now, &mut running);
        }
        self.workers.iter().map(|w| 100.0 * w.used.as_secs_f64() / end.as_secs_f64()).collect()
    }

    /// Processes what happens at `now`.
    fn advance(&mut self, now: Nanos, running: &mut Option<(usize, Nanos)>) {
        for worker in self.workers.iter_mut().filter(|w| !w.task.ready && w.wakes <= now) {
            worker.task.ready = true;
            worker.task.ready_since = now;
            if worker.short_lived {
                worker.task.id = TaskId(self.next_id);
                worker.task.used = Nanos::ZERO;
                self.next_id += 1;
            }
        }
        if let Some((index, _)) = running.take_if(|&mut (_, done)| done <= now) {
            let worker = &mut self.workers[index];
            let length = worker.length.unwrap_or_default();
            worker.used += length;
            worker.task.used += length;
            worker.task.ready_since = now;
            worker.task.ready = worker.gap == Nanos::ZERO;
            worker.wakes = now + worker.gap;
        }
    }
}
