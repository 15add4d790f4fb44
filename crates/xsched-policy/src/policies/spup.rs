//! SPUP, "quota": PUP with a ceiling; no process has more than its share percent of the time, even if the device
//! stands idle.
//!
//! ```text
//!   quota
//!    50 %  P ████····████····████      allowance flows in with time and out with use:
//!    20 %  Q ····██········██····      who has none waits, though the device be free
//!            ······██········██··      <- nobody runs here
//! ```
//!
//! Each process has an allowance of device time that grows by its quota of the time passing. At rest it may save up for
//! a few timeslices, no more. Consumption beyond it is a debt and is waited for. Quotas that add up to more than 100 are
//! scaled down together. Those who have an allowance take turns as under PUP. Share 0 means never.
//!
//! Use it when a tenant must not get more than it pays for, or to keep power or heat down. Not when idle device time is
//! a loss: every other policy uses it.

use xsched_core::{Nanos, ProcessId};

use super::pup::Processes;
use super::turns::{Demand, FINEST_LOOK, Lengths, Turns, whole};
use crate::ledger::Ledger;
use crate::{Decision, Grant, Params, Policy, TaskView};

/// How many timeslices' worth may be saved up at rest.
const SAVINGS: f64 = 4.0;
/// The same for those that are ready: others' long commands may keep them waiting, and their own are reported only when
/// they are over.
const SAVINGS_AT_WORK: f64 = 200.0;

/// Quotas of processes.
#[derive(Debug, Default)]
pub struct StrictProcessUtilizationPartition {
    params: Params,
    processes: Processes,
    allowances: Ledger<ProcessId, Option<Allowance>>,
    turns: Turns<ProcessId>,
    decided_at: Nanos,
}

/// What one process may still consume, in nanoseconds of device time.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    left: f64,
    /// Ran out, and waits for a timeslice's worth: otherwise it would be stopped again at once.
    exhausted: bool,
    /// Was ready at the last decision.
    at_work: bool,
}

impl Allowance {
    /// A new process begins with a timeslice's worth.
    fn new(worth: f64) -> Self {
        Self { left: worth, exhausted: false, at_work: false }
    }

    fn update(&mut self, income: f64, consumed: f64, worth: f64) {
        let most = worth * if self.at_work { SAVINGS_AT_WORK } else { SAVINGS };
        self.left = (self.left + income).min(most) - consumed;
        self.exhausted = self.left <= 0.0 || (self.exhausted && self.left < worth);
    }
}

impl Policy for StrictProcessUtilizationPartition {
    fn decide(&mut self, now: Nanos, tasks: &[TaskView], out: &mut Decision) {
        let timeslice = self.params.timeslice.get();
        let (span, finest) = (timeslice.0 as f64, timeslice.0 as f64 / FINEST_LOOK as f64);
        let elapsed = (now - std::mem::replace(&mut self.decided_at, now)).0 as f64;
        let claims = self.processes.claims(tasks);
        let promised: f64 = claims.iter().map(|claim| claim.weight).sum();
        let per_percent = 1.0 / promised.max(100.0);
        let allowances = self.allowances.align(claims.iter().map(|claim| claim.key), None);
        // How soon somebody who is ready has an allowance again, or the one that runs has none.
        let mut soonest = f64::INFINITY;
        for (allowance, claim) in allowances.iter_mut().zip(claims.iter_mut()) {
            let quota = per_percent * claim.weight;
            let mut known = allowance.unwrap_or(Allowance::new(quota * span));
            if allowance.is_some() {
                known.update(quota * elapsed, claim.consumed.0 as f64, quota * span);
            }
            known.at_work = claim.demand == Demand::Ready;
            // With the whole device promised to it there is nobody to hold it back for.
            if (known.exhausted && quota < 1.0) || quota <= 0.0 {
                if known.at_work && quota > 0.0 {
                    soonest = soonest.min(span - known.left / quota);
                }
                claim.demand = Demand::Barred;
            }
            *allowance = Some(known);
        }
        let verdict = self.turns.decide(now, claims, timeslice, Lengths::ByWeight);
        if let Some((claim, Some(allowance))) =
            verdict.chosen.map(|index| (&claims[index], allowances[index]))
        {
            // An allowance is refilled while it is used, so it lasts longer than it says.
            let drain = 1.0 - per_percent * claim.weight;
            if drain > 0.0 {
                soonest = soonest.min(allowance.left / drain);
            }
        }
        if soonest.is_finite() {
            out.again_at(now + whole(soonest.max(finest)) + Nanos(1));
        }
        if let Some(at) = verdict.until {
            out.again_at(at);
        }
        self.processes.grant(&verdict, Grant::Throttled, tasks, out);
    }

    fn configure(&mut self, params: &Params) {
        self.params = *params;
    }

    fn tracked(&self) -> usize {
        self.processes.tracked()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::testing::{Device, assert_shares, grants, of_process, ready, with_share};

    fn policy() -> Box<dyn Policy> {
        Box::<StrictProcessUtilizationPartition>::default()
    }

    /// What processes with these quotas have of the whole time, in percent.
    fn had(quotas: &[i64], length_us: u64) -> Vec<f64> {
        let mut device = Device::new(policy());
        for (pid, &quota) in (0..).zip(quotas) {
            device.closed_loop(length_us, 0, of_process(pid, with_share(quota)));
        }
        device.run_secs(20)
    }

    #[test]
    fn nobody_has_more_than_its_quota_and_everybody_who_wants_it_has_it() {
        for length_us in [200, 3_000, 60_000] {
            for quotas in [&[20][..], &[50, 20], &[30, 30, 30], &[100]] {
                assert_shares(&had(quotas, length_us), quotas, 1.0);
            }
        }
    }

    #[test]
    fn too_many_promises_are_scaled_down_together() {
        assert_shares(&had(&[100, 100], 1_000), &[50, 50], 1.0);
        assert_shares(&had(&[100, 60, 40], 1_000), &[50, 30, 20], 1.0);
    }

    #[test]
    fn no_quota_means_never() {
        assert_eq!(grants(&mut *policy(), 0, &[of_process(1, ready(1, with_share(0)))]), [Grant::Hold]);
    }

    #[test]
    fn a_long_rest_saves_up_only_a_few_timeslices() {
        let mut spup = policy();
        let mut task = of_process(1, ready(1, with_share(50)));
        task.ready = false;
        grants(&mut *spup, 0, &[task]);
        task.ready = true;
        grants(&mut *spup, 100_000_000, &[task]);
        task.used = Nanos::from_millis(20);
        // Saved were 10 ms, half of four timeslices; 20 ms were consumed in 2 ms.
        assert_eq!(grants(&mut *spup, 100_002_000, &[task]), [Grant::Hold]);
    }

    #[test]
    fn with_the_whole_device_promised_to_it_a_process_is_never_held_back() {
        assert_shares(&had(&[100], 2_000_000), &[100], 0.1);
    }
}
