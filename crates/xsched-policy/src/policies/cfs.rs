//! CFS, "fair": who had the least of its due runs next; every step of priority is worth a fifth more.
//!
//! ```text
//!   priority  weight
//!       0      1024   A ██····██····██····      equal priorities, equal parts;
//!       0      1024   B ··██····██····██··      who comes back from a rest starts level
//!      -4       494   C ····██··········██      with the others, not ahead of them
//! ```
//!
//! Virtual runtime is device time divided by weight, 1024 x 1.2^priority; the smallest runs, for a timeslice at least.
//! A newcomer, or a task that was idle for longer than a round, starts at the smallest of those that are ready:
//! resting saves nothing up. A task that was idle for a moment keeps what was left of its turn. No task falls back by
//! more than a thousand turns of the heaviest, so even the lightest goes on.
//!
//! Use it when nobody made promises and everybody should get on. Not when one task must not wait: it gets more than
//! others, but not first.

use xsched_core::{Nanos, Priority, TaskId};

use super::turns::{Claim, Lengths, Turns};
use super::up::claims_of_tasks;
use crate::ledger::Meter;
use crate::{Decision, Params, Policy, TaskView};

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
pub struct CompletelyFair {
    params: Params,
    meter: Meter,
    claims: Vec<Claim<TaskId>>,
    turns: Turns<TaskId>,
}

impl Policy for CompletelyFair {
    fn decide(&mut self, now: Nanos, tasks: &[TaskView], out: &mut Decision) {
        claims_of_tasks(&mut self.meter, tasks, |task| weight(task.hints.priority), &mut self.claims);
        let verdict = self.turns.decide(now, &self.claims, self.params.timeslice.get(), Lengths::Equal);
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
    fn equals_get_equal_parts_whatever_the_length_of_their_commands() {
        for p in [-255, 0, 255] {
            assert_shares(&shares(&[p, p], &[300, 20_000]), &[50, 50], 1.0);
            assert_shares(&shares(&[p; 4], &[500, 2_000, 30_000, 200]), &[25; 4], 1.0);
        }
    }

    #[test]
    fn a_step_of_priority_is_worth_a_fifth_more() {
        // 1.2^4 = 2.07 and 1.2^12 = 8.92.
        assert_shares(&shares(&[0, 4], &[1_000, 1_000]), &[33, 67], 1.0);
        assert_shares(&shares(&[-6, 6], &[300, 9_000]), &[10, 90], 1.0);
    }

    #[test]
    fn extreme_priorities_neither_overflow_nor_stop_the_weakest() {
        assert!(weight(Priority::MIN) > 0.0 && weight(Priority::MAX).is_finite());
        let had = shares(&[255, -255], &[1_000, 1_000]);
        assert!(had[1] > 0.05 && had[0] > 99.0, "a turn in a thousand: {had:?}");
    }

    #[test]
    fn a_long_rest_saves_nothing_up() {
        let mut cfs = policy();
        let mut tasks = [ready(1, priority(0)), idle(2, priority(0))];
        decide(&mut *cfs, 0, &tasks);
        tasks[0].used = Nanos::from_secs(10);
        tasks[1].ready = true;
        decide(&mut *cfs, 10_000_000, &tasks);
        let mut turns = [0, 0];
        for slice in 1..=100 {
            let now = 10_000_000 + slice * 5_000;
            let runs = usize::from(grants(&mut *cfs, now, &tasks)[1].runs());
            tasks[runs].used += Nanos::from_millis(5);
            turns[runs] += 1;
        }
        assert!(turns[0] >= 49 && turns[1] >= 49, "{turns:?}");
    }

    #[test]
    fn a_turn_lasts_a_timeslice_though_the_other_is_behind() {
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
