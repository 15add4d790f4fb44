//! KEDF, "deadline": the k ready tasks whose deadlines come first run.
//!
//! ```text
//!   now ->            deadlines          k = 2
//!   A ----------|  10 ms                 A runs
//!   B -----------------|  17 ms          B runs
//!   C ---------------------|  21 ms      C waits until A or B is done
//!   D                                    D has no deadline: after all that have, in order of arrival
//! ```
//!
//! A deadline is the moment a task became ready plus the span it asked for. One that has passed still counts: late work is
//! the most urgent.
//!
//! Use it when work arrives with a time to be done by, as frames or requests do. Not when the device is overloaded for
//! long: then everybody is a little late, instead of the least important a lot.

use xsched_core::{Nanos, Priority};

use crate::{Decision, Grant, Params, Policy, TaskView};

/// The k earliest deadlines first. Remembers nothing about tasks.
#[derive(Debug, Default)]
pub struct EarliestDeadlineFirst {
    params: Params,
    /// Ready tasks by urgency; used within one decision.
    urgent: Vec<(Urgency, usize)>,
}

/// Less is more urgent: first by being without a deadline, then by deadline or by arrival.
type Urgency = (bool, Nanos);

fn urgency(task: &TaskView) -> Urgency {
    match task.hints.deadline {
        Some(deadline) => (false, task.ready_since + deadline.get()),
        None => (true, task.ready_since),
    }
}

impl Policy for EarliestDeadlineFirst {
    fn decide(&mut self, _now: Nanos, tasks: &[TaskView], out: &mut Decision) {
        let places = self.params.k.max(1);
        let runnable = || tasks.iter().enumerate().filter(|(_, t)| t.hints.priority != Priority::NO_EXECUTE);
        self.urgent.clear();
        self.urgent
            .extend(runnable().filter(|(_, task)| task.ready).map(|(index, task)| (urgency(task), index)));
        let everybody = runnable().count();
        if everybody <= places {
            runnable().for_each(|(index, _)| out.grant(index, Grant::Unthrottled));
            return;
        }
        if self.urgent.is_empty() {
            // Whoever is first will be chosen anyway. While somebody runs, an idle task must ask: it may be the one too many.
            runnable().for_each(|(index, _)| out.grant(index, Grant::Throttled));
            return;
        }
        if self.urgent.len() > places {
            self.urgent.select_nth_unstable(places - 1);
            self.urgent.truncate(places);
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
    fn the_k_earliest_run_and_arrival_counts_towards_the_deadline() {
        let tasks = [due(1, 0, Some(500)), due(2, 100, Some(300)), due(3, 0, Some(900)), due(4, 0, None)];
        assert_eq!(grants(&mut k(1), 200, &tasks), [Hold, Throttled, Hold, Hold]);
        assert_eq!(grants(&mut k(2), 200, &tasks), [Throttled, Throttled, Hold, Hold]);
        assert_eq!(
            grants(&mut k(3), 2_000, &tasks),
            [Throttled, Throttled, Throttled, Hold],
            "late is still urgent"
        );
        assert_eq!(grants(&mut k(4), 200, &tasks), [Unthrottled; 4]);
        assert_eq!(grants(&mut k(0), 200, &tasks), [Hold, Throttled, Hold, Hold], "one at least");
    }

    #[test]
    fn those_without_a_deadline_come_last_in_order_of_arrival() {
        let tasks = [due(1, 50, None), due(2, 10, None), due(3, 60, Some(1_000_000)), ready(4, never())];
        assert_eq!(grants(&mut k(1), 70, &tasks), [Hold, Hold, Throttled, Hold]);
        assert_eq!(grants(&mut k(2), 70, &tasks), [Hold, Throttled, Throttled, Hold]);
    }

    #[test]
    fn an_idle_task_may_begin_at_once_only_if_nobody_runs_or_all_have_a_place() {
        let (busy, rest) = (due(1, 0, Some(10)), idle(2, TaskView::default()));
        assert_eq!(grants(&mut k(1), 0, &[busy, rest]), [Throttled, Hold]);
        assert_eq!(grants(&mut k(2), 0, &[busy, rest]), [Unthrottled, Unthrottled]);
        assert_eq!(grants(&mut k(1), 0, &[idle(1, busy), rest]), [Throttled, Throttled]);
    }
}
