//! Clusters: how many GPUs does a trace of jobs need, with exclusive GPUs, with time slices and with `XSched`?
//!
//! A cluster has too many GPUs and runs too long for a simulation of each kernel. Here a GPU is a model in closed form
//! ([`predict`]) with measured costs ([`Costs`]), and only arrivals, placements and completions of jobs are events. Tests
//! compare the model with the simulator of kernels and with measurements on a GPU.
//!
//! A GPU accepts a further job if memory suffices and if, by the model, every service on it keeps its p99 target and no batch
//! job becomes slower than its target. All ways of sharing therefore give the same service and the same batch completion, and
//! differ in the number of GPUs.

mod costs;
mod csv;
mod engine;
mod generate;
mod gpus;
mod html;
mod model;
mod outcome;
mod placement;
mod quantile;
mod search;
mod summary;
mod trace;

pub use costs::{Costs, Sharing, Wait};
pub use generate::{Generated, generate};
pub use html::{Row, report};
pub use model::{Load, MAX_JOBS_PER_GPU, Prediction, Tenant, p99_alone_s, predict};
pub use outcome::{BatchOutcome, Outcome, ServiceOutcome};
pub use placement::Placement;
pub use search::{Needed, needed_gpus};
pub use summary::{assumptions, table, workload};
pub use trace::{Job, RowErrors, Trace, TraceError, Work};

use crate::Progress;

/// The largest cluster.
pub const MAX_CLUSTER_GPUS: u32 = 200_000;

/// What a cluster has to achieve.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Targets {
    /// The p99 latency of each service on each GPU, as a multiple of its p99 latency alone.
    pub service_p99_ratio: f64,
    /// 99 % of services start within this time of their arrival, in seconds.
    pub service_wait_s: f64,
    /// 95 % of batch jobs have at most this bounded slowdown: the time from arrival to completion over the duration alone.
    pub batch_slowdown: f64,
    /// A job shorter than this counts as this long in its slowdown, in seconds.
    pub short_job_s: f64,
}

impl Default for Targets {
    fn default() -> Self {
        Self { service_p99_ratio: 1.2, service_wait_s: 60.0, batch_slowdown: 1.5, short_job_s: 600.0 }
    }
}

impl Targets {
    /// The slowdown above which a job is late. Completion times are rounded to microseconds.
    fn slowdown_limit(&self) -> f64 {
        self.batch_slowdown * (1.0 + 1e-6)
    }
}

/// A cluster and its schedulers.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How a GPU is shared, and what that costs.
    pub costs: Costs,
    /// The number of GPUs: a multiple of `gpus_per_node`.
    pub gpus: u32,
    /// GPUs of one node.
    pub gpus_per_node: u32,
    /// Memory of one GPU in GiB.
    pub gpu_memory_gib: f32,
    /// The most jobs on one GPU, at most [`MAX_JOBS_PER_GPU`].
    pub jobs_per_gpu: usize,
    /// The placement rule.
    pub placement: Placement,
    /// What the cluster has to achieve.
    pub targets: Targets,
}

/// Why a trace cannot run on a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// A job is larger than the cluster.
    #[error(
        "line {line}: the job needs {needs} GPUs, the cluster has {gpus}: use a larger cluster or leave the job out"
    )]
    JobTooLarge {
        /// Its line in the trace.
        line: u32,
        /// GPUs that it needs.
        needs: u32,
        /// GPUs that there are.
        gpus: u32,
    },
    /// A job needs more memory than a GPU has.
    #[error(
        "line {line}: the job needs {needs} GiB on each GPU, a GPU has {has} GiB: set the memory of the GPUs, or leave the job out"
    )]
    TooMuchMemory {
        /// Its line in the trace.
        line: u32,
        /// What it needs, in GiB.
        needs: String,
        /// What there is, in GiB.
        has: String,
    },
    /// The cluster does not consist of whole nodes.
    #[error("{gpus} GPUs are not whole nodes of {per_node} GPUs")]
    PartOfNode {
        /// GPUs of the cluster.
        gpus: u32,
        /// GPUs of a node.
        per_node: u32,
    },
    /// No cluster within the limit meets the targets.
    #[error("no cluster of up to {limit} GPUs meets the targets")]
    TooManyGpus {
        /// The largest cluster.
        limit: u32,
    },
}

impl Settings {
    fn check(&self, trace: &Trace) -> Result<(), ClusterError> {
        let (gpus, per_node) = (self.gpus, self.gpus_per_node);
        if gpus == 0 || per_node == 0 || !gpus.is_multiple_of(per_node) {
            return Err(ClusterError::PartOfNode { gpus, per_node });
        }
        for job in &trace.jobs {
            if job.gpus > gpus {
                return Err(ClusterError::JobTooLarge { line: job.line, needs: job.gpus, gpus });
            }
            if job.memory_gib > self.gpu_memory_gib {
                let (needs, has) = (job.memory_gib.to_string(), self.gpu_memory_gib.to_string());
                return Err(ClusterError::TooMuchMemory { line: job.line, needs, has });
            }
        }
        Ok(())
    }
}

/// Simulates a trace on a cluster.
pub fn run(trace: &Trace, settings: &Settings, progress: &Progress) -> Result<Outcome, ClusterError> {
    engine::simulate(trace, settings, false, progress)
}
