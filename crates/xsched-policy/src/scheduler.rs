//! From one policy to a whole machine: an instance for each device, and one decision made of theirs.
//!
//! ```text
//!   tasks, by device and id     0:a 0:c 0:d | 1:b 1:e | 2:f
//!                                    |          |       |
//!   an instance for each          policy     policy  policy     (a policy for the machine: one gets them all)
//!                                    |          |       |
//!   one decision                 grants in the same order, and the earliest of the times to look again
//! ```

use xsched_core::{DeviceId, Nanos, TaskId};

use crate::{Decision, Params, Policy, PolicyInfo, Scope, TaskView};

/// One policy at work on all devices.
pub struct Scheduler {
    policy: &'static PolicyInfo,
    params: Params,
    domains: Vec<Domain>,
    part: Decision,
    by_id: ById,
}

/// What one instance decides for.
struct Domain {
    device: DeviceId,
    policy: Box<dyn Policy>,
    /// What the policy was told.
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
    /// Begins with `policy` and default settings.
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

    /// The policy at work.
    #[must_use]
    pub fn policy(&self) -> &'static PolicyInfo {
        self.policy
    }

    /// Changes the policy from the next decision on. What the old one remembered is forgotten; setting the same one
    /// again changes nothing.
    pub fn set_policy(&mut self, policy: &'static PolicyInfo) {
        if policy.number != self.policy.number {
            self.policy = policy;
            self.domains.clear();
        }
    }

    /// Takes new settings, for the instances there are and those to come.
    pub fn configure(&mut self, params: Params) {
        self.params = params;
        for domain in &mut self.domains {
            domain.configure(params);
        }
    }

    /// Decides for every task of the machine; `out` is reset first and has its grants in the order of `tasks`.
    ///
    /// `tasks` is sorted by device, then by id, and holds every living task. A device without tasks loses its
    /// instance and all it remembered.
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
            let dearest = run.iter().map(|task| task.switch_cost).max().unwrap_or_default();
            self.domains[index].configure(self.params.for_switch_cost(dearest));
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
        // The whole machine is one domain; it needs some name.
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

    /// Where the instance for `device` is, made if need be.
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
    /// Ids ascend; with each, where the task is in the snapshot.
    order: Vec<(TaskId, usize)>,
    tasks: Vec<TaskView>,
}

impl ById {
    fn sort(&mut self, tasks: &[TaskView]) {
        // Sorting is the dearest part, and between most snapshots nobody comes or goes.
        let still_true =
            self.order.len() == tasks.len() && self.order.iter().all(|&(id, index)| tasks[index].id == id);
        if !still_true {
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
    fn devices_are_decided_for_one_by_one() {
        let tasks = [task(0, 2, 1), task(0, 3, 0), task(7, 1, -5)];
        let out = decide(&mut scheduler("HPF"), &tasks);
        assert_eq!(out.grants(), [Grant::Unthrottled, Grant::Hold, Grant::Unthrottled]);
    }

    #[test]
    fn a_policy_for_the_machine_sees_all_devices_and_answers_in_the_order_of_the_snapshot() {
        let mut scheduler = scheduler("HHPF");
        let tasks = [task(0, 2, 1), task(0, 5, 9), task(7, 1, -5), task(7, 3, 9)];
        let expected = [Grant::Hold, Grant::Unthrottled, Grant::Hold, Grant::Unthrottled];
        assert_eq!(decide(&mut scheduler, &tasks).grants(), expected);
        let moved = [task(0, 1, -5), task(0, 3, 9), task(7, 2, 1), task(7, 5, 9)];
        assert_eq!(decide(&mut scheduler, &moved).grants(), expected);
    }

    #[test]
    fn the_earliest_look_of_all_devices_counts() {
        let mut scheduler = scheduler("CFS");
        let one = decide(&mut scheduler, &[task(0, 1, 0), task(0, 2, 0)]).next_look().unwrap();
        let mut out = Decision::default();
        let tasks = [task(0, 1, 0), task(0, 2, 0), task(1, 3, 0), task(1, 4, 0)];
        scheduler.decide(Nanos::from_secs(1) + Nanos(1_000), &tasks, &mut out);
        assert_eq!(out.next_look(), Some(one), "the second device's first turn ends later");
    }

    #[test]
    fn a_device_without_tasks_is_forgotten() {
        let mut scheduler = scheduler("CFS");
        decide(&mut scheduler, &[task(0, 1, 0), task(1, 2, 0), task(1, 3, 0)]);
        assert_eq!((scheduler.domains.len(), scheduler.tracked()), (2, 3));
        decide(&mut scheduler, &[task(1, 2, 0)]);
        assert_eq!((scheduler.domains.len(), scheduler.tracked()), (1, 1));
        decide(&mut scheduler, &[]);
        assert_eq!((scheduler.domains.len(), scheduler.tracked()), (0, 0));
    }

    #[test]
    fn another_policy_starts_afresh_and_the_same_one_does_not() {
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
    fn where_changes_are_dear_turns_are_longer_unless_somebody_chose_their_length() {
        let mut scheduler = scheduler("CFS");
        let dear = |id| TaskView { switch_cost: Nanos::from_micros(800), ..task(0, id, 0) };
        let tasks = [dear(1), dear(2), task(1, 3, 0), task(1, 4, 0)];
        let turn = |scheduler: &mut Scheduler, tasks| {
            decide(scheduler, tasks).next_look().unwrap() - Nanos::from_secs(1)
        };
        assert_eq!(turn(&mut scheduler, &tasks[..2]), Nanos::from_millis(20));
        assert_eq!(turn(&mut scheduler, &tasks[2..]), Timeslice::DEFAULT.get());
        let timeslice = Timeslice::from_micros(200).unwrap();
        scheduler.configure(Params { timeslice, ..Params::default() });
        assert_eq!(turn(&mut scheduler, &tasks[..2]), timeslice.get());
    }

    #[test]
    fn tasks_are_sorted_anew_when_others_take_their_places() {
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
