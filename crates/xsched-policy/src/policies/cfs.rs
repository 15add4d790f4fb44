//! CFS, "fair": the task with the smallest virtual runtime runs next; each step of priority adds a fifth to a task's weight.
//!
//! ```text
//!   priority  weight
//!       0      1024   A ██····██····██····      equal priorities, equal parts;
//!       0      1024   B ··██····██····██··      a task that was idle resumes level with
//!      -4       494   C ····██··········██      the ready tasks, not behind them
//! ```
//!
//! Virtual runtime is device time divided by weight, 1024 x 1.2^priority; the smallest runs, for a timeslice at least.
//! A new task, or one that was idle for longer than a slice of every task takes, starts at the smallest virtual runtime of
//! the ready tasks: idle time is not saved. A task that was idle for less keeps the rest of its slice. No task falls behind by
//! more than a thousand slices of the heaviest, so even the lightest makes progress.
//!
//! Use it when no shares were promised and every task should make progress. Not when one task must not wait: a high priority
//! gives it more device time, but not at once.

use xsched_core::{Nanos, Priority, TaskId};

use super::up::entities_of_tasks;
use super::weighted_slices::{Entity, SliceLengths, WeightedSlices};
use crate::ledger::Meter;
use crate::{Decision, GrantMode, Needs, Params, Policy, PolicyInfo, Scope, Selection, TaskView};

/// Its entry in the table of policies.
pub(super) const POLICY: PolicyInfo = PolicyInfo {
    name: "CFS",
    plain: "fair",
    number: 10,
    scope: Scope::Device,
    work_conserving: true,
    grant_mode: GrantMode::Exclusive,
    selection: Selection::Rotation,
    needs: Needs::NOTHING,
    summary: "the ready task with the smallest virtual runtime runs",
    make: || Box::<CompletelyFair>::default(),
};

/// Weights of the priorities from 0 up.
static WEIGHTS: [f64; 257] = weights();

const fn weights() -> [f64; 257] {
    let mut table = [1024.0; 257];
    let mut step = 1;
    while step < table.len() {
        table[step] = table[step - 1] * 1.2;
        step += 1;
    }
    table
}

/// 1024 x 1.2^priority.
fn weight(priority: Priority) -> f64 {
    let up = WEIGHTS[usize::from(priority.get().unsigned_abs()).min(WEIGHTS.len() - 1)];
    if priority >= Priority::DEFAULT { up } else { WEIGHTS[0] * WEIGHTS[0] / up }
}

/// Smallest virtual runtime first.
#[derive(Debug, Default)]
struct CompletelyFair {
    params: Params,
    meter: Meter,
    entities: Vec<Entity<TaskId>>,
    slices: WeightedSlices<TaskId>,
}

impl Policy for CompletelyFair {
    fn decide(&mut self, now: Nanos, tasks: &[TaskView], out: &mut Decision) {
        entities_of_tasks(&mut self.meter, tasks, |task| weight(task.hints.priority), &mut self.entities);
        let decision =
            self.slices.decide(now, &self.entities, self.params.timeslice.get(), SliceLengths::Equal);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Grant;
    use crate::policies::testing::{Device, assert_shares, decide, grants, idle, priority, ready};

    fn policy() -> Box<dyn Policy> {
        Box::<CompletelyFair>::default()
    }

    fn shares(priorities: &[i64], lengths_us: &[u64]) -> Vec<f64> {
        let mut device = Device::new(policy());
        for (&p, &length) in priorities.iter().zip(lengths_us) {
            device.closed_loop(length, 0, priority(p));
        }
        device.run_secs(30)
    }

    #[test]
    fn equal_priorities_have_equal_parts_whatever_the_length_of_their_commands() {
        for p in [-255, 0, 255] {
            assert_shares(&shares(&[p, p], &[300, 20_000]), &[50, 50], 1.0);
            assert_shares(&shares(&[p; 4], &[500, 2_000, 30_000, 200]), &[25; 4], 1.0);
        }
    }

    #[test]
    fn step_of_priority_adds_a_fifth_of_weight() {
        // 1.2^4 = 2.07 and 1.2^12 = 8.92.
        assert_shares(&shares(&[0, 4], &[1_000, 1_000]), &[33, 67], 1.0);
        assert_shares(&shares(&[-6, 6], &[300, 9_000]), &[10, 90], 1.0);
    }

    #[test]
    fn extreme_priorities_neither_overflow_nor_starve_the_lightest() {
        assert!(weight(Priority::MIN) > 0.0 && weight(Priority::MAX).is_finite());
        let had = shares(&[255, -255], &[1_000, 1_000]);
        assert!(had[1] > 0.05 && had[0] > 99.0, "a slice in a thousand: {had:?}");
    }

    #[test]
    fn long_idle_time_saves_nothing() {
        let mut cfs = policy();
        let mut tasks = [ready(1, priority(0)), idle(2, priority(0))];
        decide(&mut *cfs, 0, &tasks);
        tasks[0].used = Nanos::from_secs(10);
        tasks[1].ready = true;
        decide(&mut *cfs, 10_000_000, &tasks);
        let mut slices = [0, 0];
        for slice in 1..=100 {
            let now = 10_000_000 + slice * 5_000;
            let runs = usize::from(grants(&mut *cfs, now, &tasks)[1].runs());
            tasks[runs].used += Nanos::from_millis(5);
            slices[runs] += 1;
        }
        assert!(slices[0] >= 49 && slices[1] >= 49, "{slices:?}");
    }

    #[test]
    fn slice_lasts_a_timeslice_though_another_task_is_behind() {
        let mut cfs = policy();
        let mut tasks = [ready(1, priority(0)), ready(2, priority(0))];
        let first = decide(&mut *cfs, 0, &tasks);
        assert_eq!(first.grants(), [Grant::Throttled, Grant::Hold]);
        assert_eq!(first.next_look(), Some(Nanos::from_millis(5)));
        tasks[0].used = Nanos::from_millis(4);
        assert_eq!(grants(&mut *cfs, 4_000, &tasks), [Grant::Throttled, Grant::Hold]);
        tasks[0].used = Nanos::from_millis(5);
        assert_eq!(grants(&mut *cfs, 5_000, &tasks), [Grant::Hold, Grant::Throttled]);
    }
}
