//! MLFQ, "feedback": short work goes first, and what is short is learnt from what was consumed.
//!
//! ```text
//!   level  slice
//!     0     1 x   new tasks, and those that have not run for long  <--+
//!     1     2 x      | a slice used up: one level down                |
//!     2     4 x      v                                                | waited long enough:
//!     3     8 x                                                       | back to the top
//!     4    16 x   long work, in turns  -------------------------------+
//! ```
//!
//! The ready task on the highest level runs; on one level, the one that waits longest for its slice. A slice may be
//! used up in pieces, so that stopping just before its end gains nothing.
//!
//! Use it when short requests share a device with long jobs and nobody says which is which. Not when parts are promised,
//! nor when long jobs have deadlines.

use xsched_core::{Nanos, Priority, TaskId};

use super::turns::FINEST_LOOK;
use crate::ledger::{Ledger, Meter};
use crate::{Decision, Grant, Params, Policy, TaskView};

const LEVELS: u32 = 5;
/// Who has not run for so many timeslices goes back to the top.
const BOOST_AFTER: u64 = 200;
/// Who consumes nothing for so many of its slices has used them up: it is ready but does nothing.
const PATIENCE: u64 = 4;

/// Multi-level feedback queue.
#[derive(Debug, Default)]
pub struct MultiLevelFeedback {
    meter: Meter,
    places: Ledger<TaskId, Option<Place>>,
    rules: Rules,
}

/// Where one task stands: the lowest place runs first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    level: u32,
    /// Order of arrival in its level.
    ticket: u64,
    /// Part of its slice that is used up.
    consumed: Nanos,
    last_ran: Nanos,
}

/// Who moves where.
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

    fn patience(&self, level: u32) -> Nanos {
        Nanos(self.slice(level).0 * PATIENCE)
    }

    fn ticket(&mut self) -> u64 {
        self.last_ticket += 1;
        self.last_ticket
    }

    fn top(&mut self, now: Nanos) -> Place {
        Place { level: 0, ticket: self.ticket(), consumed: Nanos::ZERO, last_ran: now }
    }

    /// One level down, or to the end of the line at the bottom.
    fn demote(&mut self, place: &mut Place) {
        place.level = (place.level + 1).min(LEVELS - 1);
        place.ticket = self.ticket();
    }

    /// Where a task stands that stood at `place` at the last decision and has consumed something since.
    fn moved(&mut self, now: Nanos, id: TaskId, mut place: Place, consumed: Nanos) -> Place {
        let quiet_since = self.running.filter(|&(running, _)| running == id).map(|(_, since)| since);
        if quiet_since.is_some() || consumed > Nanos::ZERO {
            place.last_ran = now;
        }
        if consumed > Nanos::ZERO {
            if quiet_since.is_some() {
                self.running = Some((id, now));
            }
            place.consumed += consumed;
            // A long command may be worth several slices. What is beyond the last counts for the next.
            while place.level < LEVELS - 1 && place.consumed >= self.slice(place.level) {
                place.consumed = place.consumed - self.slice(place.level);
                self.demote(&mut place);
            }
            if place.consumed >= self.slice(place.level) {
                place.consumed = Nanos(place.consumed.0 % self.slice(place.level).0);
                self.demote(&mut place);
            }
        } else if quiet_since.is_some_and(|since| now - since >= self.patience(place.level)) {
            place.consumed = Nanos::ZERO;
            self.demote(&mut place);
            self.running = None;
        } else if place.level > 0 && now - place.last_ran >= Nanos(self.slice(0).0 * BOOST_AFTER) {
            return self.top(now);
        }
        place
    }
}

impl Policy for MultiLevelFeedback {
    fn decide(&mut self, now: Nanos, tasks: &[TaskView], out: &mut Decision) {
        let Self { meter, places, rules } = self;
        let places = places.align(tasks.iter().map(|task| task.id), None);
        let (mut first, mut ready, mut runnable) = (None, 0, 0);
        for ((index, task), consumed) in tasks.iter().enumerate().zip(meter.read(tasks)) {
            let place = match places[index] {
                Some(place) => rules.moved(now, task.id, place, consumed),
                None => rules.top(now),
            };
            places[index] = Some(place);
            if may_run(task) {
                runnable += 1;
                if task.ready {
                    ready += 1;
                    first = first.into_iter().chain([(place, index)]).min();
                }
            }
        }
        let grant = if runnable == 1 { Grant::Unthrottled } else { Grant::Throttled };
        for (index, task) in tasks.iter().enumerate().filter(|(_, task)| may_run(task)) {
            let runs = first.is_none_or(|(place, chosen)| {
                // Who would take the place of the running one anyway may begin at once.
                let above = places[index].is_some_and(|own| own.level < place.level);
                chosen == index || (above && !task.ready)
            });
            if runs {
                out.grant(index, grant);
            }
        }
        rules.running = first.map(|(place, index)| {
            let id = tasks[index].id;
            let since = rules.running.filter(|&(running, _)| running == id).map_or(now, |(_, since)| since);
            if ready > 1 {
                let left = rules.slice(place.level) - place.consumed;
                let used_up = (since + left).max(now + Nanos(rules.slice(0).0 / FINEST_LOOK));
                out.again_at(used_up.min(since + rules.patience(place.level)));
            }
            (id, since)
        });
    }

    fn configure(&mut self, params: &Params) {
        self.rules.params = *params;
    }

    fn tracked(&self) -> usize {
        self.places.len()
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
        mlfq.places.rows()[index].unwrap().level
    }

    #[test]
    fn using_up_slices_demotes_and_each_is_twice_as_long() {
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
    fn a_newcomer_goes_before_long_work_and_long_work_is_not_forgotten() {
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
    fn an_idle_task_of_a_higher_level_may_begin_at_once() {
        let mut mlfq = MultiLevelFeedback::default();
        let (mut long, mut short) = (ready(1, priority(0)), ready(2, priority(0)));
        short.ready = false;
        grants(&mut mlfq, 0, &[long, short]);
        assert_eq!(grants(&mut mlfq, 0, &[long, short]), [Grant::Throttled, Grant::Hold]);
        long.used = Nanos::from_millis(6);
        assert_eq!(grants(&mut mlfq, 6_000, &[long, short]), [Grant::Throttled, Grant::Throttled]);
    }

    #[test]
    fn long_jobs_share_evenly_and_a_dud_sinks() {
        let mut device = Device::new(policy());
        device.closed_loop(700, 0, priority(0));
        device.closed_loop(300, 0, priority(0));
        assert_shares(&device.run_secs(20), &[50, 50], 1.0);
        let mut device = Device::new(policy());
        device.dud(priority(0));
        device.closed_loop(300, 0, priority(0));
        assert!(device.run_secs(20)[1] > 10.0);
    }

    #[test]
    fn a_task_that_does_nothing_has_the_patience_of_its_level_on_each() {
        let mut mlfq = MultiLevelFeedback::default();
        let (dud, mut long) = (ready(2, priority(0)), ready(1, priority(0)));
        grants(&mut mlfq, 0, &[long]);
        long.used = Nanos::from_millis(70);
        for (at_ms, expected) in [(0, 0), (19, 0), (20, 1), (59, 1), (60, 2)] {
            grants(&mut mlfq, at_ms * 1_000, &[long, dud]);
            assert_eq!(level(&mut mlfq, 1), expected, "at {at_ms} ms");
        }
    }
}
