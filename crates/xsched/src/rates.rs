//! Rates of a task between two statuses of the service, per second or as a part of the time.

use std::collections::HashMap;

use serde::Serialize;
use xsched_ipc::protocol::{Status, TaskStatus};

/// The rates of one task between two statuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Rates {
    /// Part of the time the task had the device, 0 to 1.
    pub(crate) utilization: f64,
    /// The utilization is an estimate from samples, because the task was alone on its device for some of the time.
    pub(crate) is_sampled: bool,
    /// Part of the time the task had work and was held, 0 to 1.
    pub(crate) held: f64,
    /// Part of the time the device was idle while the task had work and was allowed to run, 0 to 1.
    pub(crate) wasted: f64,
    /// None while the task is alone on its device: then its launches are not counted.
    pub(crate) launches_per_s: Option<f64>,
    /// How often it was preempted.
    pub(crate) preemptions_per_s: f64,
}

/// The rates of every task that both statuses contain, by task number.
pub(crate) fn between(old: &Status, new: &Status) -> HashMap<u64, Rates> {
    // Counters and task numbers are valid within one service only.
    if old.pid != new.pid || new.now_ns <= old.now_ns {
        return HashMap::new();
    }
    let elapsed_ns = (new.now_ns - old.now_ns) as f64;
    let mut tasks_on = HashMap::<u64, u32>::new();
    for task in &new.tasks {
        *tasks_on.entry(task.device).or_default() += 1;
    }
    let before: HashMap<u64, &TaskStatus> = old.tasks.iter().map(|task| (task.task, task)).collect();
    new.tasks
        .iter()
        .filter_map(|now| {
            let rates = rates(before.get(&now.task)?, now, elapsed_ns, tasks_on[&now.device] == 1);
            Some((now.task, rates))
        })
        .collect()
}

fn rates(before: &TaskStatus, now: &TaskStatus, elapsed_ns: f64, alone: bool) -> Rates {
    let part = |before: u64, now: u64| (now.saturating_sub(before) as f64 / elapsed_ns).min(1.0);
    let per_s = |before: u64, now: u64| now.saturating_sub(before) as f64 * 1e9 / elapsed_ns;
    let launches = per_s(before.launches, now.launches);
    let busy = |task: &TaskStatus| task.used_ns.saturating_add(task.sampled_ns.unwrap_or(0));
    let utilization = part(busy(before), busy(now));
    Rates {
        utilization,
        // A task that is alone, idle and sampled has an estimate of zero.
        is_sampled: now.sampled_ns.is_some() && (alone || before.sampled_ns != now.sampled_ns),
        held: part(before.held_ns, now.held_ns),
        // An estimate from samples, which may exceed the measured time that it is a part of.
        wasted: part(before.wasted_ns, now.wasted_ns).min(utilization),
        launches_per_s: (!alone || launches > 0.0).then_some(launches),
        preemptions_per_s: per_s(before.preemptions, now.preemptions),
    }
}

/// Scheduling rounds per second; none if the statuses are from different services.
pub(crate) fn rounds_per_s(old: &Status, new: &Status) -> Option<f64> {
    let same = old.pid == new.pid && new.now_ns > old.now_ns;
    same.then(|| {
        new.rounds.saturating_sub(old.rounds) as f64 * 1e9 / new.now_ns.saturating_sub(old.now_ns) as f64
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(pid: u32, now_ns: u64, tasks: Vec<TaskStatus>) -> Status {
        Status { pid, now_ns, rounds: now_ns / 1_000_000, tasks, ..Status::default() }
    }

    fn task(task: u64, used_ns: u64, launches: u64) -> TaskStatus {
        TaskStatus {
            task,
            used_ns,
            held_ns: used_ns / 2,
            launches,
            preemptions: launches,
            ..TaskStatus::default()
        }
    }

    #[test]
    fn rates_are_differences_over_the_time_between() {
        let old = status(1, 0, vec![task(1, 100, 10), task(2, 0, 0)]);
        let new = status(1, 500_000_000, vec![task(1, 250_000_100, 60), task(2, 0, 0), task(3, 0, 0)]);
        let rates = between(&old, &new);
        let expected = Rates {
            utilization: 0.5,
            held: 0.25,
            launches_per_s: Some(100.0),
            preemptions_per_s: 100.0,
            ..Rates::default()
        };
        assert_eq!(rates[&1], expected);
        assert_eq!(rates[&2], Rates { launches_per_s: Some(0.0), ..Rates::default() });
        assert!(!rates.contains_key(&3), "a new task has no rates yet");
        assert_eq!(rounds_per_s(&old, &new), Some(1000.0));
    }

    #[test]
    fn launch_rate_is_unknown_for_a_task_alone_on_its_device() {
        let old = status(1, 0, vec![task(1, 0, 0)]);
        let new = status(1, 1_000_000, vec![task(1, 1_000_000, 0)]);
        assert_eq!(between(&old, &new)[&1].launches_per_s, None);
    }

    #[test]
    fn statuses_of_different_services_give_no_rates() {
        let old = status(1, 5, vec![task(1, 9, 9)]);
        assert!(between(&old, &status(2, 10, vec![task(1, 0, 0)])).is_empty());
        assert!(between(&old, &old).is_empty());
        assert_eq!(rounds_per_s(&old, &status(2, 10, vec![])), None);
    }

    #[test]
    fn utilization_of_a_task_alone_on_its_device_is_sampled() {
        let sampled = |used_ns, sampled_ns| TaskStatus { sampled_ns, ..task(1, used_ns, 0) };
        let old = status(1, 0, vec![sampled(100, None)]);
        let new = status(1, 1_000, vec![sampled(100, Some(500))]);
        let rates = between(&old, &new)[&1];
        assert!((rates.utilization - 0.5).abs() < f64::EPSILON && rates.is_sampled, "{rates:?}");
        let neither = between(&old, &status(1, 1_000, vec![sampled(600, None)]))[&1];
        assert!(!neither.is_sampled, "its device cannot be sampled");
        let mut beside = status(2, 1_000, vec![sampled(100, Some(500)), task(2, 0, 0)]);
        let mut later = status(2, 2_000, vec![sampled(600, Some(500)), task(2, 0, 0)]);
        for status in [&mut beside, &mut later] {
            status.tasks.iter_mut().for_each(|task| task.device = 7);
        }
        let counted = between(&beside, &later)[&1];
        assert!((counted.utilization - 0.5).abs() < f64::EPSILON && !counted.is_sampled, "{counted:?}");
    }

    #[test]
    fn wasted_time_is_at_most_the_time_that_the_task_had_the_device() {
        let wasting = |used_ns, wasted_ns| TaskStatus { wasted_ns, ..task(1, used_ns, 1) };
        let old = status(1, 0, vec![wasting(0, 0)]);
        for (used_ns, wasted_ns, expected) in [(100, 40, 0.04), (50, 200, 0.05)] {
            let rates = between(&old, &status(1, 1_000, vec![wasting(used_ns, wasted_ns)]));
            assert!((rates[&1].wasted - expected).abs() < f64::EPSILON, "{rates:?}");
        }
    }

    #[test]
    fn utilization_is_at_most_1() {
        let old = status(1, 0, vec![task(1, 0, 0)]);
        let new = status(1, 10, vec![task(1, 1000, 0)]);
        assert!((between(&old, &new)[&1].utilization - 1.0).abs() < f64::EPSILON);
    }
}
