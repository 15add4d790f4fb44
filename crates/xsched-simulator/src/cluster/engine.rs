//! One simulation of a cluster: jobs arrive, wait, are placed, change each other's speed, and finish.
//!
//! ```text
//!   arrival ──► placed at once, or waits ──► speed changes whenever a job joins or leaves its GPUs ──► finished
//!                          ▲                                                                              │
//!                          └──────────────── waiting jobs are tried on the GPUs it leaves ◄───────────────┘
//! ```
//!
//! Waiting jobs are tried in the order of priority, then of arrival; a smaller job may start before a larger one (backfill).
//! So that large jobs do not wait for ever, waiting jobs of several GPUs reserve nodes, where no other job starts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::atomic::Ordering;

use super::gpus::{Candidate, Gpus};
use super::outcome::{Measures, Outcome};
use super::placement::Chooser;
use super::trace::{Job, Trace};
use super::{ClusterError, Settings};
use crate::Progress;
use crate::spec::index;

/// Waiting jobs that are tried when a job leaves a GPU. Slurm's backfill has such a limit too.
const BACKFILL_DEPTH: usize = 64;
/// Predictions for waiting jobs when a job leaves.
const BACKFILL_PREDICTIONS: usize = 96;
/// Reserved nodes are at most one in so many, unless the first waiting job needs more.
const NODES_PER_RESERVATION: usize = 20;
/// Jobs between two reports of progress.
const JOBS_PER_PROGRESS_REPORT: u64 = 4096;

/// A job in the simulation. Times in microseconds since the first arrival.
#[derive(Clone, Debug, Default)]
struct State {
    gpus: Box<[u32]>,
    started: u64,
    updated: u64,
    /// Counts changes of its speed: an event of an earlier speed is void.
    version: u32,
    /// Seconds left at full speed.
    left_s: f64,
    /// The speed of a batch job, or the p99 latency of a service, relative to alone.
    value: f64,
}

pub(super) struct Engine<'a> {
    settings: &'a Settings,
    jobs: &'a [Job],
    origin_s: f64,
    states: Vec<State>,
    gpus: Gpus,
    chooser: Chooser,
    events: BinaryHeap<Reverse<(u64, u32, u32)>>,
    waiting: BTreeSet<(Reverse<i16>, u32)>,
    /// Waiting jobs of several GPUs without reserved nodes.
    unreserved: BTreeSet<(Reverse<i16>, u32)>,
    reservations: BTreeMap<u32, Vec<u32>>,
    /// For each node, the job that it is reserved for.
    reserved_for: Vec<Option<u32>>,
    reserved_nodes: usize,
    /// Nodes that are reserved no longer, or for another job, where waiting jobs were not tried yet.
    changed_nodes: Vec<u32>,
    now: u64,
    measures: Measures,
}

/// Simulates a trace. With `stop_early`, stops as soon as the targets are missed; the outcome is then incomplete.
pub(super) fn simulate(
    trace: &Trace,
    settings: &Settings,
    stop_early: bool,
    progress: &Progress,
) -> Result<Outcome, ClusterError> {
    settings.check(trace)?;
    progress.done.store(0, Ordering::Relaxed);
    progress.total.store(trace.jobs.len() as u64, Ordering::Relaxed);
    let mut engine = Engine::new(trace, settings);
    let mut arrivals = 0_u32;
    let mut finished = 0_u64;
    loop {
        let arrival = trace.jobs.get(arrivals as usize).map(|job| engine.micros(job.arrival_s));
        let event = engine.events.peek().map(|Reverse((at, ..))| *at);
        match (arrival, event) {
            (None, None) => break,
            (Some(arrival), event) if event.is_none_or(|event| arrival < event) => {
                engine.advance(arrival);
                engine.arrive(arrivals);
                arrivals += 1;
            }
            _ => {
                let Some(Reverse((at, job, version))) = engine.events.pop() else { break };
                if engine.states[job as usize].version != version {
                    continue;
                }
                engine.advance(at);
                engine.finish(job);
                finished += 1;
                if finished.is_multiple_of(JOBS_PER_PROGRESS_REPORT) {
                    progress.done.store(finished, Ordering::Relaxed);
                    if stop_early && engine.measures.has_missed_targets() {
                        break;
                    }
                }
            }
        }
    }
    progress.done.store(trace.jobs.len() as u64, Ordering::Relaxed);
    progress.runs.fetch_add(1, Ordering::Relaxed);
    Ok(engine.measures.outcome(settings))
}

impl<'a> Engine<'a> {
    fn new(trace: &'a Trace, settings: &'a Settings) -> Self {
        let per_node = settings.gpus_per_node as usize;
        Self {
            settings,
            jobs: &trace.jobs,
            origin_s: trace.jobs.first().map_or(0.0, |job| job.arrival_s),
            states: vec![State::default(); trace.jobs.len()],
            gpus: Gpus::new(settings),
            chooser: Chooser::new(settings.placement, per_node),
            events: BinaryHeap::new(),
            waiting: BTreeSet::new(),
            unreserved: BTreeSet::new(),
            reservations: BTreeMap::new(),
            reserved_for: vec![None; settings.gpus as usize / per_node],
            reserved_nodes: 0,
            changed_nodes: Vec::new(),
            now: 0,
            measures: Measures::new(trace, settings),
        }
    }

    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked when the trace was read"
    )]
    fn micros(&self, at_s: f64) -> u64 {
        ((at_s - self.origin_s) * 1e6).round() as u64
    }

    fn advance(&mut self, now: u64) {
        self.measures.advance(self.now, now);
        self.now = now;
    }

    fn candidate(&self, job: u32) -> Candidate {
        Candidate::new(&self.jobs[job as usize], self.settings)
    }

    fn key(&self, job: u32) -> (Reverse<i16>, u32) {
        (Reverse(self.jobs[job as usize].priority), job)
    }

    fn arrive(&mut self, job: u32) {
        let candidate = self.candidate(job);
        if self.place_anywhere(job, &candidate) {
            return;
        }
        self.waiting.insert(self.key(job));
        if candidate.gpus > 1 {
            self.unreserved.insert(self.key(job));
            self.reserve();
            // It fits nowhere yet.
            self.changed_nodes.clear();
        }
    }

    fn place_anywhere(&mut self, job: u32, candidate: &Candidate) -> bool {
        let reserved_for = &self.reserved_for;
        let is_open = |node: usize| reserved_for[node].is_none_or(|owner| owner == job);
        let is_found = self.chooser.choose(&self.gpus, self.settings.gpus as usize, candidate, is_open);
        if is_found {
            self.start(job, candidate);
        }
        is_found
    }

    /// Starts a job on the chosen GPUs.
    fn start(&mut self, job: u32, candidate: &Candidate) {
        let state = &mut self.states[job as usize];
        state.gpus = self.chooser.chosen.as_slice().into();
        state.started = self.now;
        state.updated = self.now;
        state.left_s = self.jobs[job as usize].duration_s;
        let wait = self.now - self.micros(self.jobs[job as usize].arrival_s);
        self.measures.start(&self.jobs[job as usize], wait);
        let gpus = self.states[job as usize].gpus.clone();
        for gpu in &gpus {
            self.change(*gpu as usize, |all| all.add(*gpu as usize, job, candidate), job);
        }
        self.update(job, true);
    }

    fn finish(&mut self, job: u32) {
        let candidate = self.candidate(job);
        self.settle(job);
        let state = &mut self.states[job as usize];
        state.version = state.version.wrapping_add(1);
        let gpus = std::mem::take(&mut state.gpus);
        let arrival = self.micros(self.jobs[job as usize].arrival_s);
        self.measures.finish(&self.jobs[job as usize], self.now - arrival);
        for gpu in &gpus {
            self.change(*gpu as usize, |all| all.remove(*gpu as usize, job, &candidate), job);
        }
        self.start_waiting(&gpus);
    }

    /// Changes the jobs of a GPU, and updates what depends on them, except for the job that joins or leaves.
    fn change(&mut self, gpu: usize, change: impl FnOnce(&mut Gpus), except: u32) {
        let (before, was_empty) = (self.gpus.utilization(gpu), self.gpus.is_empty(gpu));
        change(&mut self.gpus);
        self.measures.used_changed(
            self.gpus.utilization(gpu) - before,
            i64::from(!self.gpus.is_empty(gpu)) - i64::from(!was_empty),
        );
        let affected: Vec<u32> =
            self.gpus.jobs(gpu).map(|(job, _)| job).filter(|job| *job != except).collect();
        for job in affected {
            self.update(job, false);
        }
    }

    /// Sets the speed of a job from those on its GPUs. The slowest determines it: its processes wait for each other.
    fn update(&mut self, job: u32, is_new: bool) {
        let is_service = self.is_service(job);
        let state = &self.states[job as usize];
        let values = state.gpus.iter().map(|gpu| self.gpus.value(*gpu as usize, job));
        let value = values.reduce(if is_service { f64::max } else { f64::min }).unwrap_or(1.0);
        #[allow(clippy::float_cmp, reason = "the same jobs on the same GPU give the same number")]
        if !is_new && value == state.value {
            return;
        }
        self.settle(job);
        let now = self.now;
        let state = &mut self.states[job as usize];
        state.value = value;
        if is_service && !is_new {
            return;
        }
        state.version = state.version.wrapping_add(1);
        let left_s = if is_service { state.left_s } else { state.left_s / value };
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "saturates at the end of time"
        )]
        let end = now.saturating_add((left_s * 1e6).ceil() as u64);
        self.events.push(Reverse((end, job, state.version)));
    }

    /// Accounts for the time since the last change of a job's speed.
    fn settle(&mut self, job: u32) {
        let is_service = self.is_service(job);
        let state = &mut self.states[job as usize];
        let elapsed_s = (self.now - state.updated) as f64 / 1e6;
        state.updated = self.now;
        if is_service {
            self.measures.served(&self.jobs[job as usize], state.value, elapsed_s);
        } else {
            state.left_s = (state.left_s - elapsed_s * state.value).max(0.0);
        }
    }

    fn is_service(&self, job: u32) -> bool {
        matches!(self.jobs[job as usize].work, super::Work::Service { .. })
    }

    /// Tries waiting jobs on GPUs that a job has left, and then on nodes that are no longer reserved.
    fn start_waiting(&mut self, freed: &[u32]) {
        if self.waiting.is_empty() {
            return;
        }
        let per_node = self.settings.gpus_per_node as usize;
        let mut budget = BACKFILL_PREDICTIONS;
        let mut at = 0;
        while at < freed.len() {
            let node = freed[at] as usize / per_node;
            let on_node = freed[at..].iter().take_while(|gpu| **gpu as usize / per_node == node).count();
            self.try_node(node, &freed[at..at + on_node], &mut budget);
            at += on_node;
        }
        while let Some(node) = self.changed_nodes.pop() {
            let first = node as usize * per_node;
            let all: Vec<u32> = (first..first + per_node).map(index).collect();
            self.try_node(node as usize, &all, &mut budget);
        }
    }

    fn try_node(&mut self, node: usize, gpus: &[u32], budget: &mut usize) {
        let Some(owner) = self.reserved_for[node] else { return self.backfill(node, gpus, budget) };
        let candidate = self.candidate(owner);
        // If it starts, its nodes are tried for others next.
        if self.place_anywhere(owner, &candidate) {
            self.leave_queue(owner);
        }
    }

    fn backfill(&mut self, node: usize, freed: &[u32], budget: &mut usize) {
        let per_node = self.settings.gpus_per_node;
        let first: Vec<u32> = self.waiting.iter().take(BACKFILL_DEPTH).map(|(_, job)| *job).collect();
        for job in first {
            let is_for_another = self.reserved_for[node].is_some_and(|owner| owner != job);
            if self.jobs[job as usize].gpus > per_node || is_for_another {
                continue;
            }
            let candidate = self.candidate(job);
            if self.chooser.choose_on_node(&self.gpus, node, freed, &candidate, budget) {
                self.start(job, &candidate);
                self.leave_queue(job);
            }
        }
    }

    /// A waiting job has started. Its reserved nodes become free for others, or are reserved for the next job.
    fn leave_queue(&mut self, job: u32) {
        let key = self.key(job);
        self.waiting.remove(&key);
        self.unreserved.remove(&key);
        for node in self.reservations.remove(&job).unwrap_or_default() {
            self.reserved_for[node as usize] = None;
            self.reserved_nodes -= 1;
            self.changed_nodes.push(node);
        }
        self.reserve();
    }

    /// Reserves the nodes with the most empty GPUs for the first waiting jobs of several GPUs.
    fn reserve(&mut self) {
        let per_node = self.settings.gpus_per_node as usize;
        let limit = (self.reserved_for.len() / NODES_PER_RESERVATION).max(1);
        while let Some(key) = self.unreserved.first().copied() {
            let needed = (self.jobs[key.1 as usize].gpus as usize).div_ceil(per_node);
            if self.reserved_nodes > 0 && self.reserved_nodes + needed > limit {
                return;
            }
            let empty = |node: usize| {
                (node * per_node..(node + 1) * per_node).filter(|gpu| self.gpus.is_empty(*gpu)).count()
            };
            let mut nodes: Vec<(Reverse<usize>, u32)> = (self.reserved_for.iter().enumerate())
                .filter(|(_, owner)| owner.is_none())
                .map(|(node, _)| (Reverse(empty(node)), index(node)))
                .collect();
            if nodes.len() < needed {
                return;
            }
            nodes.sort_unstable();
            self.unreserved.remove(&key);
            for (_, node) in &nodes[..needed] {
                self.reserved_for[*node as usize] = Some(key.1);
            }
            self.reserved_nodes += needed;
            // The job may fit at once: its nodes may have been reserved for another job before.
            self.changed_nodes.push(nodes[0].1);
            self.reservations.insert(key.1, nodes[..needed].iter().map(|(_, node)| *node).collect());
        }
    }
}
