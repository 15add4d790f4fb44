//! Which programs are members of which job.
//!
//! ```text
//!   program 1   keys A, B ─┐
//!   program 2   key  B, C ─┼─► one job: keys are joined transitively        a key of another user is another key
//!   program 3   key  C    ─┘                                            and so is one of another grant
//! ```
//!
//! A job is named after its first program, so that it keeps its identity while others come and go.

use std::collections::{BTreeMap, HashMap};

use xsched_core::{Nanos, ProcessId};
use xsched_policy::JobId;

use super::program::{Program, ProgramGrant};
use super::{ClientId, Coordinator};
use crate::protocol::{EventKind, JobKey};

/// How many jobs of one user are scheduled as jobs. The processes of further ones are scheduled each by itself: the work of a
/// decision grows with the number of jobs.
const JOBS_PER_USER: usize = 64;

/// The jobs of all processes, as of the last time that their keys were joined.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    by_process: HashMap<ProcessId, JobId>,
    labels: HashMap<JobId, String>,
}

impl Jobs {
    /// The job of a process.
    pub(super) fn of(&self, process: ProcessId) -> Option<JobId> {
        self.by_process.get(&process).copied()
    }

    fn label(&self, process: ProcessId) -> Option<&String> {
        self.labels.get(&self.of(process)?)
    }
}

/// What a job can be named after, the preferred first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Label<'a> {
    Grant(&'a str),
    Key(&'a JobKey),
}

impl<'a> Label<'a> {
    fn of(program: &'a Program) -> Option<Self> {
        let key = || program.job_keys.first().map(Self::Key);
        program.grant.name.as_deref().filter(|_| program.grant.is_job).map(Self::Grant).or_else(key)
    }

    fn text(self) -> String {
        match self {
            Self::Grant(name) => name.to_owned(),
            Self::Key(key) => key.label(),
        }
    }
}

impl Coordinator {
    /// Sets the jobs of a program, in place of the previous ones. The keys have been validated. They are joined before the next
    /// decision or report, once for all programs whose keys have changed.
    pub fn set_jobs(&mut self, id: ClientId, mut keys: Vec<JobKey>, now: Nanos) {
        keys.sort_unstable();
        keys.dedup();
        let Some(place) = self.place_of(id) else { return };
        if self.programs[place].job_keys != keys {
            self.programs[place].job_keys = keys;
            self.jobs_changed_at = Some(now);
        }
    }

    /// Sets the grant of a program, in place of the previous one.
    pub fn set_grant(&mut self, id: ClientId, grant: ProgramGrant, now: Nanos) {
        let Some(place) = self.place_of(id) else { return };
        let program = &mut self.programs[place];
        if program.grant == grant {
            return;
        }
        let before = std::mem::replace(&mut program.grant, grant);
        self.jobs_changed_at = Some(now);
        if before.number != self.programs[place].grant.number {
            self.note_grant(place, now);
        }
    }

    /// Finds the job of each program again, if keys have changed.
    pub(super) fn join_jobs_if_changed(&mut self) {
        let Some(changed_at) = self.jobs_changed_at.take() else { return };
        let mut leaders = self.join_keys();
        let mut jobs_by_user = HashMap::<u32, usize>::new();
        let mut labels = HashMap::<JobId, Label<'_>>::new();
        self.jobs.by_process.clear();
        let mut jobs = Vec::with_capacity(self.programs.len());
        for (place, program) in self.programs.iter().enumerate() {
            // Sorted: the first key is the one that reports show.
            let Some(key) = Label::of(program) else {
                jobs.push(None);
                continue;
            };
            let leader = root(&mut leaders, place);
            let job = if leader == place {
                let count = jobs_by_user.entry(program.user).or_default();
                *count += 1;
                (*count <= JOBS_PER_USER).then_some(JobId(program.id.number()))
            } else {
                // The first program of a job comes before the others.
                jobs[leader]
            };
            jobs.push(job);
            if let Some(job) = job {
                self.jobs.by_process.insert(program.process.id, job);
                labels.entry(job).and_modify(|first| *first = key.min(*first)).or_insert(key);
            }
        }
        self.jobs.labels = labels.into_iter().map(|(job, label)| (job, label.text())).collect();
        for (place, job) in jobs.into_iter().enumerate() {
            if std::mem::replace(&mut self.programs[place].job, job) != job {
                self.needs_alignment = true;
                self.note_job(place, changed_at);
            }
        }
    }

    /// For each program, a program of the same job that comes before it, or itself: see [`root`].
    fn join_keys(&self) -> Vec<usize> {
        let mut leaders: Vec<_> = (0..self.programs.len()).collect();
        let mut with_key = HashMap::new();
        let mut with_grant = HashMap::new();
        // Two connections of one process share its tasks.
        let mut with_process = HashMap::new();
        for (place, program) in self.programs.iter().enumerate() {
            let mut join = |other: usize| {
                let (a, b) = (root(&mut leaders, place), root(&mut leaders, other));
                leaders[a.max(b)] = a.min(b);
            };
            if program.has_job_key() {
                join(*with_process.entry(program.process.id).or_insert(place));
            }
            for key in &program.job_keys {
                join(*with_key.entry((program.user, program.grant.number, key)).or_insert(place));
            }
            if program.grant.is_job {
                join(*with_grant.entry((program.user, program.grant.number)).or_insert(place));
            }
        }
        leaders
    }

    /// What status reports show as the job of a process: a name rather than a launcher, rather than a communicator.
    #[must_use]
    pub fn job_label(&self, process: ProcessId) -> Option<String> {
        self.jobs.label(process).cloned()
    }

    /// Records the job of a program's tasks.
    pub(super) fn note_job(&mut self, place: usize, now: Nanos) {
        if self.events.is_none() {
            return;
        }
        let process = self.programs[place].process.id;
        let label = self.job_label(process).unwrap_or_default();
        self.note_process(process, now, &EventKind::JobChanged(label));
    }

    /// Records the grant of a program's tasks.
    pub(super) fn note_grant(&mut self, place: usize, now: Nanos) {
        if self.events.is_none() {
            return;
        }
        let program = &self.programs[place];
        let name = program.grant.name.as_deref().unwrap_or_default().to_owned();
        let event = EventKind::GrantChanged { name, labels: BTreeMap::new() };
        self.note_process(program.process.id, now, &event);
    }

    /// Records an event of each task of a process.
    fn note_process(&mut self, process: ProcessId, now: Nanos, event: &EventKind) {
        let tasks: Vec<_> = (self.table.tasks().iter())
            .filter(|task| task.process.id == process)
            .map(|task| task.id)
            .collect();
        for task in tasks {
            self.note_task(task, now, || event.clone());
        }
    }
}

/// The first program of a job, along a chain that ends at itself. Each call halves the chain.
fn root(leaders: &mut [usize], mut place: usize) -> usize {
    while leaders[place] != place {
        leaders[place] = leaders[leaders[place]];
        place = leaders[place];
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Page;
    use xsched_core::{Hints, Process};

    fn name(text: &str) -> JobKey {
        JobKey::Name(text.to_owned())
    }

    fn add(coordinator: &mut Coordinator, user: u32, process: u32, keys: &[&str]) -> ClientId {
        let identity = Process { id: ProcessId(process), ..Process::default() };
        let id = coordinator.add_client_of(user, identity, Page::create().unwrap(), Hints::default());
        coordinator.set_jobs(id, keys.iter().map(|key| name(key)).collect(), Nanos(1));
        id
    }

    fn job(coordinator: &mut Coordinator, process: u32) -> Option<u64> {
        coordinator.align();
        coordinator.jobs.of(ProcessId(process)).map(|job| job.0)
    }

    fn label(coordinator: &mut Coordinator, process: u32) -> String {
        coordinator.align();
        coordinator.job_label(ProcessId(process)).unwrap()
    }

    fn coordinator() -> Coordinator {
        Coordinator::new(xsched_policy::PolicyInfo::find("priority").unwrap())
    }

    #[test]
    fn keys_are_joined_transitively_and_only_within_one_user() {
        let mut all = coordinator();
        add(&mut all, 7, 10, &["a"]);
        add(&mut all, 8, 20, &["a"]);
        add(&mut all, 7, 11, &["c"]);
        let middle = add(&mut all, 7, 12, &["c", "b", "a"]);
        add(&mut all, 7, 13, &[]);
        let jobs = [10, 11, 12, 13, 20].map(|process| job(&mut all, process));
        assert_eq!(jobs, [Some(1), Some(1), Some(1), None, Some(2)]);
        all.set_jobs(middle, vec![name("c")], Nanos(2));
        assert_eq!([10, 11, 12].map(|process| job(&mut all, process)), [Some(1), Some(3), Some(3)]);
    }

    #[test]
    fn programs_of_a_grant_are_a_job_and_share_no_key_with_other_grants() {
        let grant = |is_job| ProgramGrant { number: 5, name: Some("slurm-5".into()), is_job };
        let mut all = coordinator();
        let ids =
            [(7, 10), (7, 11), (8, 12), (7, 13)].map(|(user, process)| add(&mut all, user, process, &["a"]));
        assert_eq!([10, 11, 13].map(|process| job(&mut all, process)), [Some(1); 3]);
        all.set_grant(ids[1], grant(false), Nanos(2));
        assert_eq!([10, 11, 13].map(|process| job(&mut all, process)), [Some(1), Some(2), Some(1)]);
        for id in [ids[1], ids[2], ids[3]] {
            all.set_jobs(id, Vec::new(), Nanos(2));
            all.set_grant(id, grant(true), Nanos(2));
        }
        let jobs = [10, 11, 12, 13].map(|process| job(&mut all, process));
        assert_eq!(jobs, [Some(1), Some(2), Some(3), Some(2)], "users are not mixed");
        assert_eq!(label(&mut all, 13), "slurm-5");
        all.set_grant(ids[3], ProgramGrant::default(), Nanos(3));
        assert_eq!(job(&mut all, 13), None);
    }

    #[test]
    fn number_of_jobs_of_a_user_is_limited() {
        let mut all = coordinator();
        for process in 1..=100 {
            add(&mut all, 7, process, &[&format!("{}", (process - 1) / 2)]);
        }
        add(&mut all, 7, 200, &["0"]);
        add(&mut all, 8, 201, &["0"]);
        assert!(job(&mut all, 100).is_some(), "the 50th job");
        for process in 101..=140 {
            add(&mut all, 7, process, &[&format!("{process}")]);
        }
        assert_eq!((job(&mut all, 140), job(&mut all, 200), job(&mut all, 201)), (None, Some(1), Some(102)));
    }

    #[test]
    fn member_that_exits_leaves_the_rest_in_their_jobs() {
        let mut all = coordinator();
        let first = add(&mut all, 7, 10, &["a", "b"]);
        add(&mut all, 7, 11, &["a"]);
        add(&mut all, 7, 12, &["b"]);
        assert_eq!(job(&mut all, 12), Some(1));
        all.remove_client(first);
        assert_eq!([11, 12].map(|process| job(&mut all, process)), [Some(2), Some(3)]);
    }

    #[test]
    fn name_of_the_user_is_shown_before_launcher_and_communicator() {
        let mut all = coordinator();
        let keys =
            [JobKey::Communicator("0123456789abcdef".repeat(2)), JobKey::Launcher("torchrun 1".into())];
        let id = add(&mut all, 7, 10, &["train"]);
        all.set_jobs(id, keys[..1].to_vec(), Nanos(2));
        assert_eq!(label(&mut all, 10), "comm-01234567");
        all.set_jobs(id, keys.to_vec(), Nanos(2));
        assert_eq!(label(&mut all, 10), "torchrun 1");
        all.set_jobs(id, [&keys[..], &[name("train")]].concat(), Nanos(2));
        assert_eq!(label(&mut all, 10), "train");
    }

    #[test]
    fn keys_are_joined_once_for_all_changes_before_a_decision() {
        let mut all = coordinator();
        let ids: Vec<_> = (1..=8).map(|process| add(&mut all, 7, process, &["a"])).collect();
        all.remove_client(ids[0]);
        assert!(all.jobs.by_process.is_empty(), "the keys were joined before a decision needed them");
        all.round(Nanos(2));
        assert_eq!((all.jobs.by_process.len(), all.jobs_changed_at), (7, None));
    }

    #[test]
    fn chains_of_programs_become_short() {
        let mut leaders: Vec<usize> = (0..1_024).map(|place: usize| place.saturating_sub(1)).collect();
        let steps = |leaders: &[usize]| {
            std::iter::successors(Some(1_023), |&place| (place > 0).then(|| leaders[place])).count()
        };
        let before = steps(&leaders);
        assert_eq!(root(&mut leaders, 1_023), 0);
        assert!(steps(&leaders) <= before / 2 + 1, "{} of {before}", steps(&leaders));
    }
}
