//! How many GPUs a trace needs: the smallest cluster that meets the targets, found by bisection.

use serde::Serialize;

use super::engine::simulate;
use super::outcome::Outcome;
use super::trace::Trace;
use super::{ClusterError, MAX_CLUSTER_GPUS, Settings};
use crate::Progress;

/// The search ends when the answer is known to this part of itself, or to one node.
const PRECISION: f64 = 0.005;

/// The answer of a search.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Needed {
    /// The smallest cluster that was found to meet the targets.
    pub outcome: Outcome,
    /// The largest smaller cluster that was found to miss them; 0 if the smallest possible one meets them.
    pub gpus_too_few: u32,
    /// Simulations that the search took.
    pub simulations: u32,
}

/// Finds the smallest number of GPUs, in whole nodes, with which `trace` meets the targets. `settings.gpus` is not used.
///
/// Assumes that more GPUs do not make it worse, which holds except for differences of a few nodes.
pub fn needed_gpus(trace: &Trace, settings: &Settings, progress: &Progress) -> Result<Needed, ClusterError> {
    let per_node = settings.gpus_per_node;
    let largest = trace.jobs.iter().map(|job| job.gpus).max().unwrap_or(1);
    let least = largest.div_ceil(per_node);
    let most = MAX_CLUSTER_GPUS / per_node;
    let mut simulations = 0;
    let mut attempt = |nodes: u32, stop_early: bool| {
        simulations += 1;
        let settings = Settings { gpus: nodes * per_node, ..settings.clone() };
        simulate(trace, &settings, stop_early, progress)
    };
    // Up from the average demand, in steps of a quarter, until the targets are met.
    let mut too_few = least.saturating_sub(1);
    let mut nodes = least.max(average_gpus(trace).div_ceil(per_node));
    let mut best = loop {
        let outcome = attempt(nodes, true)?;
        if outcome.meets_targets {
            break outcome;
        }
        too_few = nodes;
        if nodes >= most {
            return Err(ClusterError::TooManyGpus { limit: MAX_CLUSTER_GPUS });
        }
        nodes = (nodes + nodes.div_ceil(4)).min(most);
    };
    while f64::from(nodes - too_few) > (f64::from(nodes) * PRECISION).max(1.0) {
        let middle = too_few + (nodes - too_few) / 2;
        let outcome = attempt(middle, true)?;
        if outcome.meets_targets {
            (nodes, best) = (middle, outcome);
        } else {
            too_few = middle;
        }
    }
    let gpus_too_few = if too_few < least { 0 } else { too_few * per_node };
    Ok(Needed { outcome: best, gpus_too_few, simulations })
}

/// Half of the GPUs that are used on average if each job has its own: where the search begins.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the float cast saturates")]
fn average_gpus(trace: &Trace) -> u32 {
    let gpu_seconds: f64 = trace.jobs.iter().map(|job| job.duration_s * f64::from(job.gpus)).sum();
    let first = trace.jobs.first().map_or(0.0, |job| job.arrival_s);
    let end = trace.jobs.iter().map(|job| job.arrival_s + job.duration_s).fold(first, f64::max);
    (gpu_seconds / (end - first).max(1.0) / 2.0).min(f64::from(MAX_CLUSTER_GPUS)) as u32
}
