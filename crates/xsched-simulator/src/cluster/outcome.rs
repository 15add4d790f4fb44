//! What a simulation of a cluster measures, and whether it meets the targets.

use serde::Serialize;

use super::trace::{Job, Trace, Work};
use super::{Settings, Targets};

/// Points of the curves over time.
const POINTS: usize = 120;

/// The result of one simulation. Times in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// GPUs of the cluster.
    pub gpus: u32,
    /// Whether all targets are met.
    pub meets_targets: bool,
    /// Jobs that did not complete: none, unless the simulation was stopped because the targets were missed.
    pub unfinished_jobs: u64,
    /// Batch jobs.
    pub batch: BatchOutcome,
    /// Services.
    pub services: ServiceOutcome,
    /// The part of the GPUs' time that was used, from the first arrival to the last.
    pub utilization: f64,
    /// The number of GPUs that had a job, on average over the same time.
    pub gpus_in_use: f64,
    /// The most GPUs that had a job at one time.
    pub gpus_in_use_max: u64,
    /// From the first arrival to the last, or one second if all jobs arrive at once.
    pub span_s: f64,
    /// The utilization in equal parts of that time.
    pub utilization_over_time: Vec<f64>,
}

/// What happened to batch jobs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BatchOutcome {
    /// How many there are.
    pub jobs: u64,
    /// The median of the bounded slowdown.
    pub slowdown_p50: f64,
    /// Its 95th percentile, which has a target.
    pub slowdown_p95: f64,
    /// The 95th percentile of the time between arrival and start.
    pub wait_p95_s: f64,
}

/// What happened to services.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ServiceOutcome {
    /// How many there are.
    pub jobs: u64,
    /// The p99 latency as a multiple of that alone: the mean over all requests.
    pub p99_ratio_mean: f64,
    /// The same, of the service and the time where it was highest.
    pub p99_ratio_max: f64,
    /// The 99th percentile of the time between arrival and start, which has a target.
    pub wait_p99_s: f64,
}

/// Collects the measurements of a running simulation.
pub(super) struct Measures {
    targets: Targets,
    batch_jobs: u64,
    service_jobs: u64,
    slowdowns: Vec<f32>,
    batch_waits: Vec<f32>,
    service_waits: Vec<f32>,
    finished: u64,
    late_batch: u64,
    late_services: u64,
    requests: f64,
    weighted_ratio: f64,
    ratio_max: f64,
    used: f64,
    in_use: i64,
    in_use_max: i64,
    in_use_time: f64,
    span: u64,
    used_time: Vec<f64>,
}

impl Measures {
    pub(super) fn new(trace: &Trace, settings: &Settings) -> Self {
        let arrival = |job: Option<&Job>| job.map_or(0.0, |job| job.arrival_s);
        let span_s = arrival(trace.jobs.last()) - arrival(trace.jobs.first());
        let services = trace.jobs.iter().filter(|job| matches!(job.work, Work::Service { .. })).count();
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked when the trace was read"
        )]
        let span = ((span_s * 1e6) as u64).max(1_000_000);
        Self {
            targets: settings.targets,
            batch_jobs: (trace.jobs.len() - services) as u64,
            service_jobs: services as u64,
            slowdowns: Vec::with_capacity(trace.jobs.len() - services),
            batch_waits: Vec::with_capacity(trace.jobs.len() - services),
            service_waits: Vec::with_capacity(services),
            finished: 0,
            late_batch: 0,
            late_services: 0,
            requests: 0.0,
            weighted_ratio: 0.0,
            ratio_max: 0.0,
            used: 0.0,
            in_use: 0,
            in_use_max: 0,
            in_use_time: 0.0,
            span,
            used_time: vec![0.0; POINTS],
        }
    }

    /// Time passes from `from` to `to`, in microseconds.
    pub(super) fn advance(&mut self, from: u64, to: u64) {
        let (mut from, to) = (from.min(self.span), to.min(self.span));
        self.in_use_time += self.in_use as f64 * (to - from) as f64;
        let width = self.span.div_ceil(POINTS as u64);
        while from < to {
            let point = from / width;
            let end = ((point + 1) * width).min(to);
            if let Some(used) = usize::try_from(point).ok().and_then(|point| self.used_time.get_mut(point)) {
                *used += self.used * (end - from) as f64;
            }
            from = end;
        }
    }

    /// GPUs are used by so much more, and so many more have a job.
    pub(super) fn used_changed(&mut self, used: f64, in_use: i64) {
        self.used += used;
        self.in_use += in_use;
        self.in_use_max = self.in_use_max.max(self.in_use);
        if self.in_use == 0 {
            // Sums of floating-point numbers drift; an empty cluster is exactly unused.
            self.used = 0.0;
        }
    }

    /// A job starts after `wait` microseconds.
    pub(super) fn start(&mut self, job: &Job, wait: u64) {
        let wait_s = wait as f64 / 1e6;
        if matches!(job.work, Work::Service { .. }) {
            self.service_waits.push(narrow(wait_s));
            self.late_services += u64::from(wait_s > self.targets.service_wait_s);
        } else {
            self.batch_waits.push(narrow(wait_s));
        }
    }

    /// A job has finished `response` microseconds after its arrival.
    pub(super) fn finish(&mut self, job: &Job, response: u64) {
        self.finished += 1;
        if matches!(job.work, Work::Batch { .. }) {
            let slowdown = (response as f64 / 1e6 / job.duration_s.max(self.targets.short_job_s)).max(1.0);
            self.slowdowns.push(narrow(slowdown));
            self.late_batch += u64::from(slowdown > self.targets.slowdown_limit());
        }
    }

    /// A service had this p99 latency, relative to alone, for a time.
    pub(super) fn served(&mut self, job: &Job, ratio: f64, elapsed_s: f64) {
        if let Work::Service { rate, .. } = job.work
            && elapsed_s > 0.0
        {
            let requests = f64::from(rate) * f64::from(job.gpus) * elapsed_s;
            self.requests += requests;
            self.weighted_ratio += ratio * requests;
            self.ratio_max = self.ratio_max.max(ratio);
        }
    }

    /// Whether so many jobs are late already that the rest cannot change the verdict.
    pub(super) fn has_missed_targets(&self) -> bool {
        self.late_batch * 20 > self.batch_jobs || self.late_services * 100 > self.service_jobs
    }

    pub(super) fn outcome(mut self, settings: &Settings) -> Outcome {
        let width = self.span.div_ceil(POINTS as u64) as f64;
        let gpus = f64::from(settings.gpus);
        let used: f64 = self.used_time.iter().sum();
        let ratio_mean = if self.requests > 0.0 { self.weighted_ratio / self.requests } else { 0.0 };
        let unfinished_jobs = self.batch_jobs + self.service_jobs - self.finished;
        let meets_targets = unfinished_jobs == 0
            && !self.has_missed_targets()
            && self.ratio_max <= self.targets.service_p99_ratio * (1.0 + 1e-9);
        Outcome {
            gpus: settings.gpus,
            meets_targets,
            unfinished_jobs,
            batch: BatchOutcome {
                jobs: self.batch_jobs,
                slowdown_p50: quantile(&mut self.slowdowns, 0.5),
                slowdown_p95: quantile(&mut self.slowdowns, 0.95),
                wait_p95_s: quantile(&mut self.batch_waits, 0.95),
            },
            services: ServiceOutcome {
                jobs: self.service_jobs,
                p99_ratio_mean: ratio_mean,
                p99_ratio_max: self.ratio_max,
                wait_p99_s: quantile(&mut self.service_waits, 0.99),
            },
            utilization: used / (gpus * self.span as f64),
            gpus_in_use: self.in_use_time / self.span as f64,
            gpus_in_use_max: u64::try_from(self.in_use_max).unwrap_or(0),
            span_s: self.span as f64 / 1e6,
            utilization_over_time: self.used_time.iter().map(|used| used / (gpus * width)).collect(),
        }
    }
}

/// The smallest value that at least this part of the values does not exceed.
fn quantile(values: &mut [f32], part: f64) -> f64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index below the length")]
    let rank = ((values.len() as f64 * part).ceil() as usize).saturating_sub(1);
    if values.is_empty() { 0.0 } else { f64::from(*values.select_nth_unstable_by(rank, f32::total_cmp).1) }
}

#[allow(clippy::cast_possible_truncation, reason = "seven digits are enough for a quantile")]
fn narrow(number: f64) -> f32 {
    number as f32
}
