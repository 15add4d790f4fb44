//! Rates: what happened between two looks at the service, per second or as a part of the time.

use std::collections::HashMap;

use serde::Serialize;
use xsched_ipc::protocol::{Status, TaskStatus};

/// What one task did between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Rates {
    /// Part of the time it had the device, 0 to 1.
    pub(crate) utilization: f64,
    /// Part of the time it had work and was held at the gate, 0 to 1.
    pub(crate) held: f64,
    /// None while the task is alone on its device: then its launches are not counted.
    pub(crate) launches_per_s: Option<f64>,
    /// Times it was stopped while it had work.
    pub(crate) preemptions_per_s: f64,
}

/// The rates of every task that was there at both looks, by task number.
pub(crate) fn between(old: &Status, new: &Status) -> HashMap<u64, Rates> {
    // Another service counts from zero and numbers its tasks anew.
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
    Rates {
        utilization: part(before.used_ns, now.used_ns),
        held: part(before.held_ns, now.held_ns),
        launches_per_s: (!alone || launches > 0.0).then_some(launches),
        preemptions_per_s: per_s(before.preemptions, now.preemptions),
    }
}

/// Rounds of the scheduler per second; none if the two looks were not at the same service.
pub(crate) fn rounds_per_s(old: &Status, new: &Status) -> Option<f64> {
    let same = old.pid == new.pid && new.now_ns > old.now_ns;
    same.then(|| {
        new.rounds.saturating_sub(old.rounds) as f64 * 1e9 / new.now_ns.saturating_sub(old.now_ns) as f64
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(pid: u32, now_ns: u64, tasks: Vec<TaskStatus>) -> Status {
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
        let old = look(1, 0, vec![task(1, 100, 10), task(2, 0, 0)]);
        let new = look(1, 500_000_000, vec![task(1, 250_000_100, 60), task(2, 0, 0), task(3, 0, 0)]);
        let rates = between(&old, &new);
        let expected =
            Rates { utilization: 0.5, held: 0.25, launches_per_s: Some(100.0), preemptions_per_s: 100.0 };
        assert_eq!(rates[&1], expected);
        assert_eq!(rates[&2], Rates { launches_per_s: Some(0.0), ..Rates::default() });
        assert!(!rates.contains_key(&3), "a task that just came has no rates yet");
        assert_eq!(rounds_per_s(&old, &new), Some(1000.0));
    }

    #[test]
    fn alone_on_a_device_launches_are_unknown_rather_than_none() {
        let old = look(1, 0, vec![task(1, 0, 0)]);
        let new = look(1, 1_000_000, vec![task(1, 1_000_000, 0)]);
        assert_eq!(between(&old, &new)[&1].launches_per_s, None);
    }

    #[test]
    fn another_service_has_no_rates_with_the_one_before() {
        let old = look(1, 5, vec![task(1, 9, 9)]);
        assert!(between(&old, &look(2, 10, vec![task(1, 0, 0)])).is_empty());
        assert!(between(&old, &old).is_empty());
        assert_eq!(rounds_per_s(&old, &look(2, 10, vec![])), None);
    }

    #[test]
    fn nobody_has_more_than_the_whole_device() {
        let old = look(1, 0, vec![task(1, 0, 0)]);
        let new = look(1, 10, vec![task(1, 1000, 0)]);
        assert!((between(&old, &new)[&1].utilization - 1.0).abs() < f64::EPSILON);
    }
}
