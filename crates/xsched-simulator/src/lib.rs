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
//! let native = simulator::run(&spec, simulator::Contender::native());
//! assert!(scheduled.task_groups[0].latency.p99_ns < native.task_groups[0].latency.p99_ns);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The policies are the very code that runs in the service. A run is a function of its specification and its seed:
//! the number of threads changes nothing, and a task has the same arrivals and command lengths under every policy.
//!
//! # What a file can say
//! Times are strings with a unit: `"500us"`, `"2ms"`, `"1.5s"`. Fields without a default must be there.
//!
//! | at the top | default | |
//! |---|---|---|
//! | `duration` | | virtual time to simulate |
//! | `warmup` | `"0s"` | results up to here do not count |
//! | `seed` | 0 | of all chance |
//! | `policy.timeslice`, `policy.k` | `"5ms"`, 1 | settings of the policies that have them |
//!
//! | `[[device]]` | default | |
//! |---|---|---|
//! | `name` | | with a `count`, the devices are `name-0`, `name-1`, ... |
//! | `count` | 1 | so many alike |
//! | `machine`, `devices_per_machine` | one machine | devices that are decided about together by the policies that look at whole machines |
//! | `level` | | 1: what is in flight finishes; 2: the running command finishes; 3: it is cut and goes on later |
//! | `preempt`, `restore` | `"0s"` | lost when a task is stopped, and when it runs again |
//! | `switch` | `"0s"` | lost whenever the device turns to another task than its last |
//! | `native_slice` | `"2ms"` | the device's own slice among tasks that may all run |
//! | `window` | `"1ms"` | work in flight at level 1, at least two commands |
//!
//! | `[[task]]` | default | |
//! |---|---|---|
//! | `name`, `count` | , 1 | as with devices |
//! | `device` | all | a device or a group of them: replica `i` goes to its `i`-th device, round and round |
//! | `process` | its own | tasks of the same replica number with the same name are one process |
//! | `arrival.periodic` | | `every`, and optionally `phase` (before the first) and `jitter` (each late by up to this) |
//! | `arrival.poisson` | | `mean` time between jobs |
//! | `arrival.closed` | | optionally `think`, from the end of one job to the next |
//! | `commands` | 1 | commands of a job |
//! | `command` | | a time, or one of `uniform = { min, max }`, `exponential = { mean }`, `lognormal = { median, sigma }`, `list = [...]` |
//! | `priority`, `share`, `deadline`, `laxity = { span, lax, critical }`, `nice`, `focused` | | hints |

mod device;
mod domain;
mod file;
mod random;
mod report;
mod spec;
mod table;
mod task;
mod values;

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

pub use file::SpecError;
pub use report::{DeviceReport, Latency, Report, TaskReport};
pub use spec::Spec;
pub use table::{compare, table};

use domain::{Books, Outcome};
use spec::DomainPlan;
use xsched_core::Nanos;
use xsched_policy::{Decision, Grant, Params, Policy, PolicyInfo, Scope, TaskView};

/// Of latencies in nanoseconds, with quantiles off by less than half a percent.
type Histogram = xsched_core::Histogram<7>;

/// Who decides in a simulation.
pub struct Contender<'a> {
    name: String,
    plain: String,
    scope: Scope,
    make: Box<dyn Fn() -> Box<dyn Policy> + Sync + 'a>,
}

impl From<&'static PolicyInfo> for Contender<'static> {
    fn from(info: &'static PolicyInfo) -> Self {
        Self {
            name: info.name.to_owned(),
            plain: info.plain.to_owned(),
            scope: info.scope,
            make: Box::new(info.make),
        }
    }
}

impl<'a> Contender<'a> {
    /// Nobody decides: every task may always run, and the device's own time slicing is all there is.
    #[must_use]
    pub fn native() -> Self {
        Self::custom("native", Scope::Device, || Box::new(EveryoneRuns))
    }

    /// A policy of one's own. `make` is called once for each device or machine.
    pub fn custom(
        name: impl Into<String>,
        scope: Scope,
        make: impl Fn() -> Box<dyn Policy> + Sync + 'a,
    ) -> Self {
        let name = name.into();
        Self { plain: name.clone(), name, scope, make: Box::new(make) }
    }

    fn policy(&self, params: &Params) -> Box<dyn Policy> {
        let mut policy = (self.make)();
        policy.configure(params);
        policy
    }
}

impl fmt::Debug for Contender<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.plain, self.name)
    }
}

struct EveryoneRuns;

impl Policy for EveryoneRuns {
    fn decide(&mut self, _now: Nanos, tasks: &[TaskView], out: &mut Decision) {
        for index in 0..tasks.len() {
            out.grant(index, Grant::Unthrottled);
        }
    }
}

/// How a simulation is carried out. None of it changes the result, but for the rows in it.
#[derive(Debug, Default)]
pub struct Options<'a> {
    /// Threads to use; as many as there are cores unless said otherwise.
    pub threads: Option<NonZeroUsize>,
    /// Report every single task and device even when there are more than 200 tasks.
    pub every_task: bool,
    /// Shows somebody else how far the run has come.
    pub progress: Option<&'a Progress>,
}

/// How far a run has come; to be read from another thread.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    total: AtomicU64,
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
}

/// Up to so many tasks, a report has a row for each.
const MOST_ROWS: usize = 200;

/// Simulates `spec` under `contender` on all cores.
pub fn run<'a>(spec: &Spec, contender: impl Into<Contender<'a>>) -> Report {
    run_with(spec, contender, &Options::default())
}

/// Simulates `spec` under `contender`.
pub fn run_with<'a>(spec: &Spec, contender: impl Into<Contender<'a>>, options: &Options<'_>) -> Report {
    let contender = contender.into();
    let plans = spec.domains(contender.scope);
    let unwatched = Progress::default();
    let progress = options.progress.unwrap_or(&unwatched);
    progress.done.store(0, Ordering::Relaxed);
    progress.total.store(spec.duration.saturating_mul(plans.len() as u64), Ordering::Relaxed);

    let each_task = options.every_task || spec.tasks() <= MOST_ROWS;
    let cores = options.threads.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
    let worker = Worker { spec, contender: &contender, plans: &plans, each_task, progress };
    let next = AtomicUsize::new(0);
    let mut outcomes: Vec<Option<Outcome>> = plans.iter().map(|_| None).collect();
    let mut latencies = vec![Histogram::default(); spec.task_groups.len()];
    thread::scope(|scope| {
        let others: Vec<_> =
            (1..cores.min(plans.len())).map(|_| scope.spawn(|| worker.work(&next))).collect();
        let mine = worker.work(&next);
        let theirs = others.into_iter().map(|other| match other.join() {
            Ok(result) => result,
            // A policy's panic is its author's to see, wherever it happened.
            Err(panic) => std::panic::resume_unwind(panic),
        });
        for (done, histograms) in std::iter::once(mine).chain(theirs) {
            for (plan, outcome) in done {
                outcomes[plan] = Some(outcome);
            }
            for (sum, part) in latencies.iter_mut().zip(&histograms) {
                sum.add(part);
            }
        }
    });
    let outcomes: Vec<_> = plans.iter().zip(outcomes.into_iter().flatten()).collect();
    Report::new(spec, &contender, &outcomes, &latencies)
}

/// What every thread of a run needs.
struct Worker<'a> {
    spec: &'a Spec,
    contender: &'a Contender<'a>,
    plans: &'a [DomainPlan],
    each_task: bool,
    progress: &'a Progress,
}

impl Worker<'_> {
    /// Takes domains until none is left. Which thread takes which makes no difference: domains know nothing of each
    /// other, and everything is added up in whole numbers.
    fn work(&self, next: &AtomicUsize) -> (Vec<(usize, Outcome)>, Vec<Histogram>) {
        let mut groups = vec![Histogram::default(); self.spec.task_groups.len()];
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(plan) = self.plans.get(index) else { return (done, groups) };
            let books =
                Books { groups: &mut groups, each_task: self.each_task, progress: &self.progress.done };
            let policy = self.contender.policy(&self.spec.params);
            done.push((index, domain::simulate(self.spec, plan, policy, books)));
        }
    }
}
