//! UP, "share": tasks have time slices whose lengths are in proportion to their shares.
//!
//! ```text
//!   share
//!    60 %  A ██████········██████········        a slice each, long ones for big shares;
//!    30 %  B ······███···········███·····        a task that becomes idle loses its slice at once,
//!    10 %  C ·········█·············█····        and has the rest of it if it is ready again soon
//! ```
//!
//! Shares are weights: 30 and 10 give the same as 75 and 25. Consumption is measured, so a long command that
//! outlasts its slice is paid for with a longer wait, and shares come out right in the long run. A task with
//! share 0 runs while no other task is ready; one with priority -256 never runs.
//!
//! Use it when several tenants were promised parts of a device. Not when requests must be served fast: a task waits for the
//! slices of all other tasks. Not when a promise is also a ceiling: that is SPUP.

use xsched_core::{Nanos, Priority, TaskId};

use super::weighted_slices::{Demand, Entity, SliceLengths, WeightedSlices};
use crate::ledger::Meter;
use crate::{Decision, GrantMode, Needs, Params, Policy, PolicyInfo, Scope, Selection, TaskView};

/// Its entry in the table of policies.
pub(super) const POLICY: PolicyInfo = PolicyInfo {
    name: "UP",
    plain: "share",
    number: 4,
    scope: Scope::Device,
    work_conserving: true,
    grant_mode: GrantMode::Exclusive,
    selection: Selection::Rotation,
    needs: Needs::NOTHING,
    summary: "time slices in proportion to the shares of tasks",
    make: || Box::<UtilizationPartition>::default(),
};

/// Shares among tasks.
#[derive(Debug, Default)]
struct UtilizationPartition {
    params: Params,
    meter: Meter,
    entities: Vec<Entity<TaskId>>,
    slices: WeightedSlices<TaskId>,
}

impl Policy for UtilizationPartition {
    fn decide(&mut self, now: Nanos, tasks: &[TaskView], out: &mut Decision) {
        let weight = |task: &TaskView| f64::from(task.hints.share.percent());
        entities_of_tasks(&mut self.meter, tasks, weight, &mut self.entities);
        let decision =
            self.slices.decide(now, &self.entities, self.params.timeslice.get(), SliceLengths::ByWeight);
        for index in 0..tasks.len() {
            out.grant(index, decision.grant(&self.entities, index));
        }
        if let Some(at) = decision.until {
            out.again_at(at);
        }
    }

    fn configure(&mut self, params: &Params) {
        self.params = *params;
    }

    fn tracked(&self) -> usize {
        self.meter.len()
    }
}

/// Every task as an entity of its own.
pub(super) fn entities_of_tasks(
    meter: &mut Meter,
    tasks: &[TaskView],
    weight: impl Fn(&TaskView) -> f64,
    entities: &mut Vec<Entity<TaskId>>,
) {
    entities.clear();
    entities.extend(tasks.iter().zip(meter.read(tasks)).map(|(task, consumed)| Entity {
        key: task.id,
        weight: weight(task),
        demand: demand(task),
        consumed,
    }));
}

/// Whether a task has work.
pub(super) fn demand(task: &TaskView) -> Demand {
    match (task.hints.priority, task.ready) {
        (Priority::NO_EXECUTE, _) => Demand::Barred,
        (_, true) => Demand::Ready,
        (_, false) => Demand::Idle,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Grant;
    use crate::policies::testing::{Device, assert_shares, grants, ready, with_share};

    fn policy() -> Box<dyn Policy> {
        Box::<UtilizationPartition>::default()
    }

    #[test]
    fn closed_loops_have_their_shares_within_1_point_whatever_the_length_of_their_commands() {
        for lengths_us in [[400, 400, 400], [2_000, 300, 500], [400, 20_000, 3_000], [50_000, 700, 7_000]] {
            for shares in [&[50, 50][..], &[75, 25], &[25, 75], &[60, 30, 10], &[10, 90]] {
                let mut device = Device::new(policy());
                for (index, &share) in shares.iter().enumerate() {
                    device.closed_loop(lengths_us[index], 0, with_share(share));
                }
                assert_shares(&device.run_secs(20), shares, 1.0);
            }
        }
    }

    #[test]
    fn task_that_is_idle_between_commands_has_the_rest_of_its_slice() {
        let mut device = Device::new(policy());
        device.closed_loop(1_000, 20, with_share(75));
        device.closed_loop(100, 0, with_share(25));
        assert_shares(&device.run_secs(20), &[75, 25], 1.0);
    }

    #[test]
    fn ready_task_without_consumption_does_not_block_the_rest() {
        let mut device = Device::new(policy());
        device.add_stalled(with_share(50));
        device.add_stalled(with_share(50));
        device.closed_loop(100, 0, with_share(50));
        assert!(device.run_secs(5)[2] > 10.0);
    }

    #[test]
    fn holder_that_becomes_idle_loses_its_slice_at_once() {
        let mut up = policy();
        let mut tasks = [ready(1, with_share(50)), ready(2, with_share(50))];
        assert_eq!(grants(&mut *up, 0, &tasks), [Grant::Throttled, Grant::Hold]);
        tasks[0].ready = false;
        assert_eq!(grants(&mut *up, 10, &tasks), [Grant::Hold, Grant::Throttled]);
    }

    #[test]
    fn task_without_share_runs_only_while_no_other_task_is_ready() {
        let mut up = policy();
        let mut tasks = [ready(1, with_share(0)), ready(2, with_share(1))];
        assert_eq!(grants(&mut *up, 0, &tasks), [Grant::Hold, Grant::Unthrottled]);
        tasks[1].ready = false;
        assert_eq!(grants(&mut *up, 10, &tasks), [Grant::Throttled, Grant::Unthrottled]);
    }

    #[test]
    fn debt_expires_while_no_task_is_ready() {
        let mut up = policy();
        let mut tasks = [ready(1, with_share(50)), ready(2, with_share(50))];
        grants(&mut *up, 0, &tasks);
        tasks[0].used = Nanos::from_millis(300);
        (tasks[0].ready, tasks[1].ready) = (false, false);
        grants(&mut *up, 300_000, &tasks);
        (tasks[0].ready, tasks[1].ready) = (true, true);
        let mut slices = [0, 0];
        for slice in 0..20 {
            let runs = usize::from(grants(&mut *up, 9_000_000 + slice * 5_000, &tasks)[1].runs());
            tasks[runs].used += Nanos::from_millis(5);
            slices[runs] += 1;
        }
        assert_eq!(slices, [10, 10]);
    }
}
