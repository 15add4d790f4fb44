//! One domain in virtual time: its tasks, its devices and the pipeline that plans for them.
//!
//! ```text
//!   next event ─► devices advance ─► jobs arrive ─► plan ─► devices carry out the orders ─┐
//!        ▲                                           ▲                                    │
//!        │                                           └─ a task ordered to drain has left ─┤
//!        └────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Everything that happens at one instant happens before the pipeline plans for it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};

use xsched_core::{DeviceId, DeviceKind, Nanos, Order, ProcessId, TaskId};
use xsched_policy::{PolicyInfo, TaskStatus, TaskView};

use crate::Histogram;
use crate::device::{Device, DeviceTotals};
use crate::driver::Driver;
use crate::spec::{DomainPlan, Spec};
use crate::task::{Task, TaskTotals};

/// The results of one domain, in the order of its plan.
pub(crate) struct Outcome {
    pub(crate) tasks: Vec<(TaskTotals, Option<Histogram>)>,
    pub(crate) devices: Vec<DeviceTotals>,
}

/// Where a domain writes results that several domains share.
pub(crate) struct Collector<'a> {
    /// Latencies of each `[[task]]` entry.
    pub(crate) groups: &'a mut [Histogram],
    /// Whether each task keeps latencies of its own as well.
    pub(crate) each_task: bool,
    /// Virtual nanoseconds simulated so far.
    pub(crate) progress: &'a AtomicU64,
}

/// Events between two reports of progress: frequent enough for a smooth bar, too rare to slow the simulation down.
const EVENTS_PER_PROGRESS_REPORT: u64 = 1 << 16;

struct Domain<'a, 'b> {
    now: u64,
    /// Results count: the warm-up is over.
    is_measuring: bool,
    /// In the order of the driver's tasks.
    tasks: Vec<Task<'a>>,
    /// For each task, its index in the domain's plan.
    plan_index: Vec<usize>,
    devices: Vec<Device<'a>>,
    arrivals: BinaryHeap<Reverse<(u64, usize)>>,
    driver: Driver,
    /// When the pipeline plans next at the latest.
    next_plan: u64,
    collector: Collector<'b>,
}

/// Simulates one domain from beginning to end.
pub(crate) fn simulate(
    spec: &Spec,
    plan: &DomainPlan,
    policy: &'static PolicyInfo,
    collector: Collector,
) -> Outcome {
    let mut domain = Domain::new(spec, plan, policy, collector);
    let (mut events, mut reported) = (0_u64, 0);
    loop {
        let at = domain.next_event();
        if !domain.is_measuring && at >= spec.warmup {
            domain.start_measuring(spec.warmup);
        }
        if at > spec.duration {
            break;
        }
        domain.step(at);
        events += 1;
        if events % EVENTS_PER_PROGRESS_REPORT == 0 {
            domain.collector.progress.fetch_add(at - reported, Ordering::Relaxed);
            reported = at;
        }
    }
    domain.collector.progress.fetch_add(spec.duration - reported, Ordering::Relaxed);
    domain.finish(spec.duration)
}

impl<'a, 'b> Domain<'a, 'b> {
    fn new(spec: &'a Spec, plan: &DomainPlan, policy: &'static PolicyInfo, collector: Collector<'b>) -> Self {
        let mut devices: Vec<_> = plan
            .devices
            .iter()
            .map(|device| Device::new(&spec.device_groups[spec.devices[*device as usize].group as usize]))
            .collect();
        let mut driver = Driver::new(policy, spec.params);
        // The plan lists tasks in ascending order of id. A stable sort keeps that order on each device.
        let mut plan_index: Vec<_> = (0..plan.tasks.len()).collect();
        plan_index.sort_by_key(|&index| spec.tasks[plan.tasks[index] as usize].device);
        let mut tasks = Vec::with_capacity(plan.tasks.len());
        let mut arrivals = BinaryHeap::with_capacity(plan.tasks.len());
        for (index, &in_plan) in plan_index.iter().enumerate() {
            let global = plan.tasks[in_plan];
            let slot = spec.tasks[global as usize];
            // The plan lists devices in ascending order, and this one is among them.
            let device = plan.devices.partition_point(|device| *device < slot.device);
            let index_on_device = devices[device].add_task(index);
            let mut task = Task::new(spec, global as usize, device, index_on_device, collector.each_task);
            arrivals.push(Reverse((task.first_arrival(), index)));
            let view = TaskView {
                id: TaskId(u64::from(global) + 1),
                process: ProcessId(slot.process),
                device: DeviceId::new(DeviceKind::Gpu, slot.device),
                hints: task.group.hints,
                nice: task.group.nice,
                focused: task.group.focused,
                switch_cost: devices[device].switch_cost(),
                ..TaskView::default()
            };
            driver.add_task(view, TaskStatus::default());
            tasks.push(task);
        }
        let (now, next_plan, is_measuring) = (0, 0, false);
        Self { now, is_measuring, tasks, plan_index, devices, arrivals, driver, next_plan, collector }
    }

    fn next_event(&self) -> u64 {
        let arrival = self.arrivals.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
        self.devices.iter().map(|device| device.next).fold(arrival.min(self.next_plan), u64::min)
    }

    /// Processes everything that happens at `now`.
    fn step(&mut self, now: u64) {
        self.now = now;
        let mut needs_plan = now >= self.next_plan;
        for index in 0..self.devices.len() {
            if self.devices[index].next > now {
                continue;
            }
            if let Some(task) = self.devices[index].advance(&mut self.tasks, now) {
                self.finish_job(task);
                needs_plan = true;
            }
        }
        while let Some(Reverse((at, index))) = self.arrivals.peek().copied().filter(|next| next.0.0 <= now) {
            self.arrivals.pop();
            needs_plan |= self.tasks[index].add_job(at);
            if let Some(next) = self.tasks[index].next_arrival(at) {
                self.arrivals.push(Reverse((next, index)));
            }
        }
        needs_plan |= self.has_drained_task();
        loop {
            if needs_plan {
                self.plan();
            }
            for device in self.devices.iter_mut().filter(|device| needs_plan || device.is_due) {
                device.dispatch(&mut self.tasks, now, needs_plan);
            }
            // The next task starts at the instant at which the previous one has drained.
            needs_plan = self.has_drained_task();
            if !needs_plan {
                return;
            }
        }
    }

    fn finish_job(&mut self, index: usize) {
        let task = &mut self.tasks[index];
        let (latency, next) = task.finish_job(self.now);
        if self.is_measuring {
            self.collector.groups[task.group_index].record(latency);
            if let Some(latencies) = &mut task.latencies {
                latencies.record(latency);
            }
        }
        if let Some(at) = next {
            self.arrivals.push(Reverse((at, index)));
        }
    }

    /// Whether a task that was on its device at the last plan and was ordered to drain has left it.
    fn has_drained_task(&self) -> bool {
        let left = |device: &Device| device.planned_occupant.filter(|task| device.occupant() != Some(*task));
        self.devices.iter().filter_map(left).any(|task| self.tasks[task].order == Order::Drain)
    }

    fn plan(&mut self) {
        self.settle(self.now);
        for device in &mut self.devices {
            device.planned_occupant = device.occupant();
        }
        for (index, task) in self.tasks.iter().enumerate() {
            let (view, status) = self.driver.task_mut(index);
            let since = task.ready_since();
            view.ready_since = Nanos(since.unwrap_or(view.ready_since.0));
            view.used = Nanos(task.used);
            status.has_work = since.is_some();
            status.is_drained = self.devices[task.device].planned_occupant != Some(index);
        }
        let wake_up = self.driver.plan(Nanos(self.now));
        // A policy that requested a decision for this very instant would stop virtual time.
        self.next_plan = wake_up.map_or(u64::MAX, |at| at.0.max(self.now + 1));
        for (task, order) in self.tasks.iter_mut().zip(self.driver.orders()) {
            task.order = *order;
            task.count_held(self.now);
        }
    }

    fn settle(&mut self, at: u64) {
        for device in &mut self.devices {
            device.settle(&mut self.tasks, at);
        }
    }

    fn start_measuring(&mut self, at: u64) {
        self.settle(at);
        self.is_measuring = true;
        for device in &mut self.devices {
            device.totals = DeviceTotals::default();
        }
        for task in &mut self.tasks {
            task.reset(at);
        }
    }

    fn finish(mut self, end: u64) -> Outcome {
        self.settle(end);
        let mut tasks: Vec<_> = self.plan_index.into_iter().zip(self.tasks).collect();
        tasks.sort_by_key(|(in_plan, _)| *in_plan);
        let finish = |mut task: Task| {
            task.finish(end);
            (task.totals, task.latencies)
        };
        Outcome {
            tasks: tasks.into_iter().map(|(_, task)| finish(task)).collect(),
            devices: self.devices.into_iter().map(|device| device.totals).collect(),
        }
    }
}
