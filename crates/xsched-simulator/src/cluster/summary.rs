//! Results of a cluster as a table, and what they assume.

use std::fmt::Write as _;

use super::costs::Sharing;
use super::html::Row;
use super::{Settings, Trace, Work};
use crate::table::{Table, grouped, percent};

/// The results side by side. `is_search` says that the numbers of GPUs are answers, not given.
#[must_use]
pub fn table(rows: &[Row], is_search: bool) -> String {
    let first = rows.first().map_or(1, |row| row.outcome.gpus).max(1);
    let last = if is_search { "of the first" } else { "meets targets" };
    let mut table = Table::new(&[
        "sharing",
        "GPUs",
        last,
        "utilization",
        "service p99",
        "worst",
        "service wait",
        "batch slowdown",
        "p95",
    ]);
    for Row { name, outcome } in rows {
        table.row(vec![
            name.clone(),
            grouped(outcome.gpus.into()),
            match (is_search, outcome.meets_targets) {
                (true, _) => percent(f64::from(outcome.gpus) / f64::from(first)),
                (false, true) => "yes".to_owned(),
                (false, false) => "no".to_owned(),
            },
            percent(outcome.utilization),
            ratio(outcome.services.p99_ratio_mean, outcome.services.jobs),
            ratio(outcome.services.p99_ratio_max, outcome.services.jobs),
            if outcome.services.jobs == 0 {
                "-".to_owned()
            } else {
                format!("{:.0} s", outcome.services.wait_p99_s)
            },
            ratio(outcome.batch.slowdown_p50, outcome.batch.jobs),
            ratio(outcome.batch.slowdown_p95, outcome.batch.jobs),
        ]);
    }
    table.to_string()
}

fn ratio(value: f64, jobs: u64) -> String {
    if jobs == 0 { "-".to_owned() } else { format!("{value:.2}") }
}

/// The workload in one line.
#[must_use]
pub fn workload(trace: &Trace) -> String {
    let services = trace.jobs.iter().filter(|job| matches!(job.work, Work::Service { .. })).count() as u64;
    let jobs = trace.jobs.len() as u64;
    let at = |job: Option<&super::Job>| job.map_or(0.0, |job| job.arrival_s);
    let days = (at(trace.jobs.last()) - at(trace.jobs.first())) / 86_400.0;
    format!(
        "{} batch jobs and {} services that arrive over {days:.2} days",
        grouped(jobs - services),
        grouped(services)
    )
}

/// What the figures assume, one subject per line. `all` has the settings of each row, and `names` its name.
#[must_use]
pub fn assumptions(names: &[String], all: &[Settings]) -> Vec<String> {
    let Some(first) = all.first() else { return Vec::new() };
    let targets = first.targets;
    let mut lines = vec![
        format!(
            "Targets: the p99 latency of every service is at most {} times that alone; 99 % of services start within {} s; \
             95 % of batch jobs complete within {} times their duration alone, counted from arrival (jobs below {} s count as {} s).",
            targets.service_p99_ratio,
            targets.service_wait_s,
            targets.batch_slowdown,
            targets.short_job_s,
            targets.short_job_s
        ),
        format!(
            "Cluster: nodes of {} GPUs with {} GiB, placement rule {}, at most {} jobs on a GPU. Jobs share a GPU only if their \
             memory fits together and the model predicts that all of them meet the targets.",
            first.gpus_per_node, first.gpu_memory_gib, first.placement, first.jobs_per_gpu
        ),
    ];
    for (name, Settings { costs, .. }) in names.iter().zip(all) {
        let mut line = String::new();
        // Writing to a string does not fail.
        let _ = match costs.sharing {
            Sharing::Exclusive => continue,
            Sharing::TimeSlices => write!(
                line,
                "{name}: slices of {:.2} ms for all jobs alike, a context switch takes {:.2} ms (NVIDIA H200).",
                costs.slice_s * 1e3,
                costs.switch_s * 1e3
            ),
            Sharing::Priority => write!(
                line,
                "{name}, policy priority: a request waits {:.2} ms on average, p99 {:.2} ms, for a job of lower priority; a \
                 preemption costs {:.2} ms; batch jobs below a service run at {:.0} % efficiency (NVIDIA H200).",
                costs.wait.mean_s * 1e3,
                costs.wait.p99_s * 1e3,
                costs.preemption_s * 1e3,
                costs.batch_efficiency * 100.0
            ),
        };
        lines.push(line);
    }
    lines.push(
        "Model: requests of a service have one length and arrive at random; batch jobs use the GPU at random times with their \
         utilization; memory bandwidth, host CPUs, networks and failures are not modelled; a job of several GPUs is as fast as \
         its slowest GPU."
            .to_owned(),
    );
    lines
}
