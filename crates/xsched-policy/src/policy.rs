//! What a policy is: a pure function of a snapshot and the time.
//!
//! The same code runs in a process, in the service and in the simulator. A policy therefore reads no clock, does no
//! I/O and takes no lock; everything it may know is in its arguments, everything it decides is in [`Decision`].
//!
//! A policy instance decides for one *domain*: one device, or the whole machine for the policies that say so
//! ([`Scope`]). It never has to sort tasks by device itself; [`crate::Scheduler`] does.

use xsched_core::{DeviceId, Hints, Nanos, ProcessId, TaskId, Timeslice};

/// What a policy sees of one task.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TaskView {
    /// Which task. Ids are never used again for another task.
    pub id: TaskId,
    /// Whose it is.
    pub process: ProcessId,
    /// Where it runs.
    pub device: DeviceId,
    /// Has work that is not finished, or a thread held at the gate.
    pub ready: bool,
    /// Ready only because its idle gaps are short: it has no work at this moment. Set by the pipeline.
    pub in_gap: bool,
    /// Since when it is ready: the arrival of its oldest unfinished work. Without meaning while it is idle.
    pub ready_since: Nanos,
    /// Device time it has had since it was made; never goes back.
    pub used: Nanos,
    /// Its hint_request, with inherited priority already applied.
    pub hints: Hints,
    /// Its process's CPU nice value, -20 to 19.
    pub nice: i8,
    /// Its process owns the window that has the focus.
    pub focused: bool,
    /// What it costs to take the device from it and to give it back.
    pub switch_cost: Nanos,
}

/// What a task may do until the next decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grant {
    /// Stopped. An idle task with this grant waits at the gate when it becomes ready, until the next decision.
    #[default]
    Hold,
    /// May run, but another task may preempt it: its work in flight is limited.
    Throttled,
    /// May run, and no task of this snapshot could preempt it: its work in flight needs no limit.
    Unthrottled,
}

impl Grant {
    /// Whether the task may run, throttled or not.
    #[must_use]
    pub const fn runs(self) -> bool {
        !matches!(self, Self::Hold)
    }
}

/// What a policy decides: a grant for every task of the snapshot, ready or not, and when to ask again.
///
/// The grant of an idle task says whether it may begin at once when work arrives. The policy is asked again anyway
/// when a task becomes ready or idle, comes or goes, or changes its hints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    grants: Vec<Grant>,
    again_at: Option<Nanos>,
}

impl Decision {
    /// Forgets what was decided and holds `tasks` tasks. Keeps its memory.
    pub fn reset(&mut self, tasks: usize) {
        self.grants.clear();
        self.grants.resize(tasks, Grant::Hold);
        self.again_at = None;
    }

    /// Grants something to the task at `index` of the snapshot.
    pub fn grant(&mut self, index: usize, grant: Grant) {
        self.grants[index] = grant;
    }

    /// Asks to be called again at `at` even if nothing happens; the earliest of several calls counts.
    pub fn again_at(&mut self, at: Nanos) {
        self.again_at = Some(self.again_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// The grants, in the order of the snapshot.
    #[must_use]
    pub fn grants(&self) -> &[Grant] {
        &self.grants
    }

    /// When to ask again at the latest.
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
    /// Decides who may run from `now` on.
    ///
    /// `tasks` holds every living task of the domain, ready or not, in ascending order of id; `out` has been reset to
    /// their number. `now` never goes back. A task that is missing from `tasks` is dead: forget it.
    fn decide(&mut self, now: Nanos, tasks: &[TaskView], out: &mut Decision);

    /// Takes new settings; they count from the next decision on.
    fn configure(&mut self, params: &Params) {
        let _ = params;
    }

    /// How many tasks the policy remembers something about; never more than the last snapshot held.
    fn tracked(&self) -> usize {
        0
    }
}
