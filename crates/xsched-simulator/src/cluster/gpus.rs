//! The GPUs of a cluster: which jobs each of them has, whether it accepts another one, and what its jobs make of it.

use super::Settings;
use super::costs::{Costs, Sharing};
use super::model::{Load, MAX_JOBS_PER_GPU, Prediction, Tenant, predict};
use super::trace::{Job, Work};

/// The utilization of a batch job that any service is asked to stand beside. A service that misses its target beside so
/// little misses it beside every batch job, so that no prediction is needed.
const LIGHT_BATCH: f64 = 0.05;

/// A job that looks for GPUs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) tenant: Tenant,
    pub(super) memory_gib: f32,
    pub(super) gpus: u32,
    /// The most that the other jobs of a GPU may use for the candidate and them to be fast enough, by their sum alone.
    max_other_demand: f32,
    is_service: bool,
    /// A service that meets its target beside batch jobs of low priority.
    tolerates_batch: bool,
}

impl Candidate {
    pub(super) fn new(job: &Job, settings: &Settings) -> Self {
        let load = match job.work {
            Work::Batch { utilization } => Load::Batch { utilization: utilization.into() },
            Work::Service { rate, request_s, is_periodic } => {
                Load::Service { rate: rate.into(), request_s: request_s.into(), is_periodic }
            }
        };
        let tenant = Tenant { priority: job.priority, load };
        let is_service = matches!(load, Load::Service { .. });
        let beside = Tenant { priority: i16::MIN, load: Load::Batch { utilization: LIGHT_BATCH } };
        let tolerates_batch = is_service
            && predict(&settings.costs, &[tenant, beside]).values[0] <= settings.targets.service_p99_ratio;
        // Speeds are at least 1 / slowdown, and a GPU has only its own time to give.
        #[allow(clippy::cast_possible_truncation, reason = "a bound that the prediction makes exact")]
        let max_other_demand = (settings.targets.batch_slowdown - tenant.demand() + 1e-6) as f32;
        let (memory_gib, gpus) = (job.memory_gib, job.gpus);
        Self { tenant, memory_gib, gpus, max_other_demand, is_service, tolerates_batch }
    }
}

/// What is on one GPU.
#[derive(Clone, Debug)]
struct Slots {
    jobs: [u32; MAX_JOBS_PER_GPU],
    tenants: [Tenant; MAX_JOBS_PER_GPU],
    prediction: Prediction,
}

/// What the first check of a GPU reads. Small, because placement scans all GPUs.
#[derive(Clone, Copy, Debug)]
struct Summary {
    memory_free_gib: f32,
    demand: f32,
    jobs: u8,
    batch_jobs: u8,
    /// Services that miss their target beside any batch job.
    intolerant: u8,
}

pub(super) struct Gpus {
    costs: Costs,
    max_jobs: u8,
    p99_ratio: f64,
    min_speed: f64,
    memory_gib: f32,
    summaries: Vec<Summary>,
    slots: Vec<Slots>,
}

impl Gpus {
    pub(super) fn new(settings: &Settings) -> Self {
        let memory_gib = settings.gpu_memory_gib;
        let empty =
            Summary { memory_free_gib: memory_gib, demand: 0.0, jobs: 0, batch_jobs: 0, intolerant: 0 };
        let no_jobs = Slots {
            jobs: [u32::MAX; MAX_JOBS_PER_GPU],
            tenants: [Tenant::default(); MAX_JOBS_PER_GPU],
            prediction: Prediction::default(),
        };
        let max_jobs = match settings.costs.sharing {
            Sharing::Exclusive => 1,
            _ => settings.jobs_per_gpu.clamp(1, MAX_JOBS_PER_GPU),
        };
        Self {
            costs: settings.costs,
            max_jobs: u8::try_from(max_jobs).unwrap_or(1),
            p99_ratio: settings.targets.service_p99_ratio,
            min_speed: 1.0 / settings.targets.batch_slowdown,
            memory_gib,
            summaries: vec![empty; settings.gpus as usize],
            slots: vec![no_jobs; settings.gpus as usize],
        }
    }

    /// The part of its time that its jobs would use if each were alone.
    pub(super) fn demand(&self, gpu: usize) -> f32 {
        self.summaries[gpu].demand
    }

    pub(super) fn is_empty(&self, gpu: usize) -> bool {
        self.summaries[gpu].jobs == 0
    }

    /// The part of its time that its jobs use.
    pub(super) fn utilization(&self, gpu: usize) -> f64 {
        self.slots[gpu].prediction.utilization
    }

    /// The jobs on a GPU, each with its speed or its p99 latency relative to alone.
    pub(super) fn jobs(&self, gpu: usize) -> impl Iterator<Item = (u32, f64)> + '_ {
        let slots = &self.slots[gpu];
        slots.jobs.iter().copied().zip(slots.prediction.values).take(self.summaries[gpu].jobs.into())
    }

    /// What the model predicts for a job on one of its GPUs.
    pub(super) fn value(&self, gpu: usize, job: u32) -> f64 {
        self.jobs(gpu).find(|(other, _)| *other == job).map_or(0.0, |(_, value)| value)
    }

    /// Whether `candidate` may fit: what can be said without a prediction.
    pub(super) fn may_accept(&self, gpu: usize, candidate: &Candidate) -> bool {
        let summary = &self.summaries[gpu];
        if summary.jobs >= self.max_jobs || candidate.memory_gib > summary.memory_free_gib {
            return false;
        }
        if summary.jobs == 0 {
            return true;
        }
        let disturbs = if candidate.is_service {
            summary.batch_jobs > 0 && !candidate.tolerates_batch
        } else {
            summary.intolerant > 0
        };
        summary.demand <= candidate.max_other_demand && !disturbs
    }

    /// Whether every job, the candidate and those that are there, meets its target if the candidate joins.
    pub(super) fn accepts(&self, gpu: usize, candidate: &Candidate) -> bool {
        if self.is_empty(gpu) {
            return true;
        }
        let count = usize::from(self.summaries[gpu].jobs);
        let mut tenants = self.slots[gpu].tenants;
        tenants[count] = candidate.tenant;
        let prediction = predict(&self.costs, &tenants[..=count]);
        tenants[..=count].iter().zip(prediction.values).all(|(tenant, value)| match tenant.load {
            Load::Batch { .. } => value >= self.min_speed,
            Load::Service { .. } => value <= self.p99_ratio,
        })
    }

    pub(super) fn add(&mut self, gpu: usize, job: u32, candidate: &Candidate) {
        let (summary, slots) = (&mut self.summaries[gpu], &mut self.slots[gpu]);
        let count = usize::from(summary.jobs);
        slots.jobs[count] = job;
        slots.tenants[count] = candidate.tenant;
        summary.jobs += 1;
        summary.memory_free_gib -= candidate.memory_gib;
        self.recount(gpu, candidate, 1);
    }

    pub(super) fn remove(&mut self, gpu: usize, job: u32, candidate: &Candidate) {
        let (summary, slots) = (&mut self.summaries[gpu], &mut self.slots[gpu]);
        let count = usize::from(summary.jobs);
        let Some(at) = slots.jobs[..count].iter().position(|other| *other == job) else { return };
        slots.jobs.copy_within(at + 1..count, at);
        slots.tenants.copy_within(at + 1..count, at);
        summary.jobs -= 1;
        // Sums of floating-point numbers drift; an empty GPU is exactly empty.
        summary.memory_free_gib =
            if summary.jobs == 0 { self.memory_gib } else { summary.memory_free_gib + candidate.memory_gib };
        self.recount(gpu, candidate, -1);
    }

    fn recount(&mut self, gpu: usize, candidate: &Candidate, change: i8) {
        let (summary, slots) = (&mut self.summaries[gpu], &mut self.slots[gpu]);
        let tenants = &slots.tenants[..usize::from(summary.jobs)];
        #[allow(clippy::cast_possible_truncation, reason = "a sum of a few numbers below 1")]
        let demand = tenants.iter().map(Tenant::demand).sum::<f64>() as f32;
        summary.demand = demand;
        if !candidate.is_service {
            summary.batch_jobs = summary.batch_jobs.saturating_add_signed(change);
        } else if !candidate.tolerates_batch {
            summary.intolerant = summary.intolerant.saturating_add_signed(change);
        }
        slots.prediction = predict(&self.costs, tenants);
    }
}
