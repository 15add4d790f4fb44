//! The results of a simulation, for programs (they serialize) and for users ([`super::table`]).

use serde::Serialize;
use xsched_policy::PolicyInfo;

use crate::Histogram;
use crate::device::DeviceTotals;
use crate::domain::Outcome;
use crate::spec::{DomainPlan, Spec};
use crate::task::TaskTotals;

/// All measurements. Times are nanoseconds of virtual time, utilizations are fractions of 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The policy's short name.
    pub policy: String,
    /// The name that users type for it.
    pub plain: String,
    /// The seed of all random numbers.
    pub seed: u64,
    /// The simulated time.
    pub duration_ns: u64,
    /// The part of it that was not measured.
    pub warmup_ns: u64,
    /// The number of devices.
    pub device_count: usize,
    /// The number of tasks.
    pub task_count: usize,
    /// One row for each `[[task]]` entry.
    pub task_groups: Vec<TaskReport>,
    /// One row for each `[[device]]` entry.
    pub device_groups: Vec<DeviceReport>,
    /// One row for each task; empty if there are many and they were not requested.
    pub tasks: Vec<TaskReport>,
    /// One row for each device; empty if there are many tasks and they were not requested.
    pub devices: Vec<DeviceReport>,
    /// All tasks together.
    pub all_tasks: TaskReport,
    /// All devices together.
    pub all_devices: DeviceReport,
}

/// One task, or several of one entry.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskReport {
    /// Its name.
    pub name: String,
    /// How many tasks the row is about.
    pub count: u64,
    /// Jobs finished.
    pub jobs: u64,
    /// Jobs finished per second of virtual time.
    pub jobs_per_s: f64,
    /// From a job's arrival to its completion.
    pub latency: Latency,
    /// Device time used.
    pub used_ns: u64,
    /// The same as a part of the time of the devices that its tasks run on: measured, where a share is requested.
    pub utilization: f64,
    /// Time it had work and was held.
    pub held_ns: u64,
    /// How often it was preempted with work left.
    pub preemptions: u64,
    /// Jobs whose deadline was met or has passed.
    pub deadline_jobs: u64,
    /// Jobs that missed their deadline.
    pub deadline_misses: u64,
}

/// The distribution of a latency: quantiles within 0.5 %, the maximum exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// The median.
    pub p50_ns: u64,
    /// The 90th percentile.
    pub p90_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The maximum.
    pub max_ns: u64,
}

/// One device, or several of one entry. `busy`, `lost` and `idle` add up to the measured time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceReport {
    /// Its name.
    pub name: String,
    /// How many devices the row is about.
    pub count: u64,
    /// Time spent on commands.
    pub busy_ns: u64,
    /// Time lost to switching, preempting and restoring.
    pub lost_ns: u64,
    /// Time without work, or with all tasks held.
    pub idle_ns: u64,
    /// `busy` as a part of the measured time.
    pub utilization: f64,
    /// How often a task was preempted with work left.
    pub preemptions: u64,
    /// How often the device switched to another task.
    pub switches: u64,
}

impl Report {
    pub(crate) fn new(
        spec: &Spec,
        policy: &PolicyInfo,
        outcomes: &[(&DomainPlan, Outcome)],
        latencies: &[Histogram],
    ) -> Self {
        let rows = Rows { measured: spec.duration - spec.warmup };
        let mut task_sums: Vec<_> = spec.task_groups.iter().map(|group| Sum::of(group.count)).collect();
        let mut device_sums: Vec<_> = spec.device_groups.iter().map(|group| Sum::of(group.count)).collect();
        let (mut tasks, mut devices) = (Vec::new(), Vec::new());
        let each = outcomes.iter().any(|(_, outcome)| outcome.tasks.iter().any(|(_, own)| own.is_some()));
        for (plan, outcome) in outcomes {
            for (index, (totals, own)) in plan.tasks.iter().zip(&outcome.tasks) {
                task_sums[spec.tasks[*index as usize].group as usize].add_task(totals);
                if let Some(own) = own {
                    let name = spec.task_name(*index as usize);
                    tasks.push((*index, rows.task(name, 1, 1, totals, own)));
                }
            }
            for (index, totals) in plan.devices.iter().zip(&outcome.devices) {
                device_sums[spec.devices[*index as usize].group as usize].add_device(totals);
                if each {
                    devices.push((*index, rows.device(spec.device_name(*index as usize), 1, totals)));
                }
            }
        }
        // Domains of a machine-wide policy interleave; the report has the order of the file.
        tasks.sort_by_key(|(index, _)| *index);
        devices.sort_by_key(|(index, _)| *index);

        let (mut all_tasks, mut all_devices, mut all_latencies) =
            (Sum::default(), Sum::default(), Histogram::default());
        for (sum, latencies) in task_sums.iter().zip(latencies) {
            all_tasks.count += sum.count;
            all_tasks.add_task(&sum.totals);
            all_latencies.add(latencies);
        }
        for sum in &device_sums {
            all_devices.count += sum.count;
            all_devices.add_device(&sum.totals);
        }
        let places = places(spec);
        let every_device = all_devices.count;
        Self {
            policy: policy.name.to_owned(),
            plain: policy.plain.to_owned(),
            seed: spec.seed,
            duration_ns: spec.duration,
            warmup_ns: spec.warmup,
            device_count: spec.devices(),
            task_count: spec.tasks(),
            task_groups: (spec.task_groups.iter().zip(&task_sums).zip(places).zip(latencies))
                .map(|(((group, sum), places), own)| {
                    rows.task(group.name.clone(), sum.count, places, &sum.totals, own)
                })
                .collect(),
            device_groups: (spec.device_groups.iter().zip(&device_sums))
                .map(|(group, sum)| rows.device(group.name.clone(), sum.count, &sum.totals))
                .collect(),
            tasks: tasks.into_iter().map(|(_, row)| row).collect(),
            devices: devices.into_iter().map(|(_, row)| row).collect(),
            all_tasks: rows.task(
                "all".into(),
                all_tasks.count,
                every_device,
                &all_tasks.totals,
                &all_latencies,
            ),
            all_devices: rows.device("all".into(), every_device, &all_devices.totals),
        }
    }
}

/// How many devices the tasks of each entry run on.
fn places(spec: &Spec) -> Vec<u64> {
    let mut seen: Vec<_> = spec.tasks.iter().map(|task| (task.group, task.device)).collect();
    seen.sort_unstable();
    seen.dedup();
    let mut places = vec![0; spec.task_groups.len()];
    for (group, _) in seen {
        places[group as usize] += 1;
    }
    places
}

#[derive(Clone, Copy, Default)]
struct Sum<T> {
    count: u64,
    totals: T,
}

impl<T: Default> Sum<T> {
    fn of(count: u32) -> Self {
        Self { count: count.into(), totals: T::default() }
    }
}

impl Sum<TaskTotals> {
    fn add_task(&mut self, other: &TaskTotals) {
        let totals = &mut self.totals;
        totals.jobs += other.jobs;
        totals.used += other.used;
        totals.held += other.held;
        totals.preemptions += other.preemptions;
        totals.due += other.due;
        totals.missed += other.missed;
    }
}

impl Sum<DeviceTotals> {
    fn add_device(&mut self, other: &DeviceTotals) {
        let totals = &mut self.totals;
        totals.busy += other.busy;
        totals.lost += other.lost;
        totals.idle += other.idle;
        totals.preemptions += other.preemptions;
        totals.switches += other.switches;
    }
}

/// Builds rows from the totals of the measured time.
struct Rows {
    measured: u64,
}

impl Rows {
    fn task(
        &self,
        name: String,
        count: u64,
        places: u64,
        totals: &TaskTotals,
        own: &Histogram,
    ) -> TaskReport {
        let measured = self.measured as f64;
        TaskReport {
            name,
            count,
            jobs: totals.jobs,
            jobs_per_s: totals.jobs as f64 * 1e9 / measured,
            latency: Latency {
                p50_ns: own.quantile(500),
                p90_ns: own.quantile(900),
                p99_ns: own.quantile(990),
                max_ns: own.max(),
            },
            used_ns: totals.used,
            utilization: totals.used as f64 / (measured * places as f64),
            held_ns: totals.held,
            preemptions: totals.preemptions,
            deadline_jobs: totals.due,
            deadline_misses: totals.missed,
        }
    }

    fn device(&self, name: String, count: u64, totals: &DeviceTotals) -> DeviceReport {
        DeviceReport {
            name,
            count,
            busy_ns: totals.busy,
            lost_ns: totals.lost,
            idle_ns: totals.idle,
            utilization: totals.busy as f64 / (self.measured as f64 * count as f64),
            preemptions: totals.preemptions,
            switches: totals.switches,
        }
    }
}
