//! UP, "share": tasks take turns whose lengths are in proportion to their share.
//!
//! ```text
//!   share
//!    60 %  A ██████········██████········        a turn each, long ones for big shares;
//!    30 %  B ······███···········███·····        who becomes idle gives its turn away at once
//!    10 %  C ·········█·············█····        and may take the rest of it if it is soon back
//! ```
//!
//! Shares are weights: 30 and 10 give the same as 75 and 25. What was consumed is measured, so a long command that
//! outlasts its turn is paid for with a longer wait, and shares come out right in the long run. A task with
//! share 0 runs when nobody else is ready; one with priority -256 never runs.
//!
//! Use it when several tenants were promised parts of a device. Not when answers must come fast: a turn comes round only
//! after everybody else's. Not when a promise is also a ceiling: that is SPUP.

use xsched_core::{Nanos, Priority, TaskId};

use super::turns::{Claim, Demand, Lengths, Turns};
use crate::ledger::Meter;
use crate::{Decision, Params, Policy, TaskView};

/// Shares among tasks.
#[derive(Debug, Default)]
pub struct UtilizationPartition {
    params: Params,
    meter: Meter,
    claims: Vec<Claim<TaskId>>,
    turns: Turns<TaskId>,
}

impl Policy for UtilizationPartition {
    fn decide(&mut self, now: Nanos, tasks: &[TaskView], out: &mut Decision) {
        let weight = |task: &TaskView| f64::from(task.hints.share.percent());
        claims_of_tasks(&mut self.meter, tasks, weight, &mut self.claims);
        let verdict = self.turns.decide(now, &self.claims, self.params.timeslice.get(), Lengths::ByWeight);
        for index in 0..tasks.len() {
            out.grant(index, verdict.grant(&self.claims, index));
        }
        if let Some(at) = verdict.until {
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

/// Every task as a party of its own.
pub(super) fn claims_of_tasks(
    meter: &mut Meter,
    tasks: &[TaskView],
    weight: impl Fn(&TaskView) -> f64,
    claims: &mut Vec<Claim<TaskId>>,
) {
    claims.clear();
    claims.extend(tasks.iter().zip(meter.read(tasks)).map(|(task, consumed)| Claim {
        key: task.id,
        weight: weight(task),
        demand: demand(task),
        consumed,
    }));
}

/// What a task wants.
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
    fn closed_loops_get_their_shares_within_a_point_whatever_the_length_of_their_commands() {
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
    fn a_task_that_is_idle_between_commands_takes_its_turn_back() {
        let mut device = Device::new(policy());
        device.closed_loop(1_000, 20, with_share(75));
        device.closed_loop(100, 0, with_share(25));
        assert_shares(&device.run_secs(20), &[75, 25], 1.0);
    }

    #[test]
    fn a_ready_task_that_does_nothing_does_not_keep_the_others_out() {
        let mut device = Device::new(policy());
        device.dud(with_share(50));
        device.dud(with_share(50));
        device.closed_loop(100, 0, with_share(50));
        assert!(device.run_secs(5)[2] > 10.0);
    }

    #[test]
    fn an_idle_holder_gives_its_turn_away_at_once() {
        let mut up = policy();
        let mut tasks = [ready(1, with_share(50)), ready(2, with_share(50))];
        assert_eq!(grants(&mut *up, 0, &tasks), [Grant::Throttled, Grant::Hold]);
        tasks[0].ready = false;
        assert_eq!(grants(&mut *up, 10, &tasks), [Grant::Hold, Grant::Throttled]);
    }

    #[test]
    fn without_a_share_a_task_runs_only_when_nobody_else_is_ready() {
        let mut up = policy();
        let mut tasks = [ready(1, with_share(0)), ready(2, with_share(1))];
        assert_eq!(grants(&mut *up, 0, &tasks), [Grant::Hold, Grant::Unthrottled]);
        tasks[1].ready = false;
        assert_eq!(grants(&mut *up, 10, &tasks), [Grant::Throttled, Grant::Unthrottled]);
    }

    #[test]
    fn a_debt_is_forgotten_while_nobody_wants_the_device() {
        let mut up = policy();
        let mut tasks = [ready(1, with_share(50)), ready(2, with_share(50))];
        grants(&mut *up, 0, &tasks);
        tasks[0].used = Nanos::from_millis(300);
        (tasks[0].ready, tasks[1].ready) = (false, false);
        grants(&mut *up, 300_000, &tasks);
        (tasks[0].ready, tasks[1].ready) = (true, true);
        let mut turns = [0, 0];
        for slice in 0..20 {
            let runs = usize::from(grants(&mut *up, 9_000_000 + slice * 5_000, &tasks)[1].runs());
            tasks[runs].used += Nanos::from_millis(5);
            turns[runs] += 1;
        }
        assert_eq!(turns, [10, 10]);
    }
}
