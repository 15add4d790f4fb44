//! A simulated device: what it is doing, and what happens there when a task may no longer run.
//!
//! ```text
//!            begin: switch + restore              a command ends, a slice ends,
//!   idle ───────────────▶ lost ────────▶ running ─── the grant is gone ──┐
//!    ▲                     ▲                                             │
//!    │                     └──────────── preempt ◀──── stop now ◀────────┤ level 3: at once
//!    └───────────────── nobody to run ◀──────────────────────────────────┘ level 2: after the running command
//!                                                                          level 1: after what is in flight
//! ```

use xsched_core::Level;

use super::spec::DeviceGroup;
use super::task::Task;

/// How a device spent the time it was measured, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DeviceTally {
    pub(super) busy: u64,
    pub(super) lost: u64,
    pub(super) idle: u64,
    pub(super) preemptions: u64,
    pub(super) switches: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// Switching, preempting or restoring, until `next`.
    Lost,
    /// Executing for this task.
    Running(usize),
}

/// Work in flight that has to finish although its task may no longer run (level 1).
#[derive(Clone, Copy, Debug)]
struct Drain {
    /// Commands that may have been launched before the grant was taken away.
    launchable: u64,
    /// Of those, how many were; at least two, and as many as fit the window.
    launched: u64,
    /// How long the launched ones take together.
    length: u64,
}

#[derive(Debug)]
pub(super) struct Device<'a> {
    model: &'a DeviceGroup,
    /// Its tasks: indices into the domain's.
    tasks: Vec<usize>,
    /// When something happens here next.
    pub(super) next: u64,
    /// Something has happened here that `dispatch` has not seen yet.
    pub(super) due: bool,
    pub(super) tally: DeviceTally,
    phase: Phase,
    /// Up to when its time is accounted for.
    settled: u64,
    last: Option<usize>,
    /// The seat that is looked at first for the next task to run.
    turn: usize,
    turn_start: u64,
    /// When the running task has to let another granted one run.
    slice_end: u64,
    drain: Option<Drain>,
}

const NEVER: u64 = u64::MAX;

impl<'a> Device<'a> {
    pub(super) fn new(model: &'a DeviceGroup) -> Self {
        Self {
            model,
            tasks: Vec::new(),
            next: NEVER,
            due: false,
            tally: DeviceTally::default(),
            phase: Phase::Idle,
            settled: 0,
            last: None,
            turn: 0,
            turn_start: 0,
            slice_end: NEVER,
            drain: None,
        }
    }

    /// Gives a task of the domain a seat here, and says which.
    pub(super) fn seat(&mut self, task: usize) -> usize {
        self.tasks.push(task);
        self.tasks.len() - 1
    }

    /// Accounts for the time up to `now`.
    pub(super) fn settle(&mut self, tasks: &mut [Task], now: u64) {
        let elapsed = now - self.settled;
        self.settled = now;
        match self.phase {
            Phase::Idle => self.tally.idle += elapsed,
            Phase::Lost => self.tally.lost += elapsed,
            Phase::Running(task) => {
                self.tally.busy += elapsed;
                let task = &mut tasks[task];
                task.used += elapsed;
                task.tally.used += elapsed;
                task.head_left -= elapsed;
            }
        }
    }

    /// Lets what happens here at `now` happen; says whose job was finished by it, if one was.
    pub(super) fn advance(&mut self, tasks: &mut [Task], now: u64) -> Option<usize> {
        self.settle(tasks, now);
        self.due = true;
        match self.phase {
            Phase::Running(task) if tasks[task].head_left == 0 && tasks[task].finish_command() => Some(task),
            _ => None,
        }
    }

    /// Settles who runs from `now` on. `decided` says that grants or readiness may have changed.
    pub(super) fn dispatch(&mut self, tasks: &mut [Task], now: u64, decided: bool) {
        self.due = false;
        let phase = self.phase;
        match phase {
            Phase::Lost if now < self.next => {}
            Phase::Running(task) if self.goes_on(task, tasks, now, decided) => {
                self.next = (now + tasks[task].head()).min(self.slice_end);
            }
            Phase::Running(task) => {
                let preempted = tasks[task].set_has_work() && !tasks[task].granted;
                self.drain = None;
                self.turn = tasks[task].seat + 1;
                if preempted {
                    tasks[task].stopped = true;
                    tasks[task].tally.preemptions += 1;
                    self.tally.preemptions += 1;
                }
                match self.model.cost.preempt.0 {
                    cost if preempted && cost > 0 => self.lose(now, cost),
                    _ => self.begin_next(tasks, now),
                }
            }
            Phase::Lost | Phase::Idle => self.begin_next(tasks, now),
        }
    }

    /// Whether the running task keeps the device.
    fn goes_on(&mut self, running: usize, tasks: &mut [Task], now: u64, decided: bool) -> bool {
        let task = &mut tasks[running];
        if !task.set_has_work() {
            return false;
        }
        if !task.granted {
            self.slice_end = NEVER;
            return self.drains(task, now);
        }
        self.drain = None;
        let slice_over = now >= self.slice_end;
        if decided || slice_over {
            let wanted = self.wanted_by_another(running, tasks);
            if wanted && slice_over {
                return false;
            }
            self.slice_end = if wanted { self.slice_end_after(now) } else { NEVER };
        }
        true
    }

    /// Whether a task without a grant still has something on the device that cannot be stopped.
    fn drains(&mut self, task: &mut Task, now: u64) -> bool {
        match self.model.level {
            Level::Interrupt => false,
            Level::Deactivate => task.head_left > 0,
            Level::Block => {
                let running = task.head_left > 0;
                let first = || Drain { launchable: task.launchable(now), launched: 0, length: 0 };
                let drain = self.drain.get_or_insert_with(first);
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

    fn wanted_by_another(&self, running: usize, tasks: &[Task]) -> bool {
        self.tasks.iter().any(|task| *task != running && tasks[*task].eligible())
    }

    /// The native scheduler's slices go on counting while a task is alone, so a newcomer waits for less than one.
    fn slice_end_after(&self, now: u64) -> u64 {
        let slice = self.model.native_slice;
        now + slice - (now - self.turn_start) % slice
    }

    fn begin_next(&mut self, tasks: &mut [Task], now: u64) {
        let seats = self.tasks.len();
        let next =
            (0..seats).map(|n| self.tasks[(self.turn + n) % seats]).find(|task| tasks[*task].eligible());
        let Some(next) = next else {
            self.phase = Phase::Idle;
            self.next = NEVER;
            return;
        };
        let task = &mut tasks[next];
        let other = self.last.is_some_and(|last| last != next);
        let switch = if other { self.model.switch } else { 0 };
        let restore = if task.stopped { self.model.cost.restore.0 } else { 0 };
        self.tally.switches += u64::from(other);
        self.last = Some(next);
        self.turn = task.seat;
        task.stopped = false;
        if switch + restore > 0 {
            self.lose(now, switch + restore);
            return;
        }
        self.phase = Phase::Running(next);
        self.turn_start = now;
        self.next = now + task.head();
        let wanted = self.wanted_by_another(next, tasks);
        self.slice_end = if wanted { self.slice_end_after(now) } else { NEVER };
        self.next = self.next.min(self.slice_end);
    }

    fn lose(&mut self, now: u64, cost: u64) {
        self.phase = Phase::Lost;
        self.next = now + cost;
    }
}
