//! PUP, "share-process": UP with processes in place of tasks; the tasks of one process share its time slice.
//!
//! ```text
//!   process share
//!      P     50 %  A ████····████····      A and B are tasks of one process:
//!                  B ████····████····      together they have what C has alone
//!      Q     50 %  C ····████····████
//! ```
//!
//! A process's share is the biggest among its tasks. Everything else is as under UP.
//!
//! Use it when tenants are processes that differ in their number of queues or have queues that wait for each other. Not when
//! some queues of a process are more important than the rest: its tasks are not ordered among themselves.

use xsched_core::{Nanos, ProcessId};

use super::up::demand;
use super::weighted_slices::{Demand, Entity, SliceDecision, SliceLengths, WeightedSlices};
use crate::ledger::Meter;
use crate::{Decision, Grant, GrantMode, Needs, Params, Policy, PolicyInfo, Scope, Selection, TaskView};

/// Its entry in the table of policies.
pub(super) const POLICY: PolicyInfo = PolicyInfo {
    name: "PUP",
    plain: "share-process",
    number: 5,
    scope: Scope::Device,
    work_conserving: true,
    grant_mode: GrantMode::Exclusive,
    selection: Selection::Rotation,
    needs: Needs::NOTHING,
    summary: "time slices in proportion to the shares of processes",
    make: || Box::<ProcessUtilizationPartition>::default(),
};

/// Shares among processes.
#[derive(Debug, Default)]
struct ProcessUtilizationPartition {
    params: Params,
    processes: Processes,
    slices: WeightedSlices<ProcessId>,
}

impl Policy for ProcessUtilizationPartition {
    fn decide(&mut self, now: Nanos, tasks: &[TaskView], out: &mut Decision) {
        let entities = self.processes.entities(tasks);
        let decision = self.slices.decide(now, entities, self.params.timeslice.get(), SliceLengths::ByWeight);
        self.processes.grant(&decision, Grant::Unthrottled, tasks, out);
        if let Some(at) = decision.until {
            out.again_at(at);
        }
    }

    fn configure(&mut self, params: &Params) {
        self.params = *params;
    }

    fn tracked(&self) -> usize {
        self.processes.tracked()
    }
}

/// The tasks of a snapshot, gathered by process.
#[derive(Debug, Default)]
pub(super) struct Processes {
    meter: Meter,
    consumed: Vec<Nanos>,
    /// Processes ascend; with each task's, where the task is in the snapshot.
    order: Vec<(ProcessId, usize)>,
    entities: Vec<Entity<ProcessId>>,
}

impl Processes {
    /// One entity for each process, in ascending order.
    pub(super) fn entities(&mut self, tasks: &[TaskView]) -> &mut [Entity<ProcessId>] {
        self.consumed.clear();
        self.consumed.extend(self.meter.read(tasks));
        self.sort(tasks);
        self.entities.clear();
        for run in self.order.chunk_by(|(one, _), (other, _)| one == other) {
            let mut entity =
                Entity { key: run[0].0, weight: 0.0, demand: Demand::Barred, consumed: Nanos::ZERO };
            for &(_, index) in run {
                entity.consumed += self.consumed[index];
                let demand = demand(&tasks[index]);
                if demand != Demand::Barred {
                    entity.weight = entity.weight.max(f64::from(tasks[index].hints.share.percent()));
                }
                if demand == Demand::Ready || entity.demand == Demand::Barred {
                    entity.demand = demand;
                }
            }
            self.entities.push(entity);
        }
        &mut self.entities
    }

    /// Gives every task that may run the grant of its process, `best` at most.
    pub(super) fn grant(
        &self,
        decision: &SliceDecision,
        best: Grant,
        tasks: &[TaskView],
        out: &mut Decision,
    ) {
        let runs = self.order.chunk_by(|(one, _), (other, _)| one == other);
        for (entity, run) in runs.enumerate() {
            let grant = match decision.grant(&self.entities, entity) {
                Grant::Unthrottled => best,
                other => other,
            };
            for &(_, index) in run.iter().filter(|&&(_, index)| demand(&tasks[index]) != Demand::Barred) {
                out.grant(index, grant);
            }
        }
    }

    /// How many tasks are remembered.
    pub(super) fn tracked(&self) -> usize {
        self.meter.len()
    }

    fn sort(&mut self, tasks: &[TaskView]) {
        // Sorting is the most expensive part, and between most snapshots no task comes or goes.
        let is_sorted = self.order.len() == tasks.len()
            && self.order.iter().all(|&(process, index)| tasks[index].process == process);
        if !is_sorted {
            self.order.clear();
            self.order.extend(tasks.iter().enumerate().map(|(index, task)| (task.process, index)));
            self.order.sort_unstable();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::testing::{Device, assert_shares, grants, never, of_process, ready, with_share};

    fn policy() -> Box<dyn Policy> {
        Box::<ProcessUtilizationPartition>::default()
    }

    #[test]
    fn processes_have_their_shares_however_many_tasks_they_have() {
        for shares in [[50, 50], [75, 25], [10, 90]] {
            let mut device = Device::new(policy());
            device.closed_loop(500, 0, of_process(7, with_share(shares[0])));
            device.closed_loop(9_000, 0, of_process(3, with_share(shares[1])));
            device.closed_loop(100, 0, of_process(7, with_share(shares[0])));
            device.closed_loop(100, 0, of_process(7, with_share(shares[0])));
            let had = device.run_secs(20);
            assert_shares(&[had[0] + had[2] + had[3], had[1]], &shares, 1.0);
        }
    }

    #[test]
    fn tasks_of_one_process_run_together_except_those_with_priority_never() {
        let mut pup = policy();
        let tasks = [
            of_process(9, ready(1, with_share(50))),
            of_process(5, ready(2, with_share(50))),
            of_process(5, ready(3, never())),
            TaskView { ready: false, ..of_process(5, ready(4, with_share(50))) },
        ];
        assert_eq!(
            grants(&mut *pup, 0, &tasks),
            [Grant::Hold, Grant::Throttled, Grant::Hold, Grant::Throttled]
        );
        assert_eq!(
            grants(&mut *policy(), 0, &tasks[1..]),
            [Grant::Unthrottled, Grant::Hold, Grant::Unthrottled]
        );
    }

    #[test]
    fn consumption_of_a_process_outlives_its_tasks() {
        let mut device = Device::new(policy());
        device.closed_loop(500, 0, of_process(1, with_share(50)));
        device.short_lived(500, of_process(2, with_share(50)));
        device.closed_loop(500, 0, of_process(2, with_share(50)));
        let had = device.run_secs(20);
        assert_shares(&[had[0], had[1] + had[2]], &[50, 50], 1.0);
    }

    #[test]
    fn processes_are_sorted_again_when_tasks_are_replaced() {
        let task = |id, pid, percent| of_process(pid, ready(id, with_share(percent)));
        let mut processes = Processes::default();
        for tasks in [[task(1, 5, 10), task(2, 9, 20)], [task(2, 9, 20), task(3, 5, 10)]] {
            let entities: Vec<_> =
                processes.entities(&tasks).iter().map(|entity| (entity.key.0, entity.weight)).collect();
            assert_eq!(entities, [(5, 10.0), (9, 20.0)]);
        }
    }
}
