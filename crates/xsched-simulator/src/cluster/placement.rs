//! Placement rules: which of the GPUs that accept a job it gets.
//!
//! Jobs of several GPUs get GPUs of one node, or as many nodes as they need. The rule orders the candidates; whether a GPU
//! accepts a job is decided by memory and by the model's prediction for all jobs on it.

use std::fmt;
use std::str::FromStr;

use super::gpus::{Candidate, Gpus};

/// The order in which GPUs are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The first in the order of their numbers, as Slurm does without further settings.
    #[default]
    FirstFit,
    /// The fullest first, as Kubernetes does with the strategy `MostAllocated`.
    Pack,
    /// The emptiest first, as Kubernetes does with the strategy `LeastAllocated`, its default.
    Spread,
}

impl Placement {
    /// All rules.
    pub const ALL: [Self; 3] = [Self::FirstFit, Self::Pack, Self::Spread];

    /// The name that users type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FirstFit => "first-fit",
            Self::Pack => "pack",
            Self::Spread => "spread",
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Placement {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|rule| rule.name().eq_ignore_ascii_case(s)).ok_or_else(|| {
            format!("unknown placement rule `{s}`: use one of {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}

/// Predictions for one job: large clusters have more candidates than are worth a look. Kubernetes scores a part of the nodes
/// for the same reason. Empty GPUs need no prediction and always remain candidates.
const MAX_PREDICTIONS: usize = 64;
/// GPUs are ordered by their demand in steps of this part of a GPU.
const STEPS: f32 = 16.0;

/// Chooses GPUs. Keeps its memory from job to job.
pub(super) struct Chooser {
    rule: Placement,
    per_node: usize,
    /// GPUs or nodes by their place in the rule's order.
    buckets: Vec<Vec<u32>>,
    on_node: Vec<u32>,
    /// The result of the last search.
    pub(super) chosen: Vec<u32>,
}

impl Chooser {
    pub(super) fn new(rule: Placement, per_node: usize) -> Self {
        Self { rule, per_node, buckets: Vec::new(), on_node: Vec::new(), chosen: Vec::new() }
    }

    /// Chooses GPUs for a job on the nodes that `is_open` allows. Returns whether there are enough; they are in `chosen`.
    pub(super) fn choose(
        &mut self,
        gpus: &Gpus,
        count: usize,
        job: &Candidate,
        is_open: impl Fn(usize) -> bool,
    ) -> bool {
        self.chosen.clear();
        if job.gpus == 1 {
            self.one_gpu(gpus, count, job, is_open)
        } else {
            self.nodes(gpus, count, job, is_open)
        }
    }

    /// Chooses among the GPUs of one node, of which `freed` are those that have changed.
    pub(super) fn choose_on_node(
        &mut self,
        gpus: &Gpus,
        node: usize,
        freed: &[u32],
        job: &Candidate,
        budget: &mut usize,
    ) -> bool {
        self.chosen.clear();
        if job.gpus > 1 {
            return self.add_node(gpus, node, job, job.gpus as usize, budget);
        }
        // The other GPUs of the node accept no job that they did not accept before.
        let found = freed.iter().copied().find(|gpu| accepts(gpus, *gpu as usize, job, budget));
        self.chosen.extend(found);
        found.is_some()
    }

    fn one_gpu(
        &mut self,
        gpus: &Gpus,
        count: usize,
        job: &Candidate,
        is_open: impl Fn(usize) -> bool,
    ) -> bool {
        let (mut budget, mut has_empty) = (MAX_PREDICTIONS, false);
        self.clear_buckets();
        for node in 0..count.div_ceil(self.per_node) {
            if !is_open(node) {
                continue;
            }
            for gpu in node * self.per_node..((node + 1) * self.per_node).min(count) {
                let is_empty = gpus.is_empty(gpu);
                // One empty GPU is as good as another.
                if is_empty && has_empty || !gpus.may_accept(gpu, job) {
                    continue;
                }
                has_empty |= is_empty;
                let place = match self.rule {
                    Placement::FirstFit if accepts(gpus, gpu, job, &mut budget) => {
                        self.chosen.push(index(gpu));
                        return true;
                    }
                    Placement::FirstFit => continue,
                    Placement::Spread if is_empty => {
                        self.chosen.push(index(gpu));
                        return true;
                    }
                    // Empty GPUs are last.
                    Placement::Pack if is_empty => self.buckets.len() - 1,
                    Placement::Pack => self.buckets.len() - 2 - step(gpus.demand(gpu)),
                    Placement::Spread => step(gpus.demand(gpu)),
                };
                // More candidates of one place than predictions are of no use.
                if self.buckets[place].len() < MAX_PREDICTIONS {
                    self.buckets[place].push(index(gpu));
                }
            }
        }
        let found =
            self.buckets.iter().flatten().copied().find(|gpu| accepts(gpus, *gpu as usize, job, &mut budget));
        self.chosen.extend(found);
        found.is_some()
    }

    /// One node for a job that fits, else several.
    fn nodes(&mut self, gpus: &Gpus, count: usize, job: &Candidate, is_open: impl Fn(usize) -> bool) -> bool {
        self.clear_buckets();
        let wanted = job.gpus as usize;
        let least = if wanted >= self.per_node { self.remainder(wanted) } else { wanted };
        for node in (0..count.div_ceil(self.per_node)).filter(|node| is_open(*node)) {
            let all = node * self.per_node..((node + 1) * self.per_node).min(count);
            let possible = all.filter(|gpu| gpus.may_accept(*gpu, job)).count();
            if possible < least {
                continue;
            }
            let place = match self.rule {
                Placement::FirstFit => 0,
                Placement::Pack => possible.min(self.buckets.len() - 1),
                Placement::Spread => self.buckets.len() - 1 - possible.min(self.buckets.len() - 1),
            };
            self.buckets[place].push(index(node));
        }
        let mut budget = MAX_PREDICTIONS * self.per_node;
        let buckets = std::mem::take(&mut self.buckets);
        for node in buckets.iter().flatten() {
            let missing = wanted - self.chosen.len();
            // The last node of a job on several can be a part of one.
            let part = missing.min(self.per_node);
            if self.add_node(gpus, *node as usize, job, part, &mut budget) && self.chosen.len() == wanted {
                break;
            }
        }
        self.buckets = buckets;
        self.chosen.len() == wanted
    }

    /// GPUs of the last node of a job that needs several nodes.
    fn remainder(&self, wanted: usize) -> usize {
        match wanted % self.per_node {
            0 => self.per_node,
            rest => rest,
        }
    }

    /// Adds `part` GPUs of a node to the result, or none.
    fn add_node(
        &mut self,
        gpus: &Gpus,
        node: usize,
        job: &Candidate,
        part: usize,
        budget: &mut usize,
    ) -> bool {
        let first = node * self.per_node;
        let mut on_node = std::mem::take(&mut self.on_node);
        on_node.clear();
        on_node.extend((first..first + self.per_node).map(index));
        match self.rule {
            Placement::FirstFit => {}
            Placement::Pack => {
                on_node.sort_by(|a, b| gpus.demand(*b as usize).total_cmp(&gpus.demand(*a as usize)));
            }
            Placement::Spread => {
                on_node.sort_by(|a, b| gpus.demand(*a as usize).total_cmp(&gpus.demand(*b as usize)));
            }
        }
        let before = self.chosen.len();
        for gpu in &on_node {
            if self.chosen.len() < before + part && accepts(gpus, *gpu as usize, job, budget) {
                self.chosen.push(*gpu);
            }
        }
        self.on_node = on_node;
        if self.chosen.len() < before + part {
            self.chosen.truncate(before);
        }
        self.chosen.len() > before
    }

    fn clear_buckets(&mut self) {
        // One for each step of demand, from 0 to twice a GPU, and one for empty GPUs.
        self.buckets.resize_with(2 * 16 + 2, Vec::new);
        self.buckets.iter_mut().for_each(Vec::clear);
    }
}

/// Whether a GPU accepts a job, within the budget of predictions.
fn accepts(gpus: &Gpus, gpu: usize, job: &Candidate, budget: &mut usize) -> bool {
    if !gpus.may_accept(gpu, job) {
        return false;
    }
    if gpus.is_empty(gpu) {
        return true;
    }
    if *budget == 0 {
        return false;
    }
    *budget -= 1;
    gpus.accepts(gpu, job)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 32")]
fn step(demand: f32) -> usize {
    (demand * STEPS).clamp(0.0, 2.0 * STEPS) as usize
}

fn index(n: usize) -> u32 {
    crate::spec::index(n)
}
