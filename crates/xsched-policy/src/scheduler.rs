//! From one policy to a whole machine: an instance for each device, and one decision composed of theirs.
//!
//! ```text
//!   tasks, by device and id     0:a 0:c 0:d | 1:b 1:e | 2:f
//!                                    |          |       |
//!   an instance for each          policy     policy  policy     (machine-wide: one instance for all)
//!                                    |          |       |
//!   one decision                 grants in the same order, and the earliest requested decision
//! ```

use xsched_core::{DeviceId, Nanos, TaskId};

use crate::{Decision, Params, Policy, PolicyInfo, Scope, TaskView};

/// One policy in force on all devices.
pub struct Scheduler {
    policy: &'static PolicyInfo,
    params: Params,
    domains: Vec<Domain>,
    part: Decision,
    by_id: ById,
}

/// The device or machine that one instance decides for.
struct Domain {
    device: DeviceId,
    policy: Box<dyn Policy>,
    /// The settings that the instance has.
    params: Params,
    has_tasks: bool,
}

impl Domain {
    fn configure(&mut self, params: Params) {
        if self.params != params {
            self.params = params;
            self.policy.configure(&params);
        }
    }
}

impl Scheduler {
    /// Starts with `policy` and default settings.
    #[must_use]
    pub fn new(policy: &'static PolicyInfo) -> Self {
        Self {
            policy,
            params: Params::default(),
            domains: Vec::new(),
            part: Decision::default(),
            by_id: ById::default(),
        }
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> &'static PolicyInfo {
        self.policy
    }

    /// Changes the policy from the next decision on. The new one starts without memory; setting the same one again changes
    /// nothing.
    pub fn set_policy(&mut self, policy: &'static PolicyInfo) {
        if policy.number != self.policy.number {
            self.policy = policy;
            self.domains.clear();
        }
    }

    /// Changes the settings, for present and future instances.
    pub fn configure(&mut self, params: Params) {
        self.params = params;
        for domain in &mut self.domains {
            domain.configure(params);
        }
    }

    /// Decides for every task of the machine; `out` is reset first and has its grants in the order of `tasks`.
    ///
    /// `tasks` is sorted by device, then by id, and holds all tasks. The instance of a device without tasks is dropped.
    pub fn decide(&mut self, now: Nanos, tasks: &[TaskView], out: &mut Decision) {
        debug_assert!(tasks.is_sorted_by_key(|t| (t.device, t.id)), "tasks are sorted by device, then by id");
        out.reset(tasks.len());
        for domain in &mut self.domains {
            domain.has_tasks = false;
        }
        match self.policy.scope {
            Scope::Device => self.decide_by_device(now, tasks, out),
            Scope::Machine => self.decide_for_machine(now, tasks, out),
        }
        self.domains.retain(|domain| domain.has_tasks);
    }

    /// How many tasks the instances remember something about, together.
    #[must_use]
    pub fn tracked(&self) -> usize {
        self.domains.iter().map(|domain| domain.policy.tracked()).sum()
    }

    fn decide_by_device(&mut self, now: Nanos, tasks: &[TaskView], out: &mut Decision) {
        let mut begin = 0;
        for run in tasks.chunk_by(|a, b| a.device == b.device) {
            let index = self.domain(run[0].device);
            let max_cost = run.iter().map(|task| task.switch_cost).max().unwrap_or_default();
            self.domains[index].configure(self.params.for_switch_cost(max_cost));
            self.part.reset(run.len());
            self.domains[index].policy.decide(now, run, &mut self.part);
            for (offset, &grant) in self.part.grants().iter().enumerate() {
                out.grant(begin + offset, grant);
            }
            if let Some(at) = self.part.next_look() {
                out.again_at(at);
            }
            begin += run.len();
        }
    }

    fn decide_for_machine(&mut self, now: Nanos, tasks: &[TaskView], out: &mut Decision) {
        if tasks.is_empty() {
            return;
        }
        // The whole machine is one domain, under an arbitrary device id.
        let index = self.domain(DeviceId::default());
        let policy = &mut self.domains[index].policy;
        if tasks.is_sorted_by_key(|task| task.id) {
            policy.decide(now, tasks, out);
            return;
        }
        self.by_id.sort(tasks);
        self.part.reset(tasks.len());
        policy.decide(now, &self.by_id.tasks, &mut self.part);
        for (&(_, index), &grant) in self.by_id.order.iter().zip(self.part.grants()) {
            out.grant(index, grant);
        }
        if let Some(at) = self.part.next_look() {
            out.again_at(at);
        }
    }

    /// The index of the instance for `device`, which is created if there is none.
    fn domain(&mut self, device: DeviceId) -> usize {
        let index = match self.domains.binary_search_by_key(&device, |domain| domain.device) {
            Ok(index) => index,
            Err(index) => {
                let mut policy = (self.policy.make)();
                policy.configure(&self.params);
                self.domains.insert(index, Domain { device, policy, params: self.params, has_tasks: true });
                index
            }
        };
        self.domains[index].has_tasks = true;
        index
    }
}

/// The tasks of several devices in ascending order of id.
#[derive(Default)]
struct ById {
    /// Ids ascend; each with the index of the task in the snapshot.
    order: Vec<(TaskId, usize)>,
    tasks: Vec<TaskView>,
}

impl ById {
    fn sort(&mut self, tasks: &[TaskView]) {
        // Sorting is the most expensive part, and between most snapshots no task comes or goes.
        let is_sorted =
            self.order.len() == tasks.len() && self.order.iter().all(|&(id, index)| tasks[index].id == id);
        if !is_sorted {
            self.order.clear();
            self.order.extend(tasks.iter().enumerate().map(|(index, task)| (task.id, index)));
            self.order.sort_unstable();
        }
        self.tasks.clear();
        self.tasks.extend(self.order.iter().map(|&(_, index)| tasks[index]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Grant;
    use xsched_core::{Hints, Priority, Timeslice};

    fn task(device: u64, id: u64, priority: i64) -> TaskView {
        let hints = Hints { priority: Priority::new(priority).unwrap(), ..Hints::default() };
        TaskView { device: DeviceId(device), id: TaskId(id), ready: true, hints, ..TaskView::default() }
    }

    fn scheduler(name: &str) -> Scheduler {
        Scheduler::new(PolicyInfo::find(name).unwrap())
    }

    fn decide(scheduler: &mut Scheduler, tasks: &[TaskView]) -> Decision {
        let mut out = Decision::default();
        scheduler.decide(Nanos::from_secs(1), tasks, &mut out);
        out
    }

    #[test]
    fn each_device_has_its_own_decision() {
        let tasks = [task(0, 2, 1), task(0, 3, 0), task(7, 1, -5)];
        let out = decide(&mut scheduler("HPF"), &tasks);
        assert_eq!(out.grants(), [Grant::Unthrottled, Grant::Hold, Grant::Unthrottled]);
    }

    #[test]
    fn machine_wide_policy_decides_for_all_devices_in_the_order_of_the_snapshot() {
        let mut scheduler = scheduler("HHPF");
        let tasks = [task(0, 2, 1), task(0, 5, 9), task(7, 1, -5), task(7, 3, 9)];
        let expected = [Grant::Hold, Grant::Unthrottled, Grant::Hold, Grant::Unthrottled];
        assert_eq!(decide(&mut scheduler, &tasks).grants(), expected);
        let moved = [task(0, 1, -5), task(0, 3, 9), task(7, 2, 1), task(7, 5, 9)];
        assert_eq!(decide(&mut scheduler, &moved).grants(), expected);
    }

    #[test]
    fn earliest_requested_decision_of_all_devices_counts() {
        let mut scheduler = scheduler("CFS");
        let one = decide(&mut scheduler, &[task(0, 1, 0), task(0, 2, 0)]).next_look().unwrap();
        let mut out = Decision::default();
        let tasks = [task(0, 1, 0), task(0, 2, 0), task(1, 3, 0), task(1, 4, 0)];
        scheduler.decide(Nanos::from_secs(1) + Nanos(1_000), &tasks, &mut out);
        assert_eq!(out.next_look(), Some(one), "the second device's first slice ends later");
    }

    #[test]
    fn device_without_tasks_is_forgotten() {
        let mut scheduler = scheduler("CFS");
        decide(&mut scheduler, &[task(0, 1, 0), task(1, 2, 0), task(1, 3, 0)]);
        assert_eq!((scheduler.domains.len(), scheduler.tracked()), (2, 3));
        decide(&mut scheduler, &[task(1, 2, 0)]);
        assert_eq!((scheduler.domains.len(), scheduler.tracked()), (1, 1));
        decide(&mut scheduler, &[]);
        assert_eq!((scheduler.domains.len(), scheduler.tracked()), (0, 0));
    }

    #[test]
    fn other_policy_starts_without_memory_and_the_same_one_keeps_it() {
        let mut scheduler = scheduler("UP");
        decide(&mut scheduler, &[task(0, 1, 0)]);
        scheduler.set_policy(PolicyInfo::find("share").unwrap());
        assert_eq!(scheduler.tracked(), 1);
        scheduler.set_policy(PolicyInfo::find("CFS").unwrap());
        assert_eq!((scheduler.policy().name, scheduler.tracked()), ("CFS", 0));
    }

    #[test]
    fn settings_reach_present_and_future_instances() {
        let mut scheduler = scheduler("CFS");
        let tasks = [task(0, 1, 0), task(0, 2, 0), task(1, 3, 0), task(1, 4, 0)];
        decide(&mut scheduler, &tasks[..2]);
        let timeslice = Timeslice::from_micros(200).unwrap();
        scheduler.configure(Params { timeslice, ..Params::default() });
        let end = Nanos::from_secs(1) + timeslice.get();
        assert_eq!(decide(&mut scheduler, &tasks[..2]).next_look(), Some(end));
        assert_eq!(decide(&mut scheduler, &tasks[2..]).next_look(), Some(end));
    }

    #[test]
    fn default_slices_are_longer_where_switches_are_expensive_and_chosen_ones_stay() {
        let mut scheduler = scheduler("CFS");
        let expensive = |id| TaskView { switch_cost: Nanos::from_micros(800), ..task(0, id, 0) };
        let tasks = [expensive(1), expensive(2), task(1, 3, 0), task(1, 4, 0)];
        let slice = |scheduler: &mut Scheduler, tasks| {
            decide(scheduler, tasks).next_look().unwrap() - Nanos::from_secs(1)
        };
        assert_eq!(slice(&mut scheduler, &tasks[..2]), Nanos::from_millis(20));
        assert_eq!(slice(&mut scheduler, &tasks[2..]), Timeslice::DEFAULT.get());
        let timeslice = Timeslice::from_micros(200).unwrap();
        scheduler.configure(Params { timeslice, ..Params::default() });
        assert_eq!(slice(&mut scheduler, &tasks[..2]), timeslice.get());
    }

    #[test]
    fn tasks_are_sorted_again_when_tasks_are_replaced() {
        let mut by_id = ById::default();
        for (tasks, order) in [
            ([task(0, 2, 0), task(0, 3, 0), task(1, 1, 0)], [2, 0, 1]),
            ([task(0, 2, 0), task(0, 4, 0), task(1, 3, 0)], [0, 2, 1]),
        ] {
            by_id.sort(&tasks);
            assert_eq!(by_id.tasks, order.map(|index| tasks[index]));
        }
    }
}
