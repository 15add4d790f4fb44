//! LAX, "laxity": a task can wait for a given time; then it becomes critical.
//!
//! ```text
//!            ready                laxity used up
//!   A          |   lax priority -5   |   critical priority 10  ███
//!   B (0)      ██████████████████████                             ████
//! ```
//!
//! Until its laxity is used up, counted from the time it became ready, a task has its lax priority; afterwards its
//! critical one. Tasks without laxity have their ordinary priority. Then the rule is HPF's. A lax priority of -256 means
//! that it does not run before it is critical.
//!
//! Use it when background work must run after a limited wait, or when urgent work can wait for a while. Not when work has a
//! time to be done by: KEDF compares those.

use xsched_core::{Nanos, Priority};

use super::hpf::by_priority;
use crate::{Decision, GrantMode, Needs, Policy, PolicyInfo, Scope, Selection, TaskView};

/// Its entry in the table of policies.
pub(super) const POLICY: PolicyInfo = PolicyInfo {
    name: "LAX",
    plain: "laxity",
    number: 8,
    scope: Scope::Device,
    work_conserving: true,
    grant_mode: GrantMode::Exclusive,
    selection: Selection::Precedence,
    needs: Needs::NOTHING,
    summary: "a task has its lax priority until its laxity is used up, then its critical one",
    make: || Box::new(LaxityFirst),
};

/// Lax, then critical priority. Has no memory.
#[derive(Debug, Default)]
struct LaxityFirst;

impl Policy for LaxityFirst {
    fn decide(&mut self, now: Nanos, tasks: &[TaskView], out: &mut Decision) {
        by_priority(tasks, |task| priority(now, task), ceiling, out);
        // A task alone runs in either case, unless it must not run before it is critical.
        let rivals = tasks.iter().filter(|task| ceiling(task) != Priority::NO_EXECUTE).count() > 1;
        let matters = |task: &&TaskView| rivals || priority(now, task) == Priority::NO_EXECUTE;
        let changes = tasks.iter().filter(matters).filter_map(becomes_critical_at);
        changes.filter(|&at| at > now).for_each(|at| out.again_at(at));
    }
}

fn becomes_critical_at(task: &TaskView) -> Option<Nanos> {
    let laxity = task.hints.laxity.filter(|laxity| task.ready && laxity.lax != laxity.critical)?;
    (task.hints.priority != Priority::NO_EXECUTE).then_some(task.ready_since + laxity.span)
}

fn priority(now: Nanos, task: &TaskView) -> Priority {
    match task.hints.laxity {
        _ if task.hints.priority == Priority::NO_EXECUTE => Priority::NO_EXECUTE,
        Some(laxity) if task.ready && now >= task.ready_since + laxity.span => laxity.critical,
        Some(laxity) => laxity.lax,
        None => task.hints.priority,
    }
}

/// The highest priority it can come to have.
fn ceiling(task: &TaskView) -> Priority {
    match task.hints.laxity {
        Some(laxity) if task.hints.priority != Priority::NO_EXECUTE => laxity.critical.max(laxity.lax),
        _ => task.hints.priority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Grant::{Hold, Throttled, Unthrottled};
    use crate::policies::testing::{decide, grants, priority, ready};
    use xsched_core::Laxity;

    fn lax(id: u64, span_us: i64, lax: i64, critical: i64) -> TaskView {
        let mut task = ready(id, priority(0));
        task.ready_since = Nanos::from_micros(100);
        task.hints.laxity = Some(Laxity::new(span_us, lax, critical).unwrap());
        task
    }

    #[test]
    fn task_is_lax_until_its_span_is_used_up_and_critical_afterwards() {
        let tasks = [lax(1, 50, -5, 10), ready(2, priority(0))];
        let before = decide(&mut LaxityFirst, 149, &tasks);
        assert_eq!(before.grants(), [Hold, Throttled], "throttled, because the other task becomes critical");
        assert_eq!(before.next_look(), Some(Nanos::from_micros(150)));
        let after = decide(&mut LaxityFirst, 150, &tasks);
        assert_eq!((after.grants(), after.next_look()), (&[Unthrottled, Hold][..], None));
    }

    #[test]
    fn ordinary_priority_counts_without_laxity() {
        let tasks = [ready(1, priority(3)), ready(2, priority(4))];
        assert_eq!(grants(&mut LaxityFirst, 0, &tasks), [Hold, Unthrottled]);
    }

    #[test]
    fn task_alone_runs_unthrottled_without_another_decision() {
        let out = decide(&mut LaxityFirst, 100, &[lax(1, 50, -5, 10)]);
        assert_eq!((out.grants(), out.next_look()), (&[Unthrottled][..], None));
    }

    #[test]
    fn lax_priority_never_holds_a_task_until_it_is_critical() {
        let tasks = [lax(1, 50, -256, 1)];
        let out = decide(&mut LaxityFirst, 120, &tasks);
        assert_eq!((out.grants(), out.next_look()), (&[Hold][..], Some(Nanos::from_micros(150))));
        assert_eq!(grants(&mut LaxityFirst, 150, &tasks), [Unthrottled]);
    }

    #[test]
    fn priority_never_outweighs_a_critical_priority() {
        let mut task = lax(1, 50, 0, 10);
        task.hints.priority = Priority::NO_EXECUTE;
        assert_eq!(grants(&mut LaxityFirst, 500, &[task]), [Hold]);
    }
}
