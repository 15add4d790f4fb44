//! A virtual-time simulator for policies: what would this policy do to these tasks on these devices?
//!
//! ```
//! use xsched_policy::PolicyInfo;
//! use xsched_simulator as simulator;
//!
//! let spec = simulator::Spec::from_toml(r#"
//!     duration = "10s"
//!
//!     [[device]]
//!     name = "gpu"
//!     level = 3                                    # stops even the running command
//!     preempt = "20us"                             # ... in this time
//!
//!     [[task]]
//!     name = "serving"
//!     arrival.periodic = { every = "20ms" }        # a job every 20 ms
//!     commands = 10                                # of ten commands
//!     command = "200us"                            # of 200 us each
//!     priority = "high"
//!
//!     [[task]]
//!     name = "training"
//!     arrival.closed = {}                          # the next job as soon as the last is done
//!     command.exponential = { mean = "2ms" }
//! "#)?;
//! let scheduled = simulator::run(&spec, PolicyInfo::find("priority")?);
//! let native = simulator::run(&spec, &simulator::NATIVE);
//! assert!(scheduled.task_groups[0].latency.p99_ns < native.task_groups[0].latency.p99_ns);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The policies and the decision pipeline are the code that runs in the service ([`Driver`]); the simulated devices obey its
//! orders. Idle gaps, time slices among throttled processes and the wait for a drain are therefore part of the result.
//! Sync-bound tasks and dependencies between tasks are not modelled.
//!
//! A run is a function of its specification and its seed: the number of threads changes nothing, and a task has the same
//! arrivals and command lengths under every policy.
//!
//! # The file format
//! Times are strings with a unit: `"500us"`, `"2ms"`, `"1.5s"`. Fields without a default are required.
//!
//! | at the top | default | |
//! |---|---|---|
//! | `duration` | | virtual time to simulate |
//! | `warmup` | `"0s"` | time at the start that is not measured |
//! | `seed` | 0 | seed of all random numbers |
//! | `policy.timeslice`, `policy.k` | `"5ms"`, 1 | settings of the policies that have them |
//!
//! | `[[device]]` | default | |
//! |---|---|---|
//! | `name` | | with a `count`, the devices are `name-0`, `name-1`, ... |
//! | `count` | 1 | number of identical devices |
//! | `machine`, `devices_per_machine` | one machine | devices that a machine-wide policy decides for together |
//! | `level` | | what still runs after an order to stop; 1: work in flight; 2: the running command; 3: nothing, it is interrupted and resumed later |
//! | `preempt`, `restore` | `"0s"` | time lost when a task is preempted, and when it resumes |
//! | `switch` | `"0s"` | time lost at each context switch to another task |
//! | `native_slice` | `"2ms"` | the device's own time slice among tasks that may all run |
//! | `window` | `"1ms"` | work in flight at level 1, at least two commands |
//!
//! | `[[task]]` | default | |
//! |---|---|---|
//! | `name`, `count` | , 1 | as with devices |
//! | `device` | all | a device or a group: replica `i` runs on device `i`, modulo their number |
//! | `process` | its own | tasks with the same process name and replica number belong to one process |
//! | `arrival.periodic` | | `every`, and optionally `phase` (time before the first job) and `jitter` (each job is late by up to this) |
//! | `arrival.poisson` | | `mean` time between jobs |
//! | `arrival.closed` | | optionally `think`, the time from the end of one job to the next |
//! | `commands` | 1 | commands per job |
//! | `command` | | a time, or one of `uniform = { min, max }`, `exponential = { mean }`, `lognormal = { median, sigma }`, `list = [...]` |
//! | `priority`, `share`, `deadline`, `laxity = { span, lax, critical }`, `nice`, `focused` | | hints |

pub mod cluster;
mod device;
mod domain;
mod driver;
mod file;
mod random;
mod report;
mod spec;
mod table;
mod task;
mod values;

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

pub use driver::Driver;
pub use file::SpecError;
pub use report::{DeviceReport, Latency, Report, TaskReport};
pub use spec::Spec;
pub use table::{compare, table};

use domain::{Collector, Outcome};
use spec::DomainPlan;
use xsched_core::Nanos;
use xsched_policy::{Decision, Grant, GrantMode, Needs, Policy, PolicyInfo, Scope, Selection, TaskView};

/// Latencies in nanoseconds. A quantile is off by less than 0.5 %.
type Histogram = xsched_core::Histogram<7>;

/// The device's own time slices without a policy: every task may always run.
pub static NATIVE: PolicyInfo = PolicyInfo {
    name: "native",
    plain: "native",
    number: 0,
    scope: Scope::Device,
    work_conserving: true,
    grant_mode: GrantMode::Concurrent,
    selection: Selection::Precedence,
    needs: Needs::NOTHING,
    summary: "the device's own time slices",
    make: || Box::new(EveryTaskRuns),
};

struct EveryTaskRuns;

impl Policy for EveryTaskRuns {
    fn decide(&mut self, _now: Nanos, tasks: &[TaskView], out: &mut Decision) {
        for index in 0..tasks.len() {
            out.grant(index, Grant::Unthrottled);
        }
    }
}

/// How a simulation is run. Changes nothing in the result but which rows it has.
#[derive(Debug, Default)]
pub struct Options<'a> {
    /// Threads to use; by default one per core.
    pub threads: Option<NonZeroUsize>,
    /// Report each task and device even if there are more than 200 tasks.
    pub every_task: bool,
    /// Where the run publishes its progress.
    pub progress: Option<&'a Progress>,
}

/// The progress of a run, for another thread to read.
#[derive(Debug, Default)]
pub struct Progress {
    pub(crate) done: AtomicU64,
    pub(crate) total: AtomicU64,
    /// Complete runs, for a search that needs several.
    pub(crate) runs: AtomicU64,
}

impl Progress {
    /// From 0 to 1.
    #[must_use]
    pub fn fraction(&self) -> f64 {
        match self.total.load(Ordering::Relaxed) {
            0 => 0.0,
            total => self.done.load(Ordering::Relaxed) as f64 / total as f64,
        }
    }

    /// How many runs are complete.
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }
}

/// A report has a row for each task up to this number of tasks.
const MAX_TASK_ROWS: usize = 200;

/// Simulates `spec` under `policy` on all cores.
#[must_use]
pub fn run(spec: &Spec, policy: &'static PolicyInfo) -> Report {
    run_with(spec, policy, &Options::default())
}

/// Simulates `spec` under `policy`, which may be one of [`xsched_policy::POLICIES`], [`NATIVE`], or a policy of the caller.
#[must_use]
pub fn run_with(spec: &Spec, policy: &'static PolicyInfo, options: &Options<'_>) -> Report {
    let plans = spec.domains(policy.scope);
    let unwatched = Progress::default();
    let progress = options.progress.unwrap_or(&unwatched);
    progress.done.store(0, Ordering::Relaxed);
    progress.total.store(spec.duration.saturating_mul(plans.len() as u64), Ordering::Relaxed);

    let each_task = options.every_task || spec.tasks() <= MAX_TASK_ROWS;
    let cores = options.threads.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
    let worker = Worker { spec, policy, plans: &plans, each_task, progress };
    let next = AtomicUsize::new(0);
    let mut outcomes: Vec<Option<Outcome>> = plans.iter().map(|_| None).collect();
    let mut latencies = vec![Histogram::default(); spec.task_groups.len()];
    thread::scope(|scope| {
        let workers: Vec<_> =
            (1..cores.min(plans.len())).map(|_| scope.spawn(|| worker.work(&next))).collect();
        let own = worker.work(&next);
        let rest = workers.into_iter().map(|worker| match worker.join() {
            Ok(result) => result,
            // A panic in a policy is passed on to the caller, whichever thread it happened on.
            Err(panic) => std::panic::resume_unwind(panic),
        });
        for (done, histograms) in std::iter::once(own).chain(rest) {
            for (plan, outcome) in done {
                outcomes[plan] = Some(outcome);
            }
            for (sum, part) in latencies.iter_mut().zip(&histograms) {
                sum.add(part);
            }
        }
    });
    let outcomes: Vec<_> = plans.iter().zip(outcomes.into_iter().flatten()).collect();
    Report::new(spec, policy, &outcomes, &latencies)
}

/// What each thread of a run needs.
struct Worker<'a> {
    spec: &'a Spec,
    policy: &'static PolicyInfo,
    plans: &'a [DomainPlan],
    each_task: bool,
    progress: &'a Progress,
}

impl Worker<'_> {
    /// Simulates domains until none is left. The assignment to threads does not change the result: domains are independent,
    /// and all sums are integers.
    fn work(&self, next: &AtomicUsize) -> (Vec<(usize, Outcome)>, Vec<Histogram>) {
        let mut groups = vec![Histogram::default(); self.spec.task_groups.len()];
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(plan) = self.plans.get(index) else { return (done, groups) };
            let progress = &self.progress.done;
            let collector = Collector { groups: &mut groups, each_task: self.each_task, progress };
            done.push((index, domain::simulate(self.spec, plan, self.policy, collector)));
        }
    }
}
