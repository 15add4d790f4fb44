//! PUP, "share-process": UP with processes in place of tasks; the tasks of one process share its turn.
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
//! Use it when tenants are processes, and some have more queues than others or queues that wait for each other. Not when
//! the queues of one process are to be told apart: its tasks are not ordered among themselves.

use xsched_core::{Nanos, ProcessId};

use super::turns::{Claim, Demand, Lengths, Turns, Verdict};
use super::up::demand;
use crate::ledger::Meter;
use crate::{Decision, Grant, Params, Policy, TaskView};

/// Shares among processes.
#[derive(Debug, Default)]
pub struct ProcessUtilizationPartition {
    params: Params,
    processes: Processes,
    turns: Turns<ProcessId>,
}

impl Policy for ProcessUtilizationPartition {
    fn decide(&mut self, now: Nanos, tasks: &[TaskView], out: &mut Decision) {
        let claims = self.processes.claims(tasks);
        let verdict = self.turns.decide(now, claims, self.params.timeslice.get(), Lengths::ByWeight);
        self.processes.grant(&verdict, Grant::Unthrottled, tasks, out);
        if let Some(at) = verdict.until {
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
    claims: Vec<Claim<ProcessId>>,
}

impl Processes {
    /// One claim for each process, in ascending order.
    pub(super) fn claims(&mut self, tasks: &[TaskView]) -> &mut [Claim<ProcessId>] {
        self.consumed.clear();
        self.consumed.extend(self.meter.read(tasks));
        self.sort(tasks);
        self.claims.clear();
        for run in self.order.chunk_by(|(one, _), (other, _)| one == other) {
            let mut claim =
                Claim { key: run[0].0, weight: 0.0, demand: Demand::Barred, consumed: Nanos::ZERO };
            for &(_, index) in run {
                claim.consumed += self.consumed[index];
                let demand = demand(&tasks[index]);
                if demand != Demand::Barred {
                    claim.weight = claim.weight.max(f64::from(tasks[index].hints.share.percent()));
                }
                if demand == Demand::Ready || claim.demand == Demand::Barred {
                    claim.demand = demand;
                }
            }
            self.claims.push(claim);
        }
        &mut self.claims
    }

    /// Gives every task that may run what its process is granted, `best` at most.
    pub(super) fn grant(&self, verdict: &Verdict, best: Grant, tasks: &[TaskView], out: &mut Decision) {
        let runs = self.order.chunk_by(|(one, _), (other, _)| one == other);
        for (party, run) in runs.enumerate() {
            let grant = match verdict.grant(&self.claims, party) {
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
        // Sorting is the dearest part, and between most snapshots nobody comes or goes.
        let still_true = self.order.len() == tasks.len()
            && self.order.iter().all(|&(process, index)| tasks[index].process == process);
        if !still_true {
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
    fn processes_get_their_shares_however_many_tasks_they_have() {
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
    fn tasks_of_one_process_run_together_but_for_those_that_never_may() {
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
    fn the_death_of_a_task_does_not_wipe_out_what_its_process_consumed() {
        let mut device = Device::new(policy());
        device.closed_loop(500, 0, of_process(1, with_share(50)));
        device.short_lived(500, of_process(2, with_share(50)));
        device.closed_loop(500, 0, of_process(2, with_share(50)));
        let had = device.run_secs(20);
        assert_shares(&[had[0], had[1] + had[2]], &[50, 50], 1.0);
    }

    #[test]
    fn processes_are_sorted_anew_when_others_take_their_places() {
        let task = |id, pid, percent| of_process(pid, ready(id, with_share(percent)));
        let mut processes = Processes::default();
        for tasks in [[task(1, 5, 10), task(2, 9, 20)], [task(2, 9, 20), task(3, 5, 10)]] {
            let claims: Vec<_> =
                processes.claims(&tasks).iter().map(|claim| (claim.key.0, claim.weight)).collect();
            assert_eq!(claims, [(5, 10.0), (9, 20.0)]);
        }
    }
}
