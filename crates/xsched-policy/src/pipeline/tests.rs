//! The whole pipeline on small snapshots, and what the tests of its stages share.

use super::*;
use crate::TaskView;
use Order::{Drain, Evict, Free, Leader, Peer, Throttled, Yield};
use xsched_core::{Hints, Priority, ProcessId};

const DEVICE: DeviceId = DeviceId(3);

/// A ready task of a process on one device.
pub(super) fn task(id: u64, process: u32) -> TaskView {
    TaskView {
        id: TaskId(id),
        process: ProcessId(process),
        device: DEVICE,
        ready: true,
        ..TaskView::default()
    }
}

/// What a stage works on: tasks that have work, with the order `Free`, and remembered with the order `Free`.
pub(super) struct Device {
    pub(super) views: Vec<TaskView>,
    pub(super) statuses: Vec<TaskStatus>,
    pub(super) orders: Vec<Order>,
    pub(super) memory: Vec<TaskMemory>,
}

impl Device {
    pub(super) fn new(tasks: impl IntoIterator<Item = TaskView>) -> Self {
        let views: Vec<_> = tasks.into_iter().collect();
        let count = views.len();
        let has_work = TaskStatus { has_work: true, ..TaskStatus::default() };
        let (statuses, orders) = (vec![has_work; count], vec![Free; count]);
        Self { views, statuses, orders, memory: vec![TaskMemory::default(); count] }
    }

    pub(super) fn tasks(&mut self) -> DeviceTasks<'_> {
        let Self { views, statuses, orders, memory } = self;
        DeviceTasks { device: DEVICE, views, statuses, orders, memory, jobs: None }
    }
}

/// A snapshot of tasks with these priorities, each of a process of its own, that all have work.
fn busy(priorities: &[i64]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for (id, &priority) in (1_u32..).zip(priorities) {
        let hints = Hints { priority: Priority::new(priority).unwrap(), ..Hints::default() };
        let status = TaskStatus { has_work: true, ..TaskStatus::default() };
        snapshot.push(TaskView { hints, ready: false, ..task(id.into(), id) }, status);
    }
    snapshot
}

fn pipeline(policy: &str) -> Pipeline {
    Pipeline::new(PolicyInfo::find(policy).unwrap())
}

fn ms(ms: u64) -> Nanos {
    Nanos::from_secs(1) + Nanos::from_millis(ms)
}

/// Plans at `at`, with every task that was ordered to drain off the device.
fn plan(pipeline: &mut Pipeline, at: Nanos, snapshot: &mut Snapshot) -> Vec<Order> {
    let stopped: Vec<_> = pipeline.orders().iter().map(|order| order.stops()).collect();
    for (status, stopped) in snapshot.statuses.iter_mut().zip(stopped) {
        status.is_drained = stopped;
    }
    pipeline.plan(at, snapshot);
    pipeline.orders().to_vec()
}

#[test]
fn task_alone_is_free_and_the_pipeline_needs_no_wake_up() {
    for policy in crate::POLICIES.iter().filter(|policy| policy.work_conserving) {
        let mut pipeline = Pipeline::new(policy);
        assert_eq!(pipeline.plan(ms(0), &mut busy(&[0])), None, "{policy:?}");
        assert_eq!(pipeline.orders(), [Free], "{policy:?}");
    }
}

#[test]
fn exclusive_grants_run_one_throttled_process_at_a_time() {
    let mut priority = pipeline("priority");
    let mut snapshot = busy(&[10, 0, 0, 0]);
    snapshot.statuses[0].has_work = false;
    assert_eq!(plan(&mut priority, ms(0), &mut snapshot), [Leader, Throttled, Drain, Drain]);
    assert_eq!(plan(&mut priority, ms(199), &mut snapshot), [Leader, Throttled, Drain, Drain]);
    // The process with the next slice waits for the drain of the previous one.
    assert_eq!(plan(&mut priority, ms(200), &mut snapshot), [Leader, Drain, Drain, Drain]);
    assert_eq!(plan(&mut priority, ms(201), &mut snapshot), [Leader, Drain, Throttled, Drain]);
    snapshot.statuses[0].has_work = true;
    assert_eq!(plan(&mut priority, ms(202), &mut snapshot), [Leader, Drain, Yield, Drain]);
}

#[test]
fn concurrent_grants_run_k_processes_at_the_same_time() {
    for (k, running) in [(1, 1), (2, 2), (3, 3), (4, 4)] {
        let mut deadline = pipeline("deadline");
        deadline.configure(Params { k, ..Params::default() });
        let mut snapshot = busy(&[0; 4]);
        for at in [0, 10, 49, 50, 51, 100, 150, 151] {
            let orders = plan(&mut deadline, ms(at), &mut snapshot);
            let runs = orders.iter().filter(|order| !order.stops()).count();
            assert_eq!(runs, running, "k = {k} after {at} ms: {orders:?}");
        }
    }
}

#[test]
fn earlier_deadline_takes_the_place_of_one_running_task_after_its_drain() {
    let mut deadline = pipeline("deadline");
    deadline.configure(Params { k: 2, ..Params::default() });
    let mut snapshot = busy(&[0; 3]);
    snapshot.views.iter_mut().zip(1..).for_each(|(view, at)| view.ready_since = Nanos(at));
    assert_eq!(plan(&mut deadline, ms(0), &mut snapshot), [Throttled, Throttled, Drain]);
    snapshot.views[2].ready_since = Nanos(0);
    assert_eq!(plan(&mut deadline, ms(1), &mut snapshot), [Throttled, Drain, Drain]);
    assert_eq!(plan(&mut deadline, ms(2), &mut snapshot), [Throttled, Drain, Throttled]);
}

#[test]
fn sync_bound_leader_has_the_held_tasks_evicted() {
    let mut priority = pipeline("priority");
    let mut snapshot = busy(&[10, 0]);
    assert_eq!(plan(&mut priority, ms(0), &mut snapshot), [Leader, Yield]);
    snapshot.statuses[0].is_sync_bound = true;
    assert_eq!(plan(&mut priority, ms(1), &mut snapshot), [Leader, Evict]);
    snapshot.statuses[0].has_work = false;
    assert_eq!(plan(&mut priority, ms(10), &mut snapshot), [Leader, Throttled]);
}

#[test]
fn task_that_a_running_one_waits_for_runs_throttled() {
    let mut priority = pipeline("priority");
    let mut snapshot = busy(&[10, 0, 0]);
    snapshot.dependencies.push(Dependency { waiter: 0, holder: 2 });
    assert_eq!(plan(&mut priority, ms(0), &mut snapshot), [Leader, Yield, Throttled]);
}

#[test]
fn suspended_task_drains_and_the_rest_are_planned_without_it() {
    let mut priority = pipeline("priority");
    let mut snapshot = busy(&[10, 0]);
    snapshot.statuses[0].is_suspended = true;
    assert_eq!(plan(&mut priority, ms(0), &mut snapshot), [Drain, Throttled]);
}

#[test]
fn wake_up_is_the_earliest_of_all_stages() {
    let mut priority = pipeline("priority");
    let mut snapshot = busy(&[10, 0, 0]);
    snapshot.statuses.iter_mut().for_each(|status| status.is_drained = true);
    let mut wake_up = |at, leader_has_work| {
        snapshot.statuses[0].has_work = leader_has_work;
        priority.plan(at, &mut snapshot)
    };
    assert_eq!(wake_up(ms(0), true), None);
    assert_eq!(wake_up(ms(1), false), Some(ms(201)), "the end of the first slice");
    let back = ms(1) + Nanos::from_micros(400);
    assert_eq!(wake_up(back, true), None);
    let idle = back + Nanos::from_micros(100);
    assert_eq!(wake_up(idle, false), Some(idle + Nanos::from_micros(600)), "the end of the leader's gap");
}

#[test]
fn peers_of_the_highest_priority_run_together() {
    assert_eq!(plan(&mut pipeline("priority"), ms(0), &mut busy(&[7, 7, 0])), [Peer, Peer, Yield]);
}

#[test]
fn nothing_is_remembered_about_tasks_that_are_gone() {
    for policy in crate::POLICIES {
        let mut pipeline = Pipeline::new(policy);
        pipeline.plan(ms(0), &mut busy(&[1, 0, 0]));
        assert!(pipeline.tracked() >= 3, "{policy:?}");
        assert_eq!(pipeline.plan(ms(1), &mut Snapshot::default()), None);
        assert_eq!(pipeline.tracked(), 0, "{policy:?}");
        assert!(pipeline.orders().is_empty());
    }
}
