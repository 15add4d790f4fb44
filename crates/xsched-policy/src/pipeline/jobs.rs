//! Jobs: tasks that wait for each other across devices are held and resumed together.
//!
//! ```text
//!   device 0   high ████████             rank 0 ··██████      the kernel of a collective runs on all devices at the same
//!   device 1   rank 1 ··········██████                        time or not at all: rank 1 is held while rank 0 is held
//!   device 1   low   ████████··                               and device 1 is not left idle meanwhile
//! ```
//!
//! The members of a job are tasks of several processes, or of one process on several devices. Each member has the highest
//! priority of the job's ready members and the age of the oldest one. A member with priority -256 keeps it. A job is *blocked*
//! if it has work and does not run; then all its members are held, those without work too. A job that is not blocked runs on
//! all devices where it has work.
//!
//! **Which jobs are blocked.** A policy that selects by precedence ([`Selection::Precedence`]) grants a device to all tasks
//! that no other ready task precedes. A job runs if it is granted every device where it has work. Otherwise it is blocked, the
//! policy decides again as if the job had no work, and the tasks behind it run. Jobs are blocked one at a time. The first is a
//! job that is held back on a device by tasks without a job or by jobs that run everywhere. If there is none, it is the last
//! in the order of priority, then of id. A policy that rotates ([`Selection::Rotation`]) grants different devices at different
//! times. The device where the job has the smallest part of the ready tasks decides then: the job runs on all its devices while
//! that one grants it, so it has no more than its share on the most contended device. A job with a stalled member, or with a
//! suspended one that has work, is blocked.
//!
//! **Time slices.** Jobs that a policy with exclusive grants lets run at the same time, throttled, share their devices in time
//! slices that begin and end on all devices at the same time ([`slices`]). Two jobs on one device share it in this way even
//! if no other task precedes them: while the kernels of their collectives alternate on their devices, each waits for the other.
//!
//! **Launched work.** Below level 3 the device completes a command that it has begun. The kernel of a collective completes only
//! if the peers launch theirs, and a blocked job's peers are held. [`held`] resumes those peers.
//!
//! **Why no two jobs wait for each other.** A job is never granted a part of its devices: it runs on all of them or is blocked.
//! A blocked job therefore has no device that another job waits for. Among the jobs that are not blocked by a policy, the one
//! that has had least runs first on all its devices in each time slice, so each runs after a bounded number of slices.
//!
//! **What a job takes from other tasks.** Under a policy by precedence a job runs on a device only if the policy grants it
//! there, with one exception: the completion of launched work in [`held`], which is bounded.

mod held;
mod slices;

use xsched_core::{DeviceId, Nanos, Priority, ProcessId};

use self::held::HeldJobs;
use self::slices::{Claim, GangSlices, Unit};
use super::{TaskMemory, TaskStatus, WakeUp};
use crate::policies::{GrantMode, Selection};
use crate::{Decision, Grant, Scheduler, TaskView};

/// A job. Tasks with the same id are held and resumed together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// How often a job is planned again that waits for launched work of another job.
const WAIT_FOR_JOB_INTERVAL: Nanos = Nanos::from_millis(1);

/// The state of a job in one round.
#[derive(Clone, Copy, Debug)]
struct Job {
    id: JobId,
    /// Its members: a range of [`Jobs::members`].
    begin: usize,
    end: usize,
    priority: Priority,
    /// Some member is ready.
    is_ready: bool,
    is_blocked: bool,
}

/// The jobs of a round, and what is remembered about them from round to round.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    /// In ascending order of id.
    all: Vec<Job>,
    /// Indices of tasks, by job.
    members: Vec<usize>,
    /// For each task, the index of its job in `all`.
    job_of: Vec<Option<usize>>,
    /// What the policy sees: the members of a job look alike, and those of a blocked job have no work.
    views: Vec<TaskView>,
    grants: Vec<Grant>,
    /// Members of blocked jobs that run because launched work of their peers waits for them.
    completes_peers: Vec<bool>,
    slices: GangSlices,
    held: HeldJobs,
    /// The jobs that ran in the last round.
    running: Vec<JobId>,
    /// Used within one round, kept for its memory.
    claims: Vec<Claim>,
    losers: Vec<JobId>,
}

impl Jobs {
    /// Finds the jobs of a snapshot. Returns whether there are any with members in several processes or on several devices.
    pub(super) fn find(&mut self, views: &[TaskView], statuses: &[TaskStatus]) -> bool {
        self.all.clear();
        if statuses.iter().all(|status| status.job.is_none()) {
            if !self.job_of.is_empty() {
                *self = Self::default();
            }
            return false;
        }
        self.members.clear();
        self.members.extend((0..views.len()).filter(|&index| statuses[index].job.is_some()));
        self.members.sort_unstable_by_key(|&index| (statuses[index].job, index));
        self.job_of.clear();
        self.job_of.resize(views.len(), None);
        let mut begin = 0;
        for members in self.members.chunk_by(|&a, &b| statuses[a].job == statuses[b].job) {
            let end = begin + members.len();
            let first = &views[members[0]];
            let is_spread = members
                .iter()
                .any(|&index| (views[index].device, views[index].process) != (first.device, first.process));
            if let Some(id) = statuses[members[0]].job.filter(|_| is_spread) {
                for &index in members {
                    self.job_of[index] = Some(self.all.len());
                }
                self.all.push(Job {
                    id,
                    begin,
                    end,
                    priority: Priority::NO_EXECUTE,
                    is_ready: false,
                    is_blocked: false,
                });
            }
            begin = end;
        }
        let (jobs, held) = (&self.all, &mut self.held);
        held.retain(|id| jobs.binary_search_by_key(&id, |job| job.id).is_ok());
        self.slices.retain_jobs(|id| jobs.binary_search_by_key(&id, |job| job.id).is_ok());
        !self.all.is_empty()
    }

    /// The grants after [`Jobs::decide`].
    pub(super) fn grants(&self) -> &[Grant] {
        &self.grants
    }

    /// For each task, whether it runs because launched work of its peers waits for it.
    pub(super) fn completes_peers(&self) -> &[bool] {
        &self.completes_peers
    }

    /// The tasks that lose a device to the unit that has its time slice. None if the device is not shared with a job.
    pub(super) fn loses_slice(&self, device: DeviceId, index: usize, process: ProcessId) -> Option<bool> {
        let holder = self.slices.holder(device)?;
        Some(holder != self.unit(index, device, process))
    }

    /// The process of the first member of a task's job. None if the task has no job.
    pub(super) fn first_process(&self, index: usize) -> Option<ProcessId> {
        let job = self.job_of[index]?;
        self.members(job).first().map(|&first| self.views[first].process)
    }

    fn unit(&self, index: usize, device: DeviceId, process: ProcessId) -> Unit {
        match self.job_of[index] {
            Some(job) => Unit::Job(self.all[job].id),
            None => Unit::Process(device, process),
        }
    }

    fn members(&self, job: usize) -> &[usize] {
        &self.members[self.all[job].begin..self.all[job].end]
    }

    /// Decides with the policy which tasks run, so that each job runs on all its devices or on none.
    pub(super) fn decide(
        &mut self,
        now: Nanos,
        (views, statuses): (&[TaskView], &[TaskStatus]),
        memory: &mut [TaskMemory],
        (scheduler, decision): (&mut Scheduler, &mut Decision),
        wake_up: &mut WakeUp,
    ) {
        self.align_members(views, statuses);
        let policy = scheduler.policy();
        match policy.selection {
            Selection::Precedence => self.decide_by_precedence(now, scheduler, decision, wake_up),
            Selection::Rotation => {
                self.run_policy(now, scheduler, decision, wake_up);
                self.run_jobs_of_deciding_devices(views, policy.work_conserving, now, wake_up);
            }
        }
        if policy.selection == Selection::Precedence && policy.grant_mode == GrantMode::Exclusive {
            self.limit_running(views);
            self.limit_competing_jobs(views);
            self.share_in_slices(now, views, statuses, wake_up);
            if !self.losers.is_empty() {
                for job in &mut self.all {
                    job.is_blocked |= self.losers.contains(&job.id);
                }
                self.decide_by_precedence(now, scheduler, decision, wake_up);
            }
        }
        if self.wait_for_launched_work(now, views, statuses, memory) {
            match policy.selection {
                Selection::Precedence => self.decide_by_precedence(now, scheduler, decision, wake_up),
                Selection::Rotation => self.give_devices(views, policy.work_conserving),
            }
        }
        for job in self.all.iter().filter(|job| job.is_blocked) {
            for &index in &self.members[job.begin..job.end] {
                self.grants[index] = Grant::Hold;
            }
        }
        self.limit_running(views);
        if policy.selection == Selection::Precedence && policy.grant_mode == GrantMode::Exclusive {
            // The unit that has the slice is preempted at its end.
            for (index, view) in views.iter().enumerate() {
                let is_leader = view.ready && self.grants[index] == Grant::Unthrottled;
                if is_leader && self.slices.holder(view.device).is_some() {
                    self.grants[index] = Grant::Throttled;
                }
            }
        }
        self.running.clear();
        self.running.extend(self.all.iter().filter(|job| job.is_ready && !job.is_blocked).map(|job| job.id));
        self.complete_launched_work(now, views, statuses, memory, wake_up);
    }

    /// Sets what the policy sees of the members.
    fn align_members(&mut self, views: &[TaskView], statuses: &[TaskStatus]) {
        self.views.clear();
        self.views.extend_from_slice(views);
        for job in &mut self.all {
            let members = &self.members[job.begin..job.end];
            let runnable = |index: &usize| views[*index].hints.priority != Priority::NO_EXECUTE;
            let ready = || members.iter().copied().filter(|&index| views[index].ready);
            job.is_ready = ready().next().is_some();
            let priorities = members.iter().copied().filter(runnable);
            let priority = priorities
                .filter(|&index| !job.is_ready || views[index].ready)
                .map(|index| views[index].hints.priority)
                .max();
            job.priority = priority.unwrap_or(Priority::NO_EXECUTE);
            // The peers of a stalled member wait for it, also if it has no work yet.
            let blocks = |status: &TaskStatus| status.is_stalled || (status.is_suspended && status.has_work);
            job.is_blocked = members.iter().any(|&index| blocks(&statuses[index]));
            let ready_since = ready().map(|index| views[index].ready_since).min();
            let nice = members.iter().map(|&index| views[index].nice).min().unwrap_or(0);
            let focused = members.iter().any(|&index| views[index].focused);
            for &index in members {
                let view = &mut self.views[index];
                if view.hints.priority != Priority::NO_EXECUTE {
                    view.hints.priority = job.priority;
                }
                if view.ready {
                    view.ready_since = ready_since.unwrap_or(view.ready_since);
                }
                (view.nice, view.focused) = (nice, focused);
            }
        }
    }

    /// Runs the policy on what it sees now.
    fn run_policy(
        &mut self,
        now: Nanos,
        scheduler: &mut Scheduler,
        decision: &mut Decision,
        wake_up: &mut WakeUp,
    ) {
        scheduler.decide(now, &self.views, decision);
        if let Some(at) = decision.next_look() {
            wake_up.at(at);
        }
        self.grants.clear();
        self.grants.extend_from_slice(decision.grants());
    }

    /// Blocks jobs one at a time until each of the rest is granted every device where it has work.
    fn decide_by_precedence(
        &mut self,
        now: Nanos,
        scheduler: &mut Scheduler,
        decision: &mut Decision,
        wake_up: &mut WakeUp,
    ) {
        for _ in 0..=self.all.len() {
            for job in self.all.iter().filter(|job| job.is_blocked) {
                for &index in &self.members[job.begin..job.end] {
                    (self.views[index].ready, self.views[index].in_gap) = (false, false);
                }
            }
            self.run_policy(now, scheduler, decision, wake_up);
            let Some(next) = self.next_to_block() else { return };
            self.all[next].is_blocked = true;
        }
    }

    /// A job that is not blocked and is held on some device where it has work.
    fn next_to_block(&self) -> Option<usize> {
        let is_partly_held = |job: &usize| {
            !self.all[*job].is_blocked
                && self
                    .members(*job)
                    .iter()
                    .any(|&index| self.views[index].ready && !self.grants[index].runs())
        };
        let partly_held = || (0..self.all.len()).filter(is_partly_held);
        // The tasks that it waits for on one of its devices run everywhere: it waits whatever is blocked after it.
        let waits_for_running_tasks = |job: &usize| {
            let held = |&&index: &&usize| self.views[index].ready && !self.grants[index].runs();
            self.members(*job).iter().filter(held).any(|&index| {
                let device = self.views[index].device;
                let begin = self.views.partition_point(|task| task.device < device);
                let end = self.views.partition_point(|task| task.device <= device);
                let ahead = |other: &usize| self.views[*other].ready && self.grants[*other].runs();
                (begin..end)
                    .filter(ahead)
                    .all(|other| self.job_of[other].is_none_or(|other| !is_partly_held(&other)))
            })
        };
        partly_held()
            .find(waits_for_running_tasks)
            .or_else(|| partly_held().min_by_key(|&job| (self.all[job].priority, std::cmp::Reverse(job))))
    }

    /// For policies that rotate: a job runs while its most contended device grants it.
    fn run_jobs_of_deciding_devices(
        &mut self,
        views: &[TaskView],
        work_conserving: bool,
        now: Nanos,
        wake_up: &mut WakeUp,
    ) {
        self.claims.clear();
        for job in 0..self.all.len() {
            if !self.all[job].is_ready || self.all[job].is_blocked {
                continue;
            }
            let is_granted = self.deciding_device(job, views).is_some_and(|device| {
                let on_device = |&&index: &&usize| views[index].device == device && views[index].ready;
                self.members(job).iter().filter(on_device).any(|&index| self.grants[index].runs())
            });
            self.all[job].is_blocked = !is_granted;
            if is_granted {
                let unit = Unit::Job(self.all[job].id);
                for &index in &self.members[self.all[job].begin..self.all[job].end] {
                    if views[index].ready {
                        let (device, has_work) = (views[index].device, true);
                        self.claims.push(Claim { unit, device, has_work });
                    }
                }
            }
        }
        self.slices.choose(now, &mut self.claims, wake_up);
        for job in 0..self.all.len() {
            let Job { id, is_ready, is_blocked, .. } = self.all[job];
            if is_ready && !is_blocked && !self.slices.runs(Unit::Job(id)) {
                self.all[job].is_blocked = true;
            }
        }
        self.give_devices(views, work_conserving);
    }

    /// Holds the competitors of running jobs, and lets competitors of blocked jobs run on devices that would be idle.
    fn give_devices(&mut self, views: &[TaskView], work_conserving: bool) {
        let mut begin = 0;
        for together in views.chunk_by(|a, b| a.device == b.device) {
            let range = begin..begin + together.len();
            begin = range.end;
            let running = range.clone().find_map(|index| {
                let job = self.job_of[index].filter(|&job| !self.all[job].is_blocked)?;
                (self.all[job].is_ready && views[index].ready).then_some(job)
            });
            let is_blocked = |job_of: &Option<usize>| job_of.is_some_and(|job| self.all[job].is_blocked);
            if let Some(job) = running {
                let was_granted =
                    range.clone().any(|index| self.job_of[index] == Some(job) && self.grants[index].runs());
                for index in range {
                    let is_member = self.job_of[index] == Some(job);
                    if is_member && !self.grants[index].runs() {
                        self.grants[index] = Grant::Throttled;
                    } else if !is_member && !was_granted {
                        self.grants[index] = Grant::Hold;
                    }
                }
            } else if work_conserving && range.clone().any(|index| is_blocked(&self.job_of[index])) {
                let may_run = |index: usize| {
                    views[index].ready
                        && !is_blocked(&self.job_of[index])
                        && views[index].hints.priority != Priority::NO_EXECUTE
                };
                if !range.clone().any(|index| may_run(index) && self.grants[index].runs()) {
                    for index in range.filter(|&index| may_run(index)) {
                        self.grants[index] = Grant::Throttled;
                    }
                }
            }
        }
    }

    /// The device where a job has the smallest part of the ready tasks; the first of several.
    ///
    /// With equal weights a job has no more than that part of any device. A task without a job that shares a device with
    /// several jobs therefore keeps a part, even if another device decides about each of them.
    fn deciding_device(&self, job: usize, views: &[TaskView]) -> Option<DeviceId> {
        let mut best: Option<(usize, usize, DeviceId)> = None;
        for &index in self.members(job) {
            let device = views[index].device;
            if !views[index].ready || best.is_some_and(|(.., other)| other == device) {
                continue;
            }
            let begin = views.partition_point(|task| task.device < device);
            let end = views.partition_point(|task| task.device <= device);
            let ready = || (begin..end).filter(|&other| views[other].ready);
            let (own, all) =
                (ready().filter(|&other| self.job_of[other] == Some(job)).count(), ready().count());
            if best.is_none_or(|(best_own, best_all, _)| own * best_all < best_own * all) {
                best = Some((own, all, device));
            }
        }
        best.map(|(.., device)| device)
    }

    /// Has jobs and processes that are granted the same device, throttled, share it in time slices. Jobs without a slice are
    /// in `losers` afterwards.
    fn share_in_slices(
        &mut self,
        now: Nanos,
        views: &[TaskView],
        statuses: &[TaskStatus],
        wake_up: &mut WakeUp,
    ) {
        self.claims.clear();
        self.losers.clear();
        let mut begin = 0;
        for together in views.chunk_by(|a, b| a.device == b.device) {
            let range = begin..begin + together.len();
            begin = range.end;
            let leads = |index: usize| self.views[index].ready && self.grants[index] == Grant::Unthrottled;
            if range.clone().any(leads) {
                continue;
            }
            let contends =
                |index: &usize| self.views[*index].ready && self.grants[*index] == Grant::Throttled;
            if !range.clone().filter(contends).any(|index| self.job_of[index].is_some()) {
                continue;
            }
            for index in range.filter(contends) {
                let (device, process) = (views[index].device, views[index].process);
                let unit = self.unit(index, device, process);
                self.claims.push(Claim { unit, device, has_work: statuses[index].has_work });
            }
        }
        self.slices.choose(now, &mut self.claims, wake_up);
        for claim in &self.claims {
            if let Unit::Job(id) = claim.unit
                && !self.slices.runs(claim.unit)
                && !self.losers.contains(&id)
            {
                self.losers.push(id);
            }
        }
    }

    fn limit_running(&mut self, views: &[TaskView]) {
        for job in 0..self.all.len() {
            if !self.all[job].is_blocked {
                self.limit_together(job, views);
            }
        }
    }

    /// If another task may preempt some member, the work in flight of all members is limited: a member without a limit could
    /// launch collectives that its peers have not reached when the job is held. A member that shares its device with peers of
    /// the same precedence stays one of them.
    fn limit_together(&mut self, job: usize, views: &[TaskView]) {
        if self.members(job).iter().all(|&index| self.grants[index] == Grant::Unthrottled) {
            return;
        }
        for member in self.all[job].begin..self.all[job].end {
            let index = self.members[member];
            let device = views[index].device;
            let has_peers = || {
                let begin = views.partition_point(|task| task.device < device);
                let end = views.partition_point(|task| task.device <= device);
                (begin..end)
                    .any(|other| self.job_of[other] != Some(job) && self.grants[other] == Grant::Unthrottled)
            };
            if self.grants[index] == Grant::Unthrottled && !has_peers() {
                self.grants[index] = Grant::Throttled;
            }
        }
    }

    /// Throttles all tasks on devices that several jobs are granted, so that the jobs share them in time slices.
    fn limit_competing_jobs(&mut self, views: &[TaskView]) {
        let mut begin = 0;
        for together in views.chunk_by(|a, b| a.device == b.device) {
            let range = begin..begin + together.len();
            begin = range.end;
            let running = |index: usize| {
                let job = self.job_of[index]?;
                (!self.all[job].is_blocked && self.views[index].ready && self.grants[index].runs())
                    .then_some(job)
            };
            let mut jobs = range.clone().filter_map(running);
            let first = jobs.next();
            if jobs.any(|job| Some(job) != first) {
                for index in range {
                    if self.grants[index] == Grant::Unthrottled && self.views[index].ready {
                        self.grants[index] = Grant::Throttled;
                    }
                }
            }
        }
    }

    fn share_a_device(&self, a: usize, b: usize, views: &[TaskView]) -> bool {
        let device = |index: &usize| views[*index].device;
        self.members(a).iter().any(|one| self.members(b).iter().any(|other| device(one) == device(other)))
    }

    /// Blocks jobs that would start on devices where launched work of a blocked job continues. Returns whether there are any.
    fn wait_for_launched_work(
        &mut self,
        now: Nanos,
        views: &[TaskView],
        statuses: &[TaskStatus],
        memory: &mut [TaskMemory],
    ) -> bool {
        for job in self.all.iter().filter(|job| job.is_blocked) {
            self.held.hold(job.id, &self.members[job.begin..job.end], now, statuses, memory);
        }
        let mut is_any = false;
        for job in 0..self.all.len() {
            let Job { id, is_ready, is_blocked, .. } = self.all[job];
            let starts = is_ready && !is_blocked && !self.running.contains(&id);
            let is_unsettled = |other: &usize| {
                self.all[*other].is_blocked && self.held.is_unsettled(self.all[*other].id, now)
            };
            let mut unsettled = (0..self.all.len()).filter(is_unsettled);
            if starts && unsettled.any(|other| self.share_a_device(job, other, views)) {
                self.all[job].is_blocked = true;
                let Job { begin, end, .. } = self.all[job];
                self.held.hold(id, &self.members[begin..end], now, statuses, memory);
                is_any = true;
            }
        }
        is_any
    }

    /// Whether some other job waits until launched work of this one has completed, and whether this one waits for another.
    fn waits(&self, job: usize, now: Nanos, views: &[TaskView]) -> (bool, bool) {
        let since = |job: usize| self.held.unsettled_since(self.all[job].id);
        let mut waits = (false, false);
        for other in (0..self.all.len()).filter(|&other| other != job && self.all[other].is_blocked) {
            if self.share_a_device(job, other, views) {
                // The one that has waited longest completes its work first.
                let is_first = since(other).is_none_or(|at| (since(job), job) < (Some(at), other));
                waits.0 |= is_first && self.all[other].is_ready;
                waits.1 |= !is_first && self.held.is_unsettled(self.all[other].id, now);
            }
        }
        waits
    }

    /// Resumes peers of launched work in blocked jobs: see [`held`].
    fn complete_launched_work(
        &mut self,
        now: Nanos,
        views: &[TaskView],
        statuses: &[TaskStatus],
        memory: &mut [TaskMemory],
        wake_up: &mut WakeUp,
    ) {
        self.completes_peers.clear();
        self.completes_peers.resize(views.len(), false);
        for place in 0..self.all.len() {
            let (is_waited_for, waits) = self.waits(place, now, views);
            let job = &self.all[place];
            let members = &self.members[job.begin..job.end];
            let can_run = members.iter().all(|&index| {
                let TaskStatus { is_suspended, is_stalled, .. } = statuses[index];
                !is_suspended && !is_stalled && views[index].hints.priority != Priority::NO_EXECUTE
            });
            if !job.is_blocked || !can_run {
                self.held.resume(job.id);
                for &index in members {
                    memory[index].is_awaited = false;
                }
                continue;
            }
            if waits {
                wake_up.at(now + WAIT_FOR_JOB_INTERVAL);
                continue;
            }
            let snapshot = (views, statuses);
            for &index in self.held.runs((job.id, is_waited_for), members, now, snapshot, memory, wake_up) {
                self.grants[index] = Grant::Throttled;
                self.completes_peers[index] = true;
            }
        }
    }
}

#[cfg(test)]
mod tests;
