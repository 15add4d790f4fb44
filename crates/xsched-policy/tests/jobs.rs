//! Properties of jobs in the decision pipeline, over random tasks, devices, jobs and priorities; and a model of devices on
//! which the kernels of collectives wait for each other.

use proptest::collection::vec;
use proptest::prelude::*;
use xsched_core::{DeviceId, Hints, Nanos, Order, Priority, ProcessId, TaskId};
use xsched_policy::{
    JobId, LaunchedWork, POLICIES, Pipeline, PolicyInfo, Scope, Snapshot, TaskStatus, TaskView,
};

/// A task of a history: device, priority, job if not 0.
type TaskSpec = (u64, i64, u64);

fn snapshot(tasks: &[TaskSpec]) -> Snapshot {
    let mut tasks = tasks.to_vec();
    tasks.sort_by_key(|task| task.0);
    let mut snapshot = Snapshot::default();
    for (id, (device, priority, job)) in (1_u32..).zip(tasks) {
        let view = TaskView {
            id: TaskId(id.into()),
            process: ProcessId(id),
            device: DeviceId(device),
            hints: Hints { priority: Priority::new(priority).unwrap(), ..Hints::default() },
            ..TaskView::default()
        };
        let job = (job != 0).then_some(JobId(job));
        snapshot.push(view, TaskStatus { has_work: true, is_drained: true, job, ..TaskStatus::default() });
    }
    snapshot
}

fn tasks() -> impl Strategy<Value = Vec<TaskSpec>> {
    vec((0_u64..4, -2_i64..=2, 0_u64..4), 1..14)
}

fn is_same_job(snapshot: &Snapshot, a: usize, b: usize) -> bool {
    snapshot.statuses[a].job.is_some() && snapshot.statuses[a].job == snapshot.statuses[b].job
}

/// Device, priority, job and readiness of each task.
fn describe(snapshot: &Snapshot) -> String {
    let tasks = snapshot.views.iter().zip(&snapshot.statuses);
    let describe = |(view, status): (&TaskView, &TaskStatus)| {
        let job = status.job.map_or(0, |job| job.0);
        format!("{}:{}:{job}{}", view.device.0, view.hints.priority, if view.ready { "" } else { " idle" })
    };
    tasks.map(describe).collect::<Vec<_>>().join(", ")
}

/// The highest priority of the ready members of a task's job, or its own.
fn priority(snapshot: &Snapshot, index: usize) -> Priority {
    (0..snapshot.views.len())
        .filter(|&other| other == index || is_same_job(snapshot, index, other) && snapshot.views[other].ready)
        .map(|other| snapshot.views[other].hints.priority)
        .max()
        .unwrap()
}

/// Checks one round. Launched work can be stopped, and every held task has left its device.
fn check(policy: &PolicyInfo, snapshot: &Snapshot, orders: &[Order]) {
    let (views, count) = (&snapshot.views, snapshot.views.len());
    for a in (0..count).filter(|&a| views[a].ready) {
        for b in (0..count).filter(|&b| views[b].ready) {
            if is_same_job(snapshot, a, b) {
                assert_eq!(
                    orders[a].stops(),
                    orders[b].stops(),
                    "{policy:?}: {orders:?} of {}",
                    describe(snapshot)
                );
            }
            // Another task of a higher priority that is held is in a blocked job, or has no time slice.
            let precedes =
                views[a].device == views[b].device && priority(snapshot, a) > priority(snapshot, b);
            let run_together = precedes && !orders[b].stops() && !orders[a].stops();
            assert!(
                policy.name != "HPF" || !run_together,
                "{b} runs beside {a}, which has a higher priority: {orders:?} of {}",
                describe(snapshot)
            );
            let is_single = snapshot.statuses[a].job.is_none();
            if policy.name == "HPF" && precedes && is_single && orders[a].stops() {
                let holds_a = (0..count).any(|c| {
                    views[c].device == views[a].device
                        && !orders[c].stops()
                        && priority(snapshot, c) >= priority(snapshot, a)
                });
                assert!(holds_a, "{b} runs in the place of {a}: {orders:?} of {}", describe(snapshot));
            }
        }
    }
    for device in views.chunk_by(|a, b| a.device == b.device).map(|tasks| tasks[0].device) {
        let here = || (0..count).filter(|&index| views[index].device == device && views[index].ready);
        let single = here().any(|index| snapshot.statuses[index].job.is_none());
        if policy.work_conserving && policy.scope == Scope::Device && single {
            let runs = here().any(|index| !orders[index].stops());
            assert!(runs, "{policy:?}: device {device:?} is idle: {orders:?} of {}", describe(snapshot));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn jobs_run_as_a_whole_and_never_beside_a_task_of_higher_priority(
        tasks in tasks(),
        policy in 0..POLICIES.len(),
        toggles in vec((any::<usize>(), 0_u64..30_000), 0..60),
    ) {
        let policy = &POLICIES[policy];
        let mut pipeline = Pipeline::new(policy);
        let mut snapshot = snapshot(&tasks);
        let mut now = Nanos::from_secs(1);
        for (index, us) in toggles {
            let index = index % snapshot.views.len();
            let has_work = !snapshot.statuses[index].has_work;
            snapshot.statuses[index].has_work = has_work;
            if has_work {
                snapshot.views[index].ready_since = now;
            }
            pipeline.plan(now, &mut snapshot);
            check(policy, &snapshot, pipeline.orders());
            now += Nanos::from_micros(us);
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn every_job_and_task_of_equal_priority_runs(tasks in tasks(), policy in 0..POLICIES.len()) {
        let policy = &POLICIES[policy];
        // Under a policy of deadlines the oldest work runs until it is done, and here it is never done.
        prop_assume!(policy.name != "KEDF");
        let tasks: Vec<_> = tasks.iter().map(|&(device, _, job)| (device, 0, job)).collect();
        let mut snapshot = snapshot(&tasks);
        // An idle task of a higher priority on each device: all are throttled, and share the devices in slices.
        for device in 0..4 {
            let id = TaskId(100 + device);
            let view = TaskView {
                id,
                process: ProcessId(100),
                device: DeviceId(device),
                hints: Hints { priority: Priority::HIGH, ..Hints::default() },
                ..TaskView::default()
            };
            let at = snapshot.views.partition_point(|task| (task.device, task.id) < (view.device, id));
            snapshot.views.insert(at, view);
            snapshot.statuses.insert(at, TaskStatus { is_drained: true, ..TaskStatus::default() });
        }
        let mut pipeline = Pipeline::new(policy);
        let count = snapshot.views.len();
        let mut ran = vec![0_u64; count];
        let begin = Nanos::from_secs(1);
        let (mut now, end) = (begin, begin + Nanos::from_secs(3));
        while now < end {
            let wake_up = pipeline.plan(now, &mut snapshot).unwrap_or(Nanos::MAX);
            check(policy, &snapshot, pipeline.orders());
            let next = wake_up.max(now + Nanos(1)).min(now + Nanos::from_millis(20));
            for (index, ran) in ran.iter_mut().enumerate() {
                let runs = |index: usize| snapshot.statuses[index].has_work && !pipeline.orders()[index].stops();
                if runs(index) {
                    let device = snapshot.views[index].device;
                    let together = (0..count).filter(|&i| snapshot.views[i].device == device && runs(i)).count();
                    *ran += (next - now).0 / together as u64;
                    snapshot.views[index].used = Nanos(*ran);
                }
            }
            now = next;
        }
        for index in (0..count).filter(|&index| snapshot.statuses[index].has_work) {
            prop_assert!(ran[index] > 0, "{policy:?}: {index} never ran: {ran:?} of {}", describe(&snapshot));
        }
    }
}

/// What a rank or a single task launches next.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Command {
    /// Occupies the device for so many steps.
    Compute(u32),
    /// Completes when all ranks of the job execute the collective with this number.
    Collective(u32),
}

/// A process on a device that completes each command that it has begun, one process at a time: level 1 at its worst.
struct Rank {
    device: usize,
    job: Option<JobId>,
    priority: i64,
    /// Rounds of work: compute, then a collective if it has a job.
    rounds: u32,
    /// Commands that its program has launched so far, of two in each round.
    launched: u32,
    in_flight: Vec<Command>,
    compute: u32,
}

impl Rank {
    fn next(&self) -> Option<Command> {
        let round = self.launched / 2;
        (round < self.rounds).then_some(match (self.launched % 2, self.job) {
            (1, Some(_)) => Command::Collective(round),
            _ => Command::Compute(self.compute),
        })
    }

    fn has_finished(&self) -> bool {
        self.next().is_none() && self.in_flight.is_empty()
    }
}

/// Runs the ranks under the policy `priority` in steps of 0.1 ms. Returns the steps after which each finished, if all did.
fn simulate(ranks: &mut [Rank], devices: usize, max_steps: u32) -> Option<Vec<u32>> {
    simulate_with(ranks, devices, max_steps, true)
}

/// The same. The pipeline knows the jobs, or holds each rank by itself.
fn simulate_with(ranks: &mut [Rank], devices: usize, max_steps: u32, knows_jobs: bool) -> Option<Vec<u32>> {
    let mut pipeline = Pipeline::new(PolicyInfo::find("priority").unwrap());
    let mut snapshot = Snapshot::default();
    for (id, rank) in (1_u32..).zip(ranks.iter()) {
        let view = TaskView {
            id: TaskId(id.into()),
            process: ProcessId(id),
            device: DeviceId(rank.device as u64),
            hints: Hints { priority: Priority::new(rank.priority).unwrap(), ..Hints::default() },
            ..TaskView::default()
        };
        let job = rank.job.filter(|_| knows_jobs);
        snapshot.push(view, TaskStatus { job, ..TaskStatus::default() });
    }
    let mut executes: Vec<Option<usize>> = vec![None; devices];
    let mut last: Vec<usize> = vec![0; devices];
    let mut finished = vec![0; ranks.len()];
    for step in 0..max_steps {
        for (index, rank) in ranks.iter().enumerate() {
            let status = &mut snapshot.statuses[index];
            status.has_work = !rank.has_finished();
            status.is_drained = rank.in_flight.is_empty();
            let is_idle = rank.in_flight.is_empty();
            status.launched_work = if is_idle { LaunchedWork::Stops } else { LaunchedWork::Continues };
        }
        pipeline.plan(Nanos::from_secs(1) + Nanos::from_micros(100 * u64::from(step)), &mut snapshot);
        for (index, rank) in ranks.iter_mut().enumerate() {
            // The threads of a program are faster than the scheduler: up to three commands before the next order.
            while !pipeline.orders()[index].stops() && rank.in_flight.len() < 3 {
                let Some(command) = rank.next() else { break };
                rank.in_flight.push(command);
                rank.launched += 1;
            }
        }
        for device in 0..devices {
            if executes[device].is_none_or(|index| ranks[index].in_flight.is_empty()) {
                let has_command =
                    |index: &usize| ranks[*index].device == device && !ranks[*index].in_flight.is_empty();
                let count = ranks.len();
                executes[device] = (1..=count).map(|n| (last[device] + n) % count).find(has_command);
                last[device] = executes[device].unwrap_or(last[device]);
            }
        }
        let executing = |ranks: &[Rank], index: usize| {
            (executes[ranks[index].device] == Some(index)).then(|| ranks[index].in_flight.first().copied())?
        };
        let collectives: Vec<_> = (0..ranks.len())
            .map(|index| executing(ranks, index).map(|command| (ranks[index].job, command)))
            .collect();
        for executed in &mut executes {
            let Some(index) = *executed else { continue };
            let completes = match ranks[index].in_flight[0] {
                Command::Compute(steps) => {
                    ranks[index].in_flight[0] = Command::Compute(steps.saturating_sub(1));
                    steps <= 1
                }
                command @ Command::Collective(_) => (0..ranks.len())
                    .filter(|&peer| ranks[peer].job == ranks[index].job)
                    .all(|peer| collectives[peer] == Some((ranks[index].job, command))),
            };
            if completes {
                ranks[index].in_flight.remove(0);
                *executed = None;
                if ranks[index].has_finished() {
                    finished[index] = step + 1;
                }
            }
        }
        if ranks.iter().all(Rank::has_finished) {
            return Some(finished);
        }
    }
    None
}

fn rank(device: usize, job: u64, priority: i64, rounds: u32, compute: u32) -> Rank {
    let job = (job != 0).then_some(JobId(job));
    Rank { device, job, priority, rounds, launched: 0, in_flight: Vec::new(), compute }
}

#[test]
fn job_and_competitors_finish_on_devices_that_cannot_stop_a_kernel() {
    // A two-rank job, and a competitor of higher priority on each device.
    let mut ranks =
        [rank(0, 0, 10, 40, 7), rank(0, 1, 0, 30, 3), rank(1, 0, 5, 40, 11), rank(1, 1, 0, 30, 4)];
    let finished = simulate(&mut ranks, 2, 1_000_000).expect("all finish");
    assert!(finished[0] < finished[1] && finished[2] < finished[3], "{finished:?}");
}

#[test]
fn two_jobs_finish_whose_ranks_would_wait_for_each_other_if_each_was_held_by_itself() {
    let ranks = || [rank(0, 1, 0, 30, 3), rank(0, 2, 0, 30, 3), rank(1, 1, 0, 30, 3), rank(1, 2, 0, 30, 3)];
    assert_eq!(simulate_with(&mut ranks(), 2, 50_000, false), None, "the model has no deadlock to prevent");
    assert!(simulate(&mut ranks(), 2, 50_000).is_some());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn no_collective_waits_for_ever(
        jobs in vec((0_i64..3, 1_u32..25, vec((0_usize..3, 1_u32..12), 2..4)), 1..4),
        single in vec((0_usize..3, 0_i64..3, 1_u32..40, 1_u32..12), 0..4),
    ) {
        let mut ranks = Vec::new();
        for (job, (priority, rounds, members)) in (1_u64..).zip(&jobs) {
            let mut devices: Vec<_> = members.iter().map(|(device, _)| *device).collect();
            devices.sort_unstable();
            devices.dedup();
            // Two ranks of a communicator have different devices: here a device runs one process at a time.
            for (device, (_, compute)) in devices.into_iter().zip(members) {
                ranks.push(rank(device, job, *priority, *rounds, *compute));
            }
        }
        for (device, priority, rounds, compute) in single {
            ranks.push(rank(device, 0, priority, rounds, compute));
        }
        ranks.sort_by_key(|rank| rank.device);
        prop_assert!(simulate(&mut ranks, 3, 100_000).is_some(), "the ranks wait for each other");
    }
}
