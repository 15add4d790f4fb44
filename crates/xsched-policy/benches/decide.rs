//! How long a decision for the whole machine takes, for every policy and several sizes, and how long the whole pipeline takes
//! from the snapshot to the orders.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use xsched_core::{Deadline, DeviceId, Hints, Laxity, Nanos, Priority, ProcessId, Share, TaskId, Timeslice};
use xsched_policy::{Decision, POLICIES, Params, Pipeline, Scheduler, Snapshot, TaskStatus, TaskView};

const DEVICES: u64 = 8;

/// Tasks on eight devices, half of them ready; each process has four, on different devices. Ids alternate between the
/// devices, as they do when programs start one after another.
fn snapshot(tasks: u64) -> Vec<TaskView> {
    let mut tasks_by_device: Vec<_> = (0..tasks)
        .map(|n| {
            let signed = i64::try_from(n).unwrap();
            TaskView {
                id: TaskId(n + 1),
                process: ProcessId(u32::try_from(n / 4).unwrap()),
                device: DeviceId(n * 7 % DEVICES),
                ready: n * 13 % 16 < 8,
                in_gap: false,
                ready_since: Nanos(n * 1_000),
                used: Nanos::ZERO,
                hints: Hints {
                    priority: Priority::new(signed % 7 - 3).unwrap(),
                    share: Share::new(1 + signed % 100).unwrap(),
                    deadline: (n % 3 == 0).then(|| Deadline::from_micros(1 + signed % 9_999).unwrap()),
                    laxity: (n % 4 == 0).then(|| Laxity::new(signed % 9_999, -1, 5).unwrap()),
                },
                nice: i8::try_from(signed % 39 - 19).unwrap(),
                focused: n / 4 == 3,
                switch_cost: Nanos::ZERO,
            }
        })
        .collect();
    tasks_by_device.sort_by_key(|task| (task.device, task.id));
    tasks_by_device
}

/// Advances by 0.5 ms: tasks that ran have consumed, and every sixteenth task became ready or idle.
fn advance(step: usize, now: Nanos, tasks: &mut [TaskView], out: &Decision) {
    for (task, grant) in tasks.iter_mut().zip(out.grants()) {
        if task.ready && grant.runs() {
            task.used += Nanos::from_micros(500);
        }
    }
    for task in tasks.iter_mut().skip(step % 16).step_by(16) {
        task.ready = !task.ready;
        task.ready_since = now;
    }
}

fn decide(criterion: &mut Criterion) {
    for policy in POLICIES {
        let mut group = criterion.benchmark_group(policy.name);
        for size in [128, 1_024, 4_096, 16_384] {
            group.throughput(Throughput::Elements(size));
            group.bench_function(BenchmarkId::from_parameter(size), |bench| {
                let (mut scheduler, mut out) = (Scheduler::new(policy), Decision::default());
                scheduler.configure(Params { timeslice: Timeslice::DEFAULT, k: 2 });
                let (mut tasks, mut now, mut step) = (snapshot(size), Nanos::from_secs(1), 0);
                scheduler.decide(now, &tasks, &mut out);
                bench.iter_custom(|times| {
                    let mut spent = Duration::ZERO;
                    for _ in 0..times {
                        step += 1;
                        now += Nanos::from_micros(500);
                        advance(step, now, &mut tasks, &out);
                        let begun = Instant::now();
                        scheduler.decide(now, black_box(&tasks), &mut out);
                        spent += begun.elapsed();
                        black_box(&out);
                    }
                    spent
                });
            });
        }
        group.finish();
    }
}

fn plan(criterion: &mut Criterion) {
    for policy in POLICIES {
        let mut group = criterion.benchmark_group(format!("pipeline {}", policy.name));
        for size in [128, 1_024] {
            group.throughput(Throughput::Elements(size));
            group.bench_function(BenchmarkId::from_parameter(size), |bench| {
                let mut pipeline = Pipeline::new(policy);
                pipeline.configure(Params { timeslice: Timeslice::DEFAULT, k: 2 });
                let (mut tasks, mut now, mut step) = (Snapshot::default(), Nanos::from_secs(1), 0_usize);
                for view in snapshot(size) {
                    let status = TaskStatus { has_work: view.ready, ..TaskStatus::default() };
                    tasks.push(view, status);
                }
                bench.iter_custom(|times| {
                    let mut spent = Duration::ZERO;
                    for _ in 0..times {
                        step += 1;
                        now += Nanos::from_micros(500);
                        for (index, order) in pipeline.orders().iter().enumerate() {
                            tasks.statuses[index].is_drained = order.stops();
                            if tasks.statuses[index].has_work && !order.stops() {
                                tasks.views[index].used += Nanos::from_micros(500);
                            }
                        }
                        for index in (step % 16..tasks.views.len()).step_by(16) {
                            tasks.statuses[index].has_work ^= true;
                            tasks.views[index].ready_since = now;
                        }
                        let begun = Instant::now();
                        black_box(pipeline.plan(now, black_box(&mut tasks)));
                        spent += begun.elapsed();
                    }
                    spent
                });
            });
        }
        group.finish();
    }
}

criterion_group! {
    name = decisions;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(20)
        .without_plots();
    targets = decide, plan
}
criterion_main!(decisions);
