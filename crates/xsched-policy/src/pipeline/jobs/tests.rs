//! The stage within the whole pipeline, on small snapshots.

use xsched_core::{DeviceId, Hints, Nanos, Order, Priority, ProcessId, TaskId};

use super::JobId;
use crate::{LaunchedWork, Pipeline, PolicyInfo, Snapshot, TaskStatus, TaskView};
use Order::{Drain, Free, Leader, Peer, Throttled, Yield};

/// A task that has work: device, priority, and job if not 0. Each is of a process of its own.
fn busy(tasks: &[(u64, i64, u64)]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for (id, &(device, priority, job)) in (1_u32..).zip(tasks) {
        let hints = Hints { priority: Priority::new(priority).unwrap(), ..Hints::default() };
        let view = TaskView {
            id: TaskId(id.into()),
            process: ProcessId(id),
            device: DeviceId(device),
            hints,
            ..TaskView::default()
        };
        let job = (job != 0).then_some(JobId(job));
        snapshot.push(view, TaskStatus { has_work: true, is_drained: true, job, ..TaskStatus::default() });
    }
    snapshot
}

fn pipeline(policy: &str) -> Pipeline {
    Pipeline::new(PolicyInfo::find(policy).unwrap())
}

fn ms(ms: u64) -> Nanos {
    Nanos::from_secs(1) + Nanos::from_millis(ms)
}

fn orders(pipeline: &mut Pipeline, at: u64, snapshot: &mut Snapshot) -> Vec<Order> {
    pipeline.plan(ms(at), snapshot);
    pipeline.orders().to_vec()
}

#[test]
fn job_held_on_one_device_is_held_on_all_and_the_next_task_runs_there() {
    let mut priority = pipeline("priority");
    // Device 0: a competitor and rank 0. Device 1: rank 1 and a task of lower priority.
    let mut snapshot = busy(&[(0, 10, 0), (0, 0, 1), (1, 0, 1), (1, -5, 0)]);
    assert_eq!(orders(&mut priority, 0, &mut snapshot), [Leader, Yield, Drain, Throttled]);
    snapshot.statuses[0].has_work = false;
    assert_eq!(orders(&mut priority, 10, &mut snapshot), [Leader, Throttled, Throttled, Drain]);
}

#[test]
fn member_alone_on_its_device_is_held_too_and_free_again_when_no_competitor_is_left() {
    let mut priority = pipeline("priority");
    let mut snapshot = busy(&[(0, 10, 0), (0, 0, 1), (1, 0, 1)]);
    assert_eq!(orders(&mut priority, 0, &mut snapshot), [Leader, Yield, Drain]);
    // Its work in flight is limited while the competitor may return.
    snapshot.statuses[0].has_work = false;
    assert_eq!(orders(&mut priority, 10, &mut snapshot), [Leader, Throttled, Throttled]);
    let mut without = busy(&[(0, 0, 1), (1, 0, 1)]);
    assert_eq!(orders(&mut pipeline("priority"), 0, &mut without), [Free, Free]);
}

#[test]
fn member_without_work_is_held_with_its_job() {
    let mut snapshot = busy(&[(0, 10, 0), (0, 0, 1), (1, 0, 1)]);
    snapshot.statuses[2].has_work = false;
    assert_eq!(orders(&mut pipeline("priority"), 0, &mut snapshot), [Leader, Yield, Drain]);
}

#[test]
fn job_has_the_highest_priority_of_its_members_and_the_lower_job_is_held_on_all_devices() {
    let mut priority = pipeline("priority");
    let mut snapshot = busy(&[(0, 0, 1), (0, 3, 2), (1, 5, 1), (1, 3, 2)]);
    assert_eq!(orders(&mut priority, 0, &mut snapshot), [Leader, Yield, Leader, Yield]);
    snapshot.statuses[0].has_work = false;
    snapshot.statuses[2].has_work = false;
    // Without work job 1 has the highest priority of all its members.
    assert_eq!(orders(&mut priority, 10, &mut snapshot), [Leader, Throttled, Leader, Throttled]);
}

#[test]
fn job_behind_a_blocked_job_runs() {
    // Job 1 is blocked on device 0, so job 2 has device 1 as well as device 2.
    let mut snapshot = busy(&[(0, 10, 0), (0, 5, 1), (1, 5, 1), (1, 3, 2), (2, 3, 2), (2, 1, 0)]);
    let orders = orders(&mut pipeline("priority"), 0, &mut snapshot);
    assert_eq!(orders, [Leader, Yield, Drain, Throttled, Throttled, Drain]);
}

#[test]
fn jobs_of_the_highest_priority_share_their_devices_in_slices_and_a_single_task_is_a_peer_of_a_job() {
    let mut priority = pipeline("priority");
    let mut snapshot = busy(&[(0, 7, 1), (0, 7, 2), (1, 7, 1), (1, 7, 2)]);
    assert_eq!(orders(&mut priority, 0, &mut snapshot), [Throttled, Drain, Throttled, Drain]);
    assert_eq!(orders(&mut priority, 50, &mut snapshot), [Drain, Throttled, Drain, Throttled]);
    let mut snapshot = busy(&[(0, 7, 1), (0, 7, 0), (1, 7, 1)]);
    assert_eq!(orders(&mut pipeline("priority"), 0, &mut snapshot), [Peer, Peer, Free]);
}

#[test]
fn job_does_not_start_where_launched_work_of_another_job_continues() {
    let mut priority = pipeline("priority");
    let mut snapshot = busy(&[(0, 7, 1), (0, 9, 2), (1, 7, 1), (1, 9, 2)]);
    snapshot.statuses[1].has_work = false;
    snapshot.statuses[3].has_work = false;
    assert_eq!(orders(&mut priority, 0, &mut snapshot), [Throttled, Leader, Throttled, Leader]);
    snapshot.statuses[1].has_work = true;
    snapshot.statuses[0].launched_work = LaunchedWork::Continues;
    assert_eq!(orders(&mut priority, 1, &mut snapshot), [Drain; 4]);
    assert_eq!(orders(&mut priority, 2, &mut snapshot), [Drain, Drain, Throttled, Drain]);
    snapshot.statuses[0].launched_work = LaunchedWork::Stops;
    assert_eq!(orders(&mut priority, 3, &mut snapshot), [Drain, Leader, Drain, Leader]);
}

#[test]
fn throttled_jobs_of_equal_priority_have_slices_that_change_on_all_devices_at_the_same_time() {
    let mut priority = pipeline("priority");
    // An idle task of higher priority on each device: the jobs are throttled.
    let mut snapshot = busy(&[(0, 9, 0), (0, 0, 1), (0, 0, 2), (1, 9, 0), (1, 0, 1), (1, 0, 2)]);
    snapshot.statuses[0].has_work = false;
    snapshot.statuses[3].has_work = false;
    let first = [Leader, Throttled, Drain, Leader, Throttled, Drain];
    let second = [Leader, Drain, Throttled, Leader, Drain, Throttled];
    for (at, expected) in [(0, first), (49, first), (50, second), (99, second), (100, first)] {
        assert_eq!(orders(&mut priority, at, &mut snapshot), expected, "after {at} ms");
    }
}

#[test]
fn job_and_single_tasks_of_equal_priority_alternate() {
    let mut priority = pipeline("priority");
    let mut snapshot = busy(&[(0, 9, 0), (0, 0, 1), (0, 0, 0), (1, 0, 1), (1, 0, 0)]);
    snapshot.statuses[0].has_work = false;
    let mut runs = 0;
    for at in (0..400).step_by(10) {
        let orders = orders(&mut priority, at, &mut snapshot);
        assert_eq!(orders[1].stops(), orders[3].stops(), "the ranks are held together: {orders:?}");
        assert_ne!(orders[1].stops(), orders[2].stops(), "one of them has device 0: {orders:?}");
        assert!(!orders[4].stops(), "no task can preempt it on device 1: {orders:?}");
        runs += usize::from(!orders[1].stops());
    }
    assert!((10..=30).contains(&runs), "the job runs in {runs} of 40 rounds");
}

/// The device time that each of some busy tasks has in 4 s. Asserts that no job runs in part.
fn device_time(policy: &str, tasks: &[(u64, i64, u64)]) -> Vec<Nanos> {
    let mut pipeline = pipeline(policy);
    let mut snapshot = busy(tasks);
    let mut now = ms(0);
    while now < ms(4_000) {
        let wake_up = pipeline.plan(now, &mut snapshot);
        let stops: Vec<_> = pipeline.orders().iter().map(|order| order.stops()).collect();
        for (one, other) in (0..tasks.len()).flat_map(|one| (0..one).map(move |other| (one, other))) {
            let is_same_job = tasks[one].2 != 0 && tasks[one].2 == tasks[other].2;
            assert!(!is_same_job || stops[one] == stops[other], "{policy}: {:?}", pipeline.orders());
        }
        let next = wake_up.unwrap_or(ms(5_000)).max(now + Nanos(1)).min(now + Nanos::from_millis(5));
        for device in 0..3 {
            let running: Vec<_> =
                (0..tasks.len()).filter(|&index| tasks[index].0 == device && !stops[index]).collect();
            for &index in &running {
                snapshot.views[index].used += Nanos((next - now).0 / running.len() as u64);
            }
        }
        now = next;
    }
    snapshot.views.iter().map(|task| task.used).collect()
}

const ROTATING: [&str; 6] = ["fair", "share", "share-process", "feedback", "lottery", "quota"];

#[test]
fn under_rotating_policies_a_job_runs_on_all_devices_or_none_and_every_task_makes_progress() {
    for policy in ROTATING {
        let tasks = [(0, 0, 1), (0, 0, 2), (0, 0, 0), (1, 0, 1), (1, 0, 0), (2, 0, 2), (2, 0, 0), (2, 0, 0)];
        let had = device_time(policy, &tasks);
        assert!(had.iter().all(|time| *time > Nanos::from_millis(150)), "{policy}: {had:?} of 4 s");
    }
}

#[test]
fn two_jobs_that_alternate_on_one_device_leave_time_to_a_task_on_another() {
    // On device 0 the jobs have two tasks each, and one of them always runs there.
    for policy in ROTATING {
        let tasks = [(0, 0, 1), (0, 0, 1), (0, 0, 2), (0, 0, 2), (1, 0, 1), (1, 0, 2), (1, 0, 0)];
        let had = device_time(policy, &tasks);
        assert!(had.iter().all(|time| *time > Nanos::from_millis(150)), "{policy}: {had:?} of 4 s");
    }
}

#[test]
fn job_with_a_suspended_member_is_held_as_a_whole() {
    let mut snapshot = busy(&[(0, 0, 1), (0, -5, 0), (1, 0, 1)]);
    snapshot.statuses[2].is_suspended = true;
    assert_eq!(orders(&mut pipeline("priority"), 0, &mut snapshot), [Drain, Throttled, Drain]);
}

#[test]
fn job_of_one_process_on_one_device_is_no_job() {
    let mut snapshot = busy(&[(0, 0, 1), (1, 0, 2)]);
    assert_eq!(orders(&mut pipeline("priority"), 0, &mut snapshot), [Free, Free]);
}

#[test]
fn peers_of_launched_work_run_until_it_has_completed() {
    let mut priority = pipeline("priority");
    let mut snapshot = busy(&[(0, 10, 0), (0, 0, 1), (1, 0, 1)]);
    let held = [Leader, Yield, Drain];
    assert_eq!(orders(&mut priority, 0, &mut snapshot), held);
    // Rank 0 has launched a kernel that waits for rank 1, which is held at its gate.
    snapshot.statuses[1].launched_work = LaunchedWork::Continues;
    assert_eq!(orders(&mut priority, 0, &mut snapshot), held, "ordinary work completes in 1 ms");
    assert_eq!(orders(&mut priority, 1, &mut snapshot), [Leader, Yield, Throttled]);
    // Rank 1 has launched it too, and more.
    snapshot.statuses[2].launched_work = LaunchedWork::Continues;
    assert_eq!(orders(&mut priority, 3, &mut snapshot), [Leader, Yield, Throttled]);
    snapshot.statuses[1].launched_work = LaunchedWork::Stops;
    assert_eq!(orders(&mut priority, 4, &mut snapshot), held);
    // If what rank 1 has launched does not complete by itself, it is rank 0 that runs.
    assert_eq!(orders(&mut priority, 5, &mut snapshot), [Leader, Throttled, Drain]);
    snapshot.statuses[2].launched_work = LaunchedWork::Stops;
    assert_eq!(orders(&mut priority, 6, &mut snapshot), held);
    assert_eq!(orders(&mut priority, 1_000, &mut snapshot), held, "settled");
}

#[test]
fn all_members_run_for_2_ms_if_launched_work_of_all_of_them_waits() {
    let mut priority = pipeline("priority");
    let mut snapshot = busy(&[(0, 10, 0), (0, 0, 1), (1, 0, 1)]);
    for index in [1, 2] {
        snapshot.statuses[index].launched_work = LaunchedWork::Continues;
    }
    let (held, resumed) = ([Leader, Yield, Drain], [Leader, Throttled, Throttled]);
    let expected =
        [(0, held), (14, held), (15, resumed), (16, resumed), (17, held), (46, held), (47, resumed)];
    for (at, expected) in expected {
        assert_eq!(orders(&mut priority, at, &mut snapshot), expected, "after {at} ms");
    }
}

#[test]
fn suspended_job_is_not_resumed_for_its_launched_work() {
    let mut snapshot = busy(&[(0, 0, 1), (1, 0, 1)]);
    snapshot.statuses[0].is_suspended = true;
    snapshot.statuses[0].launched_work = LaunchedWork::Continues;
    let mut priority = pipeline("priority");
    for at in [0, 5, 20, 100] {
        assert_eq!(orders(&mut priority, at, &mut snapshot), [Drain, Drain]);
    }
}
