//! KEDF, "deadline": the k ready tasks whose deadlines come first run.
//!
//! ```text
//!   now ->            deadlines          k = 2
//!   A ----------|  10 ms                 A runs
//!   B -----------------|  17 ms          B runs
//!   C ---------------------|  21 ms      C waits until A or B is done
//!   D                                    D has no deadline: it runs after all that have one, in order of arrival
//! ```
//!
//! A deadline is the time at which a task became ready plus the requested span. A deadline that has passed still counts: late
//! work is the most urgent. A task in a short idle gap has met its deadline: it precedes tasks without a deadline, to save
//! context switches, but never delays work that has one.
//!
//! Its grants are concurrent: the k tasks run at the same time.
//!
//! Use it when work arrives with a time to be done by, as frames or requests do. Not when the device is overloaded for
//! long: then every task is a little late, instead of the least important one a lot.

use xsched_core::{Nanos, Priority};

use crate::{Decision, Grant, GrantMode, Needs, Params, Policy, PolicyInfo, Scope, Selection, TaskView};

/// Its entry in the table of policies.
pub(super) const POLICY: PolicyInfo = PolicyInfo {
    name: "KEDF",
    plain: "deadline",
    number: 7,
    scope: Scope::Device,
    work_conserving: true,
    grant_mode: GrantMode::Concurrent,
    selection: Selection::Precedence,
    needs: Needs::NOTHING,
    summary: "the k ready tasks with the earliest deadlines run",
    make: || Box::<EarliestDeadlineFirst>::default(),
};

/// The k earliest deadlines first. Remembers nothing about tasks.
#[derive(Debug, Default)]
struct EarliestDeadlineFirst {
    params: Params,
    /// Ready tasks by urgency; used within one decision.
    urgent: Vec<(Urgency, usize)>,
}

/// The smallest is the most urgent: by class, then by deadline or by arrival.
type Urgency = (Class, Nanos);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Due,
    InGap,
    WithoutDeadline,
}

fn urgency(task: &TaskView) -> Urgency {
    match task.hints.deadline {
        Some(deadline) if task.in_gap => (Class::InGap, task.ready_since + deadline.get()),
        Some(deadline) => (Class::Due, task.ready_since + deadline.get()),
        None => (Class::WithoutDeadline, task.ready_since),
    }
}

impl Policy for EarliestDeadlineFirst {
    fn decide(&mut self, _now: Nanos, tasks: &[TaskView], out: &mut Decision) {
        let k = self.params.k.max(1);
        let runnable = || tasks.iter().enumerate().filter(|(_, t)| t.hints.priority != Priority::NO_EXECUTE);
        self.urgent.clear();
        self.urgent
            .extend(runnable().filter(|(_, task)| task.ready).map(|(index, task)| (urgency(task), index)));
        if runnable().count() <= k {
            runnable().for_each(|(index, _)| out.grant(index, Grant::Unthrottled));
            return;
        }
        if self.urgent.is_empty() {
            // The first task with work is chosen in any case. While a task runs, an idle one waits for a decision: it may be
            // the one beyond k.
            runnable().for_each(|(index, _)| out.grant(index, Grant::Throttled));
            return;
        }
        if self.urgent.len() > k {
            self.urgent.select_nth_unstable(k - 1);
            self.urgent.truncate(k);
        }
        for &(_, index) in &self.urgent {
            out.grant(index, Grant::Throttled);
        }
    }

    fn configure(&mut self, params: &Params) {
        self.params = *params;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::testing::{grants, idle, never, ready};
    use Grant::{Hold, Throttled, Unthrottled};
    use xsched_core::Deadline;

    fn due(id: u64, since_us: u64, span_us: Option<i64>) -> TaskView {
        let mut task = ready(id, TaskView::default());
        task.ready_since = Nanos::from_micros(since_us);
        task.hints.deadline = span_us.map(|us| Deadline::from_micros(us).unwrap());
        task
    }

    fn k(k: usize) -> EarliestDeadlineFirst {
        let mut policy = EarliestDeadlineFirst::default();
        policy.configure(&Params { k, ..Params::default() });
        policy
    }

    #[test]
    fn k_earliest_deadlines_run_counted_from_arrival() {
        let tasks = [due(1, 0, Some(500)), due(2, 100, Some(300)), due(3, 0, Some(900)), due(4, 0, None)];
        assert_eq!(grants(&mut k(1), 200, &tasks), [Hold, Throttled, Hold, Hold]);
        assert_eq!(grants(&mut k(2), 200, &tasks), [Throttled, Throttled, Hold, Hold]);
        assert_eq!(
            grants(&mut k(3), 2_000, &tasks),
            [Throttled, Throttled, Throttled, Hold],
            "late is still urgent"
        );
        assert_eq!(grants(&mut k(4), 200, &tasks), [Unthrottled; 4]);
        assert_eq!(grants(&mut k(0), 200, &tasks), [Hold, Throttled, Hold, Hold], "at least one runs");
    }

    #[test]
    fn tasks_without_deadline_run_last_in_order_of_arrival() {
        let tasks = [due(1, 50, None), due(2, 10, None), due(3, 60, Some(1_000_000)), ready(4, never())];
        assert_eq!(grants(&mut k(1), 70, &tasks), [Hold, Hold, Throttled, Hold]);
        assert_eq!(grants(&mut k(2), 70, &tasks), [Hold, Throttled, Throttled, Hold]);
    }

    #[test]
    fn idle_task_may_start_at_once_only_if_no_task_runs_or_all_fit() {
        let (busy, rest) = (due(1, 0, Some(10)), idle(2, TaskView::default()));
        assert_eq!(grants(&mut k(1), 0, &[busy, rest]), [Throttled, Hold]);
        assert_eq!(grants(&mut k(2), 0, &[busy, rest]), [Unthrottled, Unthrottled]);
        assert_eq!(grants(&mut k(1), 0, &[idle(1, busy), rest]), [Throttled, Throttled]);
    }

    #[test]
    fn task_in_a_gap_runs_before_tasks_without_deadline_and_after_work_with_one() {
        let gap = TaskView { in_gap: true, ..due(1, 0, Some(500)) };
        assert_eq!(grants(&mut k(1), 200, &[gap, due(2, 100, Some(900))]), [Hold, Throttled]);
        assert_eq!(grants(&mut k(1), 200, &[gap, due(2, 0, None)]), [Throttled, Hold]);
    }
}
