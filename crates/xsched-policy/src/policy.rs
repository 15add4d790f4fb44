//! What a policy is: a pure function of a snapshot and the time.
//!
//! The same code runs in the service, in the local scheduler and in the simulator. A policy therefore reads no clock, does no
//! I/O and takes no lock; all its inputs are its arguments, and all it decides is in [`Decision`].
//!
//! A policy instance decides for one *domain*: one device, or the whole machine ([`Scope`]). [`crate::Scheduler`] sorts the
//! tasks into domains, and [`crate::Pipeline`] turns the grants into orders.

use xsched_core::{DeviceId, Hints, Nanos, ProcessId, TaskId, Timeslice};

/// What a policy sees of one task.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TaskView {
    /// Its id, which is never reused for another task.
    pub id: TaskId,
    /// Its process.
    pub process: ProcessId,
    /// Its device.
    pub device: DeviceId,
    /// Has work that is not finished, a thread held at the gate, or short idle gaps.
    pub ready: bool,
    /// Ready only because its idle gaps are short: it has no work at this moment. Set by the pipeline.
    pub in_gap: bool,
    /// Since when it is ready: the arrival of its oldest unfinished work. Meaningless while it is idle.
    pub ready_since: Nanos,
    /// Device time it has had since it was created; never decreases.
    pub used: Nanos,
    /// Its hints.
    pub hints: Hints,
    /// Its process's CPU nice value, -20 to 19.
    pub nice: i8,
    /// Its process owns the window that has the focus.
    pub focused: bool,
    /// What it costs to preempt it and to resume it.
    pub switch_cost: Nanos,
}

/// What a task may do until the next decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grant {
    /// Held. An idle task with this grant waits at the gate when it becomes ready, until the next decision.
    #[default]
    Hold,
    /// May run, but another task may preempt it: its work in flight is limited.
    Throttled,
    /// May run, and no task of this snapshot can preempt it: its work in flight has no limit.
    Unthrottled,
}

impl Grant {
    /// Whether the task may run, throttled or not.
    #[must_use]
    pub const fn runs(self) -> bool {
        !matches!(self, Self::Hold)
    }
}

/// What a policy decides: a grant for every task of the snapshot, ready or not, and when to decide again.
///
/// The grant of an idle task determines whether it may start at once when work arrives. The policy decides again in any case
/// when a task becomes ready or idle, comes or goes, or changes its hints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    grants: Vec<Grant>,
    again_at: Option<Nanos>,
}

impl Decision {
    /// Holds `tasks` tasks and requests no decision. Keeps its memory.
    pub fn reset(&mut self, tasks: usize) {
        self.grants.clear();
        self.grants.resize(tasks, Grant::Hold);
        self.again_at = None;
    }

    /// Sets the grant of the task at `index` of the snapshot.
    pub fn grant(&mut self, index: usize, grant: Grant) {
        self.grants[index] = grant;
    }

    /// Requests a decision at `at` even if no task changes before; the earliest of several requests counts.
    pub fn again_at(&mut self, at: Nanos) {
        self.again_at = Some(self.again_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// The grants, in the order of the snapshot.
    #[must_use]
    pub fn grants(&self) -> &[Grant] {
        &self.grants
    }

    /// When to decide again at the latest.
    #[must_use]
    pub const fn next_look(&self) -> Option<Nanos> {
        self.again_at
    }
}

/// Settings of a policy as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Length of a time slice, for the policies that have them.
    pub timeslice: Timeslice,
    /// How many tasks run at once under KEDF.
    pub k: usize,
}

/// How many times as long as a context switch a time slice is at least.
const MIN_SLICE_IN_SWITCHES: u64 = 25;

impl Params {
    /// The same for devices where a context switch costs `cost`: the default time slice becomes long enough to be worth it. A
    /// length that a user chose stays.
    #[must_use]
    pub fn for_switch_cost(mut self, cost: Nanos) -> Self {
        let min_slice = Nanos(cost.0.saturating_mul(MIN_SLICE_IN_SWITCHES));
        // The comparison comes first: a rejected length would allocate its error in every round.
        if self.timeslice == Timeslice::DEFAULT
            && min_slice > Timeslice::DEFAULT.get()
            && let Ok(slice) = Timeslice::from_micros(i64::try_from(min_slice.0 / 1_000).unwrap_or(i64::MAX))
        {
            self.timeslice = self.timeslice.max(slice);
        }
        self
    }
}

impl Default for Params {
    fn default() -> Self {
        Self { timeslice: Timeslice::DEFAULT, k: 1 }
    }
}

/// What one instance of a policy decides for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Each device by itself.
    Device,
    /// All devices of the machine together.
    Machine,
}

/// A scheduling policy.
pub trait Policy: Send {
    /// Decides which tasks may run from `now` on.
    ///
    /// `tasks` holds all tasks of the domain, ready or not, in ascending order of id; `out` has been reset to their number.
    /// `now` never decreases. A task that is missing from `tasks` is gone: forget it.
    fn decide(&mut self, now: Nanos, tasks: &[TaskView], out: &mut Decision);

    /// Changes the settings from the next decision on.
    fn configure(&mut self, params: &Params) {
        let _ = params;
    }

    /// How many tasks the policy remembers something about; never more than the last snapshot had.
    fn tracked(&self) -> usize {
        0
    }
}
