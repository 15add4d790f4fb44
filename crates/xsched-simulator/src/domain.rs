//! One domain in virtual time: its tasks, its devices and the policy that decides for them.
//!
//! Time jumps from event to event: a job comes, a command ends, the device has switched, the policy wants to look.
//! Everything that happens at one instant happens before the policy is asked about it, once.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};

use xsched_core::{DeviceId, DeviceKind, Nanos, ProcessId, TaskId};

use super::Histogram;
use super::device::{Device, DeviceTally};
use super::spec::{DomainPlan, Spec};
use super::task::{Task, TaskTally};
use xsched_policy::{Decision, Policy, TaskView};

/// What came of one domain, in the order of its plan.
pub(super) struct Outcome {
    pub(super) tasks: Vec<(TaskTally, Option<Histogram>)>,
    pub(super) devices: Vec<DeviceTally>,
}

/// What the caller of a simulation wants to have along the way.
pub(super) struct Books<'a> {
    /// Latencies of each `[[task]]` entry.
    pub(super) groups: &'a mut [Histogram],
    /// Whether each task keeps latencies of its own as well.
    pub(super) each_task: bool,
    /// Virtual nanoseconds simulated so far.
    pub(super) progress: &'a AtomicU64,
}

/// Events between two reports of progress: often enough to be smooth, too rarely to be felt.
const REPORT_EVERY: u64 = 1 << 16;

struct Domain<'a, 'b> {
    now: u64,
    /// Results count: the warm-up is over.
    measuring: bool,
    tasks: Vec<Task<'a>>,
    devices: Vec<Device<'a>>,
    views: Vec<TaskView>,
    arrivals: BinaryHeap<Reverse<(u64, usize)>>,
    policy: Box<dyn Policy>,
    decision: Decision,
    /// When the policy wants to be asked at the latest.
    look: u64,
    books: Books<'b>,
}

/// Simulates one domain from beginning to end.
pub(super) fn simulate(spec: &Spec, plan: &DomainPlan, policy: Box<dyn Policy>, books: Books) -> Outcome {
    let mut domain = Domain::new(spec, plan, policy, books);
    let (mut events, mut reported) = (0_u64, 0);
    loop {
        let at = domain.next_event();
        if !domain.measuring && at >= spec.warmup {
            domain.begin_to_measure(spec.warmup);
        }
        if at > spec.duration {
            break;
        }
        domain.step(at);
        events += 1;
        if events % REPORT_EVERY == 0 {
            domain.books.progress.fetch_add(at - reported, Ordering::Relaxed);
            reported = at;
        }
    }
    domain.books.progress.fetch_add(spec.duration - reported, Ordering::Relaxed);
    domain.close(spec.duration)
}

impl<'a, 'b> Domain<'a, 'b> {
    fn new(spec: &'a Spec, plan: &DomainPlan, policy: Box<dyn Policy>, books: Books<'b>) -> Self {
        let mut devices: Vec<_> = plan
            .devices
            .iter()
            .map(|device| Device::new(&spec.device_groups[spec.devices[*device as usize].group as usize]))
            .collect();
        let mut tasks = Vec::with_capacity(plan.tasks.len());
        let mut views = Vec::with_capacity(plan.tasks.len());
        let mut arrivals = BinaryHeap::with_capacity(plan.tasks.len());
        for (index, global) in plan.tasks.iter().enumerate() {
            let slot = spec.tasks[*global as usize];
            // The plan lists devices in ascending order, and this one is among them.
            let device = plan.devices.partition_point(|device| *device < slot.device);
            let seat = devices[device].seat(index);
            let mut task = Task::new(spec, *global as usize, seat, books.each_task);
            arrivals.push(Reverse((task.first_arrival(), index)));
            views.push(TaskView {
                id: TaskId(u64::from(*global) + 1),
                process: ProcessId(slot.process),
                device: DeviceId::new(DeviceKind::Gpu, slot.device),
                hints: task.group.hints,
                nice: task.group.nice,
                focused: task.group.focused,
                ..TaskView::default()
            });
            tasks.push(task);
        }
        let decision = Decision::default();
        Self { now: 0, measuring: false, tasks, devices, views, arrivals, policy, decision, look: 0, books }
    }

    fn next_event(&self) -> u64 {
        let arrival = self.arrivals.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
        self.devices.iter().map(|device| device.next).fold(arrival.min(self.look), u64::min)
    }

    /// Lets everything happen that happens at `now`.
    fn step(&mut self, now: u64) {
        self.now = now;
        let mut decide = now >= self.look;
        for index in 0..self.devices.len() {
            if self.devices[index].next > now {
                continue;
            }
            if let Some(task) = self.devices[index].advance(&mut self.tasks, now) {
                self.finish_job(task);
                decide = true;
            }
        }
        while let Some(Reverse((at, index))) = self.arrivals.peek().copied().filter(|next| next.0.0 <= now) {
            self.arrivals.pop();
            decide |= self.tasks[index].release(at);
            if let Some(next) = self.tasks[index].next_arrival(at) {
                self.arrivals.push(Reverse((next, index)));
            }
        }
        if decide {
            self.decide();
        }
        for device in self.devices.iter_mut().filter(|device| decide || device.due) {
            device.dispatch(&mut self.tasks, now, decide);
        }
    }

    fn finish_job(&mut self, index: usize) {
        let task = &mut self.tasks[index];
        let (latency, next) = task.finish_job(self.now);
        if self.measuring {
            self.books.groups[task.group_index].record(latency);
            if let Some(latencies) = &mut task.latencies {
                latencies.record(latency);
            }
        }
        if let Some(at) = next {
            self.arrivals.push(Reverse((at, index)));
        }
    }

    fn decide(&mut self) {
        self.settle(self.now);
        for (task, view) in self.tasks.iter().zip(&mut self.views) {
            let since = task.ready_since();
            view.ready = since.is_some();
            view.ready_since = Nanos(since.unwrap_or(view.ready_since.0));
            view.used = Nanos(task.used);
        }
        self.decision.reset(self.tasks.len());
        self.policy.decide(Nanos(self.now), &self.views, &mut self.decision);
        // A policy that wants to look again at once would stop virtual time.
        self.look = self.decision.next_look().map_or(u64::MAX, |look| look.0.max(self.now + 1));
        for (task, grant) in self.tasks.iter_mut().zip(self.decision.grants()) {
            task.granted = grant.runs();
            task.count_held(self.now);
        }
    }

    fn settle(&mut self, at: u64) {
        for device in &mut self.devices {
            device.settle(&mut self.tasks, at);
        }
    }

    fn begin_to_measure(&mut self, at: u64) {
        self.settle(at);
        self.measuring = true;
        for device in &mut self.devices {
            device.tally = DeviceTally::default();
        }
        for task in &mut self.tasks {
            task.reset(at);
        }
    }

    fn close(mut self, end: u64) -> Outcome {
        self.settle(end);
        for task in &mut self.tasks {
            task.close(end);
        }
        Outcome {
            tasks: self.tasks.into_iter().map(|task| (task.tally, task.latencies)).collect(),
            devices: self.devices.into_iter().map(|device| device.tally).collect(),
        }
    }
}
