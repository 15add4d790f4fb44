//! MLFQ, "feedback": short work runs first; what is short is learnt from past consumption.
//!
//! ```text
//!   level  slice
//!     0     1 x   new tasks, and those that have not run for long  <--+
//!     1     2 x      | a slice used up: one level down                |
//!     2     4 x      v                                                | waited long enough:
//!     3     8 x                                                       | back to the top
//!     4    16 x   long work, in slices  ------------------------------+
//! ```
//!
//! The ready task on the highest level runs; on one level, the one that has waited longest for its slice. A slice may be
//! used up in pieces, so a task that becomes idle just before its end gains nothing.
//!
//! Use it when short requests share a device with long jobs and no hint distinguishes them. Not when shares are promised,
//! nor when long jobs have deadlines.

use xsched_core::{Nanos, Priority, TaskId};

use super::weighted_slices::DECISIONS_PER_TIMESLICE;
use crate::ledger::{Ledger, Meter};
use crate::{Decision, Grant, GrantMode, Needs, Params, Policy, PolicyInfo, Scope, Selection, TaskView};

/// Its entry in the table of policies.
pub(super) const POLICY: PolicyInfo = PolicyInfo {
    name: "MLFQ",
    plain: "feedback",
    number: 11,
    scope: Scope::Device,
    work_conserving: true,
    grant_mode: GrantMode::Exclusive,
    selection: Selection::Rotation,
    needs: Needs::NOTHING,
    summary: "short work first: using up a slice demotes, waiting promotes",
    make: || Box::<MultiLevelFeedback>::default(),
};

const LEVELS: u32 = 5;
/// A task that has not run for this many timeslices moves to the top level.
const BOOST_TIMESLICES: u64 = 200;
/// A running task that consumes nothing for this many of its slices has used its slice up.
const STALL_SLICES: u64 = 4;

/// Multi-level feedback queue.
#[derive(Debug, Default)]
struct MultiLevelFeedback {
    meter: Meter,
    positions: Ledger<TaskId, Option<Position>>,
    rules: Rules,
}

/// A task's level and its order there: the smallest position runs first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Position {
    level: u32,
    /// Order of arrival in its level.
    ticket: u64,
    /// Part of its slice that is used up.
    consumed: Nanos,
    last_ran: Nanos,
}

/// How tasks move between levels.
#[derive(Debug, Default)]
struct Rules {
    params: Params,
    /// The task that runs, and since when it has consumed nothing.
    running: Option<(TaskId, Nanos)>,
    last_ticket: u64,
}

impl Rules {
    fn slice(&self, level: u32) -> Nanos {
        Nanos(self.params.timeslice.get().0 << level)
    }

    fn max_stall(&self, level: u32) -> Nanos {
        Nanos(self.slice(level).0 * STALL_SLICES)
    }

    fn ticket(&mut self) -> u64 {
        self.last_ticket += 1;
        self.last_ticket
    }

    fn top(&mut self, now: Nanos) -> Position {
        Position { level: 0, ticket: self.ticket(), consumed: Nanos::ZERO, last_ran: now }
    }

    /// One level down, or to the end of the lowest level.
    fn demote(&mut self, position: &mut Position) {
        position.level = (position.level + 1).min(LEVELS - 1);
        position.ticket = self.ticket();
    }

    /// The position of a task that had `position` at the last decision and consumed `consumed` since.
    fn moved(&mut self, now: Nanos, id: TaskId, mut position: Position, consumed: Nanos) -> Position {
        let stalled_since = self.running.filter(|&(running, _)| running == id).map(|(_, since)| since);
        if stalled_since.is_some() || consumed > Nanos::ZERO {
            position.last_ran = now;
        }
        if consumed > Nanos::ZERO {
            if stalled_since.is_some() {
                self.running = Some((id, now));
            }
            position.consumed += consumed;
            // A long command may use up several slices. The rest counts for the next one.
            while position.level < LEVELS - 1 && position.consumed >= self.slice(position.level) {
                position.consumed = position.consumed - self.slice(position.level);
                self.demote(&mut position);
            }
            if position.consumed >= self.slice(position.level) {
                position.consumed = Nanos(position.consumed.0 % self.slice(position.level).0);
                self.demote(&mut position);
            }
        } else if stalled_since.is_some_and(|since| now - since >= self.max_stall(position.level)) {
            position.consumed = Nanos::ZERO;
            self.demote(&mut position);
            self.running = None;
        } else if position.level > 0 && now - position.last_ran >= Nanos(self.slice(0).0 * BOOST_TIMESLICES) {
            return self.top(now);
        }
        position
    }
}

impl Policy for MultiLevelFeedback {
    fn decide(&mut self, now: Nanos, tasks: &[TaskView], out: &mut Decision) {
        let Self { meter, positions, rules } = self;
        let positions = positions.align(tasks.iter().map(|task| task.id), None);
        let (mut first, mut ready, mut runnable) = (None, 0, 0);
        for ((index, task), consumed) in tasks.iter().enumerate().zip(meter.read(tasks)) {
            let position = match positions[index] {
                Some(position) => rules.moved(now, task.id, position, consumed),
                None => rules.top(now),
            };
            positions[index] = Some(position);
            if may_run(task) {
                runnable += 1;
                if task.ready {
                    ready += 1;
                    first = first.into_iter().chain([(position, index)]).min();
                }
            }
        }
        let grant = if runnable == 1 { Grant::Unthrottled } else { Grant::Throttled };
        for (index, task) in tasks.iter().enumerate().filter(|(_, task)| may_run(task)) {
            let runs = first.is_none_or(|(position, chosen)| {
                // An idle task of a higher level would run next anyway: it may start at once.
                let above = positions[index].is_some_and(|own| own.level < position.level);
                chosen == index || (above && !task.ready)
            });
            if runs {
                out.grant(index, grant);
            }
        }
        rules.running = first.map(|(position, index)| {
            let id = tasks[index].id;
            let since = rules.running.filter(|&(running, _)| running == id).map_or(now, |(_, since)| since);
            if ready > 1 {
                let left = rules.slice(position.level) - position.consumed;
                let used_up = (since + left).max(now + Nanos(rules.slice(0).0 / DECISIONS_PER_TIMESLICE));
                out.again_at(used_up.min(since + rules.max_stall(position.level)));
            }
            (id, since)
        });
    }

    fn configure(&mut self, params: &Params) {
        self.rules.params = *params;
    }

    fn tracked(&self) -> usize {
        self.positions.len()
    }
}

fn may_run(task: &TaskView) -> bool {
    task.hints.priority != Priority::NO_EXECUTE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::testing::{Device, assert_shares, grants, priority, ready};

    fn policy() -> Box<dyn Policy> {
        Box::<MultiLevelFeedback>::default()
    }

    fn level(mlfq: &mut MultiLevelFeedback, index: usize) -> u32 {
        mlfq.positions.rows()[index].unwrap().level
    }

    #[test]
    fn used_up_slice_demotes_and_each_level_doubles_the_slice() {
        let mut mlfq = MultiLevelFeedback::default();
        let mut task = ready(1, priority(0));
        for (used_ms, expected) in
            [(0, 0), (4, 0), (5, 1), (14, 1), (15, 2), (34, 2), (35, 3), (75, 4), (500, 4)]
        {
            task.used = Nanos::from_millis(used_ms);
            grants(&mut mlfq, used_ms * 1_000, &[task]);
            assert_eq!(level(&mut mlfq, 0), expected, "after {used_ms} ms");
        }
    }

    #[test]
    fn new_task_precedes_long_work_and_waiting_promotes_long_work() {
        let mut mlfq = MultiLevelFeedback::default();
        let mut long = ready(1, priority(0));
        grants(&mut mlfq, 0, &[long]);
        long.used = Nanos::from_millis(70);
        let new = ready(2, priority(0));
        assert_eq!(grants(&mut mlfq, 70_000, &[long, new]), [Grant::Hold, Grant::Throttled]);
        grants(&mut mlfq, 1_069_999, &[long, TaskView { used: Nanos(1), ..new }]);
        assert_eq!(level(&mut mlfq, 0), 3);
        grants(&mut mlfq, 1_070_000, &[long, TaskView { used: Nanos(2), ..new }]);
        assert_eq!(level(&mut mlfq, 0), 0, "waited for 200 timeslices");
    }

    #[test]
    fn idle_task_of_a_higher_level_may_start_at_once() {
        let mut mlfq = MultiLevelFeedback::default();
        let (mut long, mut short) = (ready(1, priority(0)), ready(2, priority(0)));
        short.ready = false;
        grants(&mut mlfq, 0, &[long, short]);
        assert_eq!(grants(&mut mlfq, 0, &[long, short]), [Grant::Throttled, Grant::Hold]);
        long.used = Nanos::from_millis(6);
        assert_eq!(grants(&mut mlfq, 6_000, &[long, short]), [Grant::Throttled, Grant::Throttled]);
    }

    #[test]
    fn long_jobs_share_evenly_and_a_task_without_consumption_is_demoted() {
        let mut device = Device::new(policy());
        device.closed_loop(700, 0, priority(0));
        device.closed_loop(300, 0, priority(0));
        assert_shares(&device.run_secs(20), &[50, 50], 1.0);
        let mut device = Device::new(policy());
        device.add_stalled(priority(0));
        device.closed_loop(300, 0, priority(0));
        assert!(device.run_secs(20)[1] > 10.0);
    }

    #[test]
    fn task_without_consumption_is_demoted_after_4_slices_of_its_level() {
        let mut mlfq = MultiLevelFeedback::default();
        let (stalled, mut long) = (ready(2, priority(0)), ready(1, priority(0)));
        grants(&mut mlfq, 0, &[long]);
        long.used = Nanos::from_millis(70);
        for (at_ms, expected) in [(0, 0), (19, 0), (20, 1), (59, 1), (60, 2)] {
            grants(&mut mlfq, at_ms * 1_000, &[long, stalled]);
            assert_eq!(level(&mut mlfq, 1), expected, "at {at_ms} ms");
        }
    }
}
