//! What sharing a GPU costs, as measured.
//!
//! The figures of XSched's levels are from `bench/results/h200-full.json` (one NVIDIA H200, `ResNet-152` serving beside
//! `ResNet-50` training). A test compares the model's predictions with the other runs kept in `bench/results`.

use xsched_core::Level;

/// One context switch of the GPU: 0.15 to 0.18 ms, from `latency` in h200-full.json: a kernel of 20 us takes 0.19 to 0.25 ms
/// beside other kernels at level 3, and 0.05 ms alone.
const CONTEXT_SWITCH_S: f64 = 0.000_15;
/// The time slice of a compute context that NVIDIA's driver sets: 2,048 us.
const NATIVE_SLICE_S: f64 = 0.002_048;
/// The time slice of tasks of equal precedence under `XSched`.
const PEER_SLICE_S: f64 = 0.010;
/// How long a service's request waits for a task of lower priority, by level: mean over the mean alone, and p99 over the
/// p99 alone. Includes the context switch.
const LEVEL_1_WAIT: Wait = Wait { mean_s: 0.000_503, p99_s: 0.002_388 };
const LEVEL_2_WAIT: Wait = Wait { mean_s: 0.001_043, p99_s: 0.003_288 };
const LEVEL_3_WAIT: Wait = Wait { mean_s: 0.000_157, p99_s: 0.000_296 };
/// The throughput of a training that has at most 1 ms of work in flight, which is how level 1 can stop it soon: `table` in
/// h200-full.json, 51 % of alone at level 1 over 80 % at level 2.
const LEVEL_1_BATCH_EFFICIENCY: f64 = 0.64;

/// The wait for work that is on the GPU already, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wait {
    /// The mean.
    pub mean_s: f64,
    /// The 99th percentile.
    pub p99_s: f64,
}

impl Wait {
    /// A wait that takes any time from `from_s` to `to_s` with the same probability.
    #[must_use]
    pub fn uniform(from_s: f64, to_s: f64) -> Self {
        Self { mean_s: f64::midpoint(from_s, to_s), p99_s: from_s + 0.99 * (to_s - from_s) }
    }
}

/// How jobs on one GPU share it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sharing {
    /// A GPU has one job.
    Exclusive,
    /// The GPU's own time slices: all jobs are equal.
    TimeSlices,
    /// `XSched`'s policy `priority`: jobs of higher priority preempt the others.
    Priority,
}

/// A GPU and its scheduler: times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// How jobs share the GPU.
    pub sharing: Sharing,
    /// One context switch.
    pub switch_s: f64,
    /// The time slice of jobs of equal precedence.
    pub slice_s: f64,
    /// How long a request waits for a job of lower priority that has work on the GPU.
    pub wait: Wait,
    /// Device time lost each time that a job is preempted and resumed.
    pub preemption_s: f64,
    /// The throughput of a batch job that can be preempted, as a part of its throughput otherwise.
    pub batch_efficiency: f64,
}

impl Costs {
    /// Exclusive GPUs.
    #[must_use]
    pub fn exclusive() -> Self {
        Self { sharing: Sharing::Exclusive, ..Self::time_slices() }
    }

    /// The time slices of an NVIDIA GPU with the driver's settings.
    #[must_use]
    pub fn time_slices() -> Self {
        Self {
            sharing: Sharing::TimeSlices,
            switch_s: CONTEXT_SWITCH_S,
            slice_s: NATIVE_SLICE_S,
            wait: Wait::default(),
            preemption_s: 0.0,
            batch_efficiency: 1.0,
        }
    }

    /// `XSched`'s policy `priority` at a preemption level, as measured on an NVIDIA H200.
    #[must_use]
    pub fn xsched(level: Level) -> Self {
        let (wait, batch_efficiency) = match level {
            Level::Block => (LEVEL_1_WAIT, LEVEL_1_BATCH_EFFICIENCY),
            Level::Deactivate => (LEVEL_2_WAIT, 1.0),
            Level::Interrupt => (LEVEL_3_WAIT, 1.0),
        };
        Self {
            sharing: Sharing::Priority,
            switch_s: CONTEXT_SWITCH_S,
            slice_s: PEER_SLICE_S,
            wait,
            preemption_s: 2.0 * CONTEXT_SWITCH_S,
            batch_efficiency,
        }
    }
}
