//! SPUP, "quota": PUP with a ceiling; no process has more than its share of the time, even if the device is idle.
//!
//! ```text
//!   quota
//!    50 %  P ████····████····████      an allowance grows with time and shrinks with use:
//!    20 %  Q ····██········██····      a process without one waits, even if the device is idle
//!            ······██········██··      <- the device is idle here
//! ```
//!
//! Each process has an allowance of device time that grows by its quota of the time passing. While idle it saves a few
//! timeslices' worth at most. Consumption beyond the allowance is a debt, and the process waits until it is paid. Quotas
//! that add up to more than 100 are scaled down together. Processes with an allowance have time slices as under PUP. Share 0
//! means never.
//!
//! Use it when a tenant must not have more than it pays for, or to limit power. Not when idle device time is a loss: every
//! other policy uses it.

use xsched_core::{Nanos, ProcessId};

use super::pup::Processes;
use super::weighted_slices::{DECISIONS_PER_TIMESLICE, Demand, SliceLengths, WeightedSlices, to_nanos};
use crate::ledger::Ledger;
use crate::{Decision, Grant, GrantMode, Needs, Params, Policy, PolicyInfo, Scope, Selection, TaskView};

/// Its entry in the table of policies.
pub(super) const POLICY: PolicyInfo = PolicyInfo {
    name: "SPUP",
    plain: "quota",
    number: 6,
    scope: Scope::Device,
    work_conserving: false,
    grant_mode: GrantMode::Exclusive,
    selection: Selection::Rotation,
    needs: Needs::NOTHING,
    summary: "no process has more than its share, even if the device is idle",
    make: || Box::<StrictProcessUtilizationPartition>::default(),
};

/// How many timeslices' worth an idle process can save.
const MAX_SAVED_IDLE: f64 = 4.0;
/// The same for a ready process: it may wait for long commands of other processes, and its own are measured only when they
/// have completed.
const MAX_SAVED_READY: f64 = 200.0;

/// Quotas of processes.
#[derive(Debug, Default)]
struct StrictProcessUtilizationPartition {
    params: Params,
    processes: Processes,
    allowances: Ledger<ProcessId, Option<Allowance>>,
    slices: WeightedSlices<ProcessId>,
    decided_at: Nanos,
}

/// What one process may still consume, in nanoseconds of device time.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    left: f64,
    /// Used up, and waits for a timeslice's worth: otherwise the process would be held again at once.
    exhausted: bool,
    /// Was ready at the last decision.
    was_ready: bool,
}

impl Allowance {
    /// A new process starts with a timeslice's worth.
    fn new(worth: f64) -> Self {
        Self { left: worth, exhausted: false, was_ready: false }
    }

    fn update(&mut self, income: f64, consumed: f64, worth: f64) {
        let max = worth * if self.was_ready { MAX_SAVED_READY } else { MAX_SAVED_IDLE };
        self.left = (self.left + income).min(max) - consumed;
        self.exhausted = self.left <= 0.0 || (self.exhausted && self.left < worth);
    }
}

impl Policy for StrictProcessUtilizationPartition {
    fn decide(&mut self, now: Nanos, tasks: &[TaskView], out: &mut Decision) {
        let timeslice = self.params.timeslice.get();
        let (span, finest) = (timeslice.0 as f64, timeslice.0 as f64 / DECISIONS_PER_TIMESLICE as f64);
        let elapsed = (now - std::mem::replace(&mut self.decided_at, now)).0 as f64;
        let entities = self.processes.entities(tasks);
        let promised: f64 = entities.iter().map(|entity| entity.weight).sum();
        let per_percent = 1.0 / promised.max(100.0);
        let allowances = self.allowances.align(entities.iter().map(|entity| entity.key), None);
        // How soon a ready process has an allowance again, or the running one has none.
        let mut soonest = f64::INFINITY;
        for (allowance, entity) in allowances.iter_mut().zip(entities.iter_mut()) {
            let quota = per_percent * entity.weight;
            let mut known = allowance.unwrap_or(Allowance::new(quota * span));
            if allowance.is_some() {
                known.update(quota * elapsed, entity.consumed.0 as f64, quota * span);
            }
            known.was_ready = entity.demand == Demand::Ready;
            // A process that was promised the whole device is never held.
            if (known.exhausted && quota < 1.0) || quota <= 0.0 {
                if known.was_ready && quota > 0.0 {
                    soonest = soonest.min(span - known.left / quota);
                }
                entity.demand = Demand::Barred;
            }
            *allowance = Some(known);
        }
        let decision = self.slices.decide(now, entities, timeslice, SliceLengths::ByWeight);
        if let Some((entity, Some(allowance))) =
            decision.chosen.map(|index| (&entities[index], allowances[index]))
        {
            // An allowance grows while it is used, so it lasts longer than its amount.
            let drain = 1.0 - per_percent * entity.weight;
            if drain > 0.0 {
                soonest = soonest.min(allowance.left / drain);
            }
        }
        if soonest.is_finite() {
            out.again_at(now + to_nanos(soonest.max(finest)) + Nanos(1));
        }
        if let Some(at) = decision.until {
            out.again_at(at);
        }
        self.processes.grant(&decision, Grant::Throttled, tasks, out);
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
    fn busy_processes_have_exactly_their_quotas() {
        for length_us in [200, 3_000, 60_000] {
            for quotas in [&[20][..], &[50, 20], &[30, 30, 30], &[100]] {
                assert_shares(&had(quotas, length_us), quotas, 1.0);
            }
        }
    }

    #[test]
    fn quotas_above_100_percent_are_scaled_down_together() {
        assert_shares(&had(&[100, 100], 1_000), &[50, 50], 1.0);
        assert_shares(&had(&[100, 60, 40], 1_000), &[50, 30, 20], 1.0);
    }

    #[test]
    fn process_without_quota_never_runs() {
        assert_eq!(grants(&mut *policy(), 0, &[of_process(1, ready(1, with_share(0)))]), [Grant::Hold]);
    }

    #[test]
    fn long_idle_time_saves_only_a_few_timeslices() {
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
    fn process_with_the_whole_device_as_quota_is_never_held() {
        assert_shares(&had(&[100], 2_000_000), &[100], 0.1);
    }
}
