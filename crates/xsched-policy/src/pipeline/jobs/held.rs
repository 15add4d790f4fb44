//! Held jobs whose launched work cannot be stopped.
//!
//! ```text
//!              1 ms passes, work of some members        that work has completed
//!   Holding ─────────────────────────────────► Completing ───────────────────► Holding
//!      │                                           │ 15 ms
//!      │ all members have such work, 15 ms         ▼
//!      └─────────────────────────────────► Resumed: all members run for 2 ms ──► Holding, for twice as long the next time
//! ```
//!
//! Below level 3 a device completes the command that it has begun. The kernel of a collective completes only when all its
//! peers run. If one rank has launched it and another is held before it, the kernel occupies its device until the job runs
//! again. A task of higher precedence on that device might never run, if the device runs one process at a time, and it would
//! keep the job held: a deadlock.
//!
//! In `Completing`, members without such work run throttled until the work that they are waited for has completed. They are
//! held again before most of them launch more; if one has launched the next collective, the other members complete that one
//! in the same way. In `Resumed` all members run: their launched work waits for each other in different orders, or level 2
//! has stalled queues behind commands that have not begun.
//!
//! A job that other jobs wait for completes its work first: a job does not start, and does not complete its own work, on the
//! devices of a held job with work that continues, for up to 500 ms. Otherwise the kernel of each could occupy a device that
//! the kernel of the other needs. The limit is for jobs whose other ranks are on other machines: what those wait for is not
//! known here.
//!
//! Launched work completes: in each `Resumed` phase the job runs as if it were not held, and phases recur while such work
//! exists. Tasks of higher precedence run: they never wait for a held job, and they share the device with it for the time of
//! `Completing`, at most 15 ms for each kernel that could not be stopped, and for 2 ms after 15 ms, 30 ms, up to 480 ms.

use xsched_core::Nanos;

use super::JobId;
use crate::TaskView;
use crate::pipeline::{LaunchedWork, TaskMemory, TaskStatus, WakeUp};

/// Ordinary work in flight of a throttled queue completes within this time.
const COMPLETION_GRACE: Nanos = Nanos::from_millis(1);
/// How long members run for the launched work of their peers.
const MAX_COMPLETION: Nanos = Nanos::from_millis(15);
/// How long all members run if their launched work waits for each other.
const RESUMED_TIME: Nanos = Nanos::from_millis(2);
/// How long a job is held before all its members run, at first and at most.
const MIN_HOLDING: Nanos = Nanos::from_millis(15);
const MAX_HOLDING: Nanos = Nanos::from_millis(480);
/// How long other jobs wait for the launched work of a held job on their devices.
const MAX_SETTLING: Nanos = Nanos::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Holding,
    Completing,
    Resumed,
}

#[derive(Clone, Copy, Debug)]
struct HeldJob {
    id: JobId,
    phase: Phase,
    since: Nanos,
    /// How long the job is held before all members run.
    holding: Nanos,
    /// Since when it has launched work that continues; none if it has none.
    unsettled_since: Option<Nanos>,
}

/// The jobs that are blocked.
#[derive(Debug, Default)]
pub(super) struct HeldJobs {
    /// In ascending order of id.
    jobs: Vec<HeldJob>,
    runs: Vec<usize>,
}

impl HeldJobs {
    /// A job is not blocked.
    pub(super) fn resume(&mut self, id: JobId) {
        if let Ok(place) = self.jobs.binary_search_by_key(&id, |job| job.id) {
            self.jobs.remove(place);
        }
    }

    /// Forgets jobs that are gone.
    pub(super) fn retain(&mut self, exists: impl Fn(JobId) -> bool) {
        self.jobs.retain(|job| exists(job.id));
    }

    /// Whether other jobs wait until launched work of this one has completed.
    pub(super) fn is_unsettled(&self, id: JobId, now: Nanos) -> bool {
        self.unsettled_since(id).is_some_and(|since| now < since + MAX_SETTLING)
    }

    /// Since when a job has launched work that continues.
    pub(super) fn unsettled_since(&self, id: JobId) -> Option<Nanos> {
        let place = self.jobs.binary_search_by_key(&id, |job| job.id).ok()?;
        self.jobs[place].unsettled_since
    }

    /// Takes note of a blocked job and of the work that it has launched.
    pub(super) fn hold(
        &mut self,
        id: JobId,
        members: &[usize],
        now: Nanos,
        statuses: &[TaskStatus],
        memory: &mut [TaskMemory],
    ) {
        let place = self.jobs.binary_search_by_key(&id, |job| job.id).unwrap_or_else(|place| {
            let (phase, holding, unsettled_since) = (Phase::Holding, MIN_HOLDING, None);
            self.jobs.insert(place, HeldJob { id, phase, since: now, holding, unsettled_since });
            set_awaited(members, memory, |_| false);
            place
        });
        let continues = |index: &usize| statuses[*index].launched_work == LaunchedWork::Continues;
        let job = &mut self.jobs[place];
        job.unsettled_since = members.iter().any(continues).then(|| job.unsettled_since.unwrap_or(now));
    }

    /// The members of a blocked job that run nevertheless. `is_waited_for`: other jobs wait for it.
    pub(super) fn runs(
        &mut self,
        (id, is_waited_for): (JobId, bool),
        members: &[usize],
        now: Nanos,
        (views, statuses): (&[TaskView], &[TaskStatus]),
        memory: &mut [TaskMemory],
        wake_up: &mut WakeUp,
    ) -> &[usize] {
        self.runs.clear();
        let Ok(place) = self.jobs.binary_search_by_key(&id, |job| job.id) else { return &self.runs };
        let job = &mut self.jobs[place];
        let is_unstoppable = |index: &usize| statuses[*index].launched_work != LaunchedWork::Stops;
        let holding = if is_waited_for { COMPLETION_GRACE } else { job.holding };
        if !members.iter().any(is_unstoppable) {
            // Settled: the next such work comes only after the job has run.
            (job.phase, job.since) = (Phase::Holding, now);
            set_awaited(members, memory, |_| false);
            return &self.runs;
        }
        loop {
            let elapsed = now - job.since;
            let next = match job.phase {
                Phase::Holding if elapsed < COMPLETION_GRACE => {
                    wake_up.at(job.since + COMPLETION_GRACE);
                    break;
                }
                Phase::Holding
                    if members.iter().any(|index| views[*index].ready && !is_unstoppable(index)) =>
                {
                    set_awaited(members, memory, is_unstoppable);
                    Phase::Completing
                }
                Phase::Holding if elapsed < holding => {
                    wake_up.at(job.since + holding);
                    break;
                }
                Phase::Completing
                    if !members.iter().any(|&index| memory[index].is_awaited && is_unstoppable(&index)) =>
                {
                    Phase::Holding
                }
                Phase::Completing if elapsed < MAX_COMPLETION => {
                    // The members that completed their work notify the scheduler. This is for those that cannot.
                    wake_up.at(now + COMPLETION_GRACE);
                    self.runs.extend(members.iter().copied().filter(|&index| !memory[index].is_awaited));
                    break;
                }
                Phase::Holding | Phase::Completing => Phase::Resumed,
                Phase::Resumed if elapsed < RESUMED_TIME => {
                    wake_up.at(job.since + RESUMED_TIME);
                    self.runs.extend_from_slice(members);
                    break;
                }
                Phase::Resumed => {
                    job.holding = Nanos(job.holding.0 * 2).min(MAX_HOLDING);
                    Phase::Holding
                }
            };
            (job.phase, job.since) = (next, now);
        }
        &self.runs
    }
}

fn set_awaited(members: &[usize], memory: &mut [TaskMemory], is_awaited: impl Fn(&usize) -> bool) {
    for index in members {
        memory[*index].is_awaited = is_awaited(index);
    }
}
