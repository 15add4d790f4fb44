//! A simulated device: what it is doing, and what happens there when a task is ordered to stop.
//!
//! ```text
//!            switch + restore                     a command ends, a slice ends,
//!   idle ───────────────▶ lost ────────▶ running ─── an order to stop ───┐
//!    ▲                     ▲                                             │
//!    │                     └──────────── preempt ◀───── stops ◀──────────┤ level 3: at once
//!    └───────────────── no task may run ◀────────────────────────────────┘ level 2: after the running command
//!                                                                          level 1: after the work in flight
//! ```
//!
//! Tasks with the orders free, leader, peer and throttled run, one at a time in the device's own slices. Tasks with the
//! orders yield, evict and drain do not.

use xsched_core::{Level, Nanos};

use crate::spec::DeviceGroup;
use crate::task::Task;

/// How a device spent the measured time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeviceTotals {
    pub(crate) busy: u64,
    pub(crate) lost: u64,
    pub(crate) idle: u64,
    pub(crate) preemptions: u64,
    pub(crate) switches: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// Switching or restoring, until `next`.
    Lost,
    /// Preempting this task, until `next`.
    Preempting(usize),
    /// Executing for this task.
    Running(usize),
}

/// Work in flight that has to finish although its task is ordered to stop (level 1).
#[derive(Clone, Copy, Debug)]
struct Drain {
    /// Commands that may have been launched before the order to stop.
    launchable: u64,
    /// How many of them were launched: at least two, and as many as fit the window.
    launched: u64,
    /// How long the launched ones take together.
    length: u64,
}

#[derive(Debug)]
pub(crate) struct Device<'a> {
    model: &'a DeviceGroup,
    /// Its tasks, as indices into the domain's.
    tasks: Vec<usize>,
    /// When something happens here next.
    pub(crate) next: u64,
    /// Something has happened here that `dispatch` has not handled yet.
    pub(crate) is_due: bool,
    /// The task that was on the device at the last plan.
    pub(crate) planned_occupant: Option<usize>,
    pub(crate) totals: DeviceTotals,
    phase: Phase,
    /// Up to when its time is accounted for.
    settled: u64,
    last: Option<usize>,
    /// Index of the first candidate for the next slice.
    next_candidate: usize,
    slice_start: u64,
    /// When another task that may run has its slice.
    slice_end: u64,
    drain: Option<Drain>,
}

const NEVER: u64 = u64::MAX;

impl<'a> Device<'a> {
    pub(crate) fn new(model: &'a DeviceGroup) -> Self {
        Self {
            model,
            tasks: Vec::new(),
            next: NEVER,
            is_due: false,
            planned_occupant: None,
            totals: DeviceTotals::default(),
            phase: Phase::Idle,
            settled: 0,
            last: None,
            next_candidate: 0,
            slice_start: 0,
            slice_end: NEVER,
            drain: None,
        }
    }

    /// Adds a task of the domain. Returns its index on this device.
    pub(crate) fn add_task(&mut self, task: usize) -> usize {
        self.tasks.push(task);
        self.tasks.len() - 1
    }

    /// What it costs to preempt one task and to resume another.
    pub(crate) fn switch_cost(&self) -> Nanos {
        self.model.cost.preempt + self.model.cost.restore + Nanos(self.model.switch)
    }

    /// The task that the device runs, or is preempting.
    pub(crate) fn occupant(&self) -> Option<usize> {
        match self.phase {
            Phase::Running(task) | Phase::Preempting(task) => Some(task),
            Phase::Idle | Phase::Lost => None,
        }
    }

    /// Accounts for the time up to `now`.
    pub(crate) fn settle(&mut self, tasks: &mut [Task], now: u64) {
        let elapsed = now - self.settled;
        self.settled = now;
        match self.phase {
            Phase::Idle => self.totals.idle += elapsed,
            Phase::Lost | Phase::Preempting(_) => self.totals.lost += elapsed,
            Phase::Running(task) => {
                self.totals.busy += elapsed;
                let task = &mut tasks[task];
                task.used += elapsed;
                task.totals.used += elapsed;
                task.head_left -= elapsed;
            }
        }
    }

    /// Processes what happens here at `now`. Returns the task whose job was finished by it, if one was.
    pub(crate) fn advance(&mut self, tasks: &mut [Task], now: u64) -> Option<usize> {
        self.settle(tasks, now);
        self.is_due = true;
        match self.phase {
            Phase::Running(task) if tasks[task].head_left == 0 && tasks[task].finish_command() => Some(task),
            Phase::Preempting(_) => {
                self.phase = Phase::Lost;
                None
            }
            _ => None,
        }
    }

    /// Chooses the task that runs from `now` on. `planned` means that orders or readiness may have changed.
    pub(crate) fn dispatch(&mut self, tasks: &mut [Task], now: u64, planned: bool) {
        self.is_due = false;
        let phase = self.phase;
        match phase {
            Phase::Lost | Phase::Preempting(_) if now < self.next => {}
            Phase::Running(task) if self.keeps_running(task, tasks, now, planned) => {
                self.next = (now + tasks[task].head()).min(self.slice_end);
            }
            Phase::Running(task) => {
                let is_preempted = tasks[task].has_work() && !tasks[task].may_run();
                self.drain = None;
                self.next_candidate = tasks[task].index_on_device + 1;
                if is_preempted {
                    tasks[task].needs_restore = true;
                    tasks[task].totals.preemptions += 1;
                    self.totals.preemptions += 1;
                }
                match self.model.cost.preempt.0 {
                    cost if is_preempted && cost > 0 => {
                        self.phase = Phase::Preempting(task);
                        self.next = now + cost;
                    }
                    _ => self.start_next(tasks, now),
                }
            }
            Phase::Lost | Phase::Preempting(_) | Phase::Idle => self.start_next(tasks, now),
        }
    }

    /// Whether the running task keeps the device.
    fn keeps_running(&mut self, running: usize, tasks: &mut [Task], now: u64, planned: bool) -> bool {
        let task = &mut tasks[running];
        if !task.has_work() {
            return false;
        }
        if !task.may_run() {
            self.slice_end = NEVER;
            return self.drains(task, now);
        }
        self.drain = None;
        let slice_over = now >= self.slice_end;
        if planned || slice_over {
            let is_contended = self.another_can_run(running, tasks);
            if is_contended && slice_over {
                return false;
            }
            self.slice_end = if is_contended { self.slice_end_after(now) } else { NEVER };
        }
        true
    }

    /// Whether a task that is ordered to stop still has work on the device that its level cannot stop.
    fn drains(&mut self, task: &mut Task, now: u64) -> bool {
        match self.model.level {
            Level::Interrupt => false,
            Level::Deactivate => task.head_left > 0,
            Level::Block => {
                let running = task.head_left > 0;
                let new_drain = || Drain { launchable: task.launchable(now), launched: 0, length: 0 };
                let drain = self.drain.get_or_insert_with(new_drain);
                if running && drain.launched > 0 {
                    return true;
                }
                if drain.launched >= drain.launchable {
                    return false;
                }
                let length = task.head();
                if drain.launched >= 2 && drain.length + length > self.model.window {
                    return false;
                }
                drain.launched += 1;
                drain.length += length;
                true
            }
        }
    }

    fn another_can_run(&self, running: usize, tasks: &[Task]) -> bool {
        self.tasks.iter().any(|task| *task != running && tasks[*task].can_run())
    }

    /// The device's own slices continue while a task is alone, so a second task waits for less than one slice.
    fn slice_end_after(&self, now: u64) -> u64 {
        let slice = self.model.native_slice;
        now + slice - (now - self.slice_start) % slice
    }

    fn start_next(&mut self, tasks: &mut [Task], now: u64) {
        let count = self.tasks.len();
        let next = (0..count)
            .map(|n| self.tasks[(self.next_candidate + n) % count])
            .find(|task| tasks[*task].can_run());
        let Some(next) = next else {
            self.phase = Phase::Idle;
            self.next = NEVER;
            return;
        };
        let task = &mut tasks[next];
        let is_switch = self.last.is_some_and(|last| last != next);
        let switch = if is_switch { self.model.switch } else { 0 };
        let restore = if task.needs_restore { self.model.cost.restore.0 } else { 0 };
        self.totals.switches += u64::from(is_switch);
        self.last = Some(next);
        self.next_candidate = task.index_on_device;
        task.needs_restore = false;
        if switch + restore > 0 {
            self.phase = Phase::Lost;
            self.next = now + switch + restore;
            return;
        }
        self.phase = Phase::Running(next);
        self.slice_start = now;
        self.next = now + task.head();
        let is_contended = self.another_can_run(next, tasks);
        self.slice_end = if is_contended { self.slice_end_after(now) } else { NEVER };
        self.next = self.next.min(self.slice_end);
    }
}
