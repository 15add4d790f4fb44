//! LOT, "lottery": each time slice goes to a ready task drawn at random, with one ticket for each percent of its share.
//!
//! ```text
//!   share  tickets
//!    60 %   1..60    A ██··██████··██████··██      a drawing for each slice:
//!    30 %  61..90    B ··██······██······██··      17 31 74 8 55 22 90 4 ...
//!    10 %  91..100   C ······················      in the long run each task has its share
//! ```
//!
//! A slice ends after the configured time, or when its holder has no work. Tasks with share 0 have no ticket; while no task
//! with a ticket is ready, they are drawn with equal chances. A task with priority -256 never runs.
//!
//! Use it when shares are to be met on average and a simple rule is worth more than exact shares. Not when waits must be
//! bounded: a task can lose many drawings in a row. Not when commands outlast slices: UP charges for that, a lottery does not.

use xsched_core::{Nanos, Priority, TaskId};

use crate::{Decision, Grant, GrantMode, Needs, Params, Policy, PolicyInfo, Scope, Selection, TaskView};

/// Its entry in the table of policies.
pub(super) const POLICY: PolicyInfo = PolicyInfo {
    name: "LOT",
    plain: "lottery",
    number: 100,
    scope: Scope::Device,
    work_conserving: true,
    grant_mode: GrantMode::Exclusive,
    selection: Selection::Rotation,
    needs: Needs::NOTHING,
    summary: "each time slice goes to a task drawn by its share",
    make: || Box::<Lottery>::default(),
};

/// Lottery scheduling. Remembers the holder of the running slice.
#[derive(Debug, Default)]
struct Lottery {
    params: Params,
    slice: Option<Slice>,
    random: Random,
}

#[derive(Clone, Copy, Debug)]
struct Slice {
    holder: TaskId,
    ends: Nanos,
}

impl Policy for Lottery {
    fn decide(&mut self, now: Nanos, tasks: &[TaskView], out: &mut Decision) {
        let can_run = |task: &&TaskView| task.hints.priority != Priority::NO_EXECUTE;
        let is_ready = |task: &&TaskView| can_run(task) && task.ready;
        let runs =
            if tasks.iter().filter(can_run).count() > 1 { Grant::Throttled } else { Grant::Unthrottled };

        let running = self.slice.filter(|slice| now < slice.ends);
        let holder =
            tasks.iter().filter(is_ready).find(|task| running.is_some_and(|it| it.holder == task.id));
        let winner = match holder {
            Some(holder) => Some(holder.id),
            None => self.random.draw(tasks.iter().filter(is_ready)),
        };
        self.slice = winner.map(|winner| match running {
            Some(slice) if holder.is_some() => slice,
            _ => Slice { holder: winner, ends: now + self.params.timeslice.get() },
        });

        for (index, task) in tasks.iter().enumerate() {
            // Without a winner no task has work: the first one that has may start at once.
            if can_run(&task) && winner.is_none_or(|winner| winner == task.id) {
                out.grant(index, runs);
            }
        }
        if let Some(slice) = self.slice.filter(|_| tasks.iter().filter(is_ready).count() > 1) {
            out.again_at(slice.ends);
        }
    }

    fn configure(&mut self, params: &Params) {
        self.params = *params;
    }

    fn tracked(&self) -> usize {
        usize::from(self.slice.is_some())
    }
}

/// The generator of Steele, Lea and Flood (2014). Its seed is fixed: the same history has the same winners.
#[derive(Debug, Default)]
struct Random(u64);

impl Random {
    /// Draws one of the tasks by their tickets.
    fn draw<'a>(&mut self, tasks: impl Iterator<Item = &'a TaskView> + Clone) -> Option<TaskId> {
        let sold: u64 = tasks.clone().map(tickets).sum();
        let count = tasks.clone().count() as u64;
        // Without any ticket, each task has one.
        let total = if sold > 0 { sold } else { count };
        let mut number = self.next().checked_rem(total)?;
        for task in tasks {
            let own = if sold > 0 { tickets(task) } else { 1 };
            if number < own {
                return Some(task.id);
            }
            number -= own;
        }
        None
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn tickets(task: &TaskView) -> u64 {
    task.hints.share.percent().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::testing::{Device, assert_shares, decide, grants, idle, ready, with_share};

    fn policy() -> Box<dyn Policy> {
        Box::<Lottery>::default()
    }

    #[test]
    fn busy_tasks_have_their_shares_in_the_long_run() {
        for shares in [&[50, 50][..], &[75, 25], &[60, 30, 10]] {
            let mut device = Device::new(policy());
            for &share in shares {
                device.closed_loop(500, 0, with_share(share));
            }
            assert_shares(&device.run_secs(60), shares, 2.0);
        }
    }

    #[test]
    fn winner_keeps_the_device_for_its_slice() {
        let (mut lottery, tasks) = (policy(), [ready(1, with_share(50)), ready(2, with_share(50))]);
        let first = decide(&mut *lottery, 0, &tasks);
        assert_eq!(first.next_look(), Some(Nanos::from_millis(5)));
        for at_us in [1, 2_000, 4_999] {
            assert_eq!(decide(&mut *lottery, at_us, &tasks), first);
        }
        let next = decide(&mut *lottery, 5_000, &tasks);
        assert_eq!(next.next_look(), Some(Nanos::from_millis(10)), "the next drawing");
    }

    #[test]
    fn holder_without_work_loses_its_slice_at_once() {
        let mut lottery = policy();
        let tasks = [ready(1, with_share(100)), ready(2, with_share(0))];
        assert_eq!(grants(&mut *lottery, 0, &tasks), [Grant::Throttled, Grant::Hold]);
        let tasks = [idle(1, tasks[0]), tasks[1]];
        assert_eq!(grants(&mut *lottery, 10, &tasks), [Grant::Hold, Grant::Throttled]);
    }

    #[test]
    fn tasks_without_tickets_are_drawn_with_equal_chances() {
        let mut device = Device::new(policy());
        (0..2).for_each(|_| device.closed_loop(500, 0, with_share(0)));
        assert_shares(&device.run_secs(60), &[50, 50], 2.0);
    }

    #[test]
    fn idle_tasks_may_start_at_once_while_no_task_has_work() {
        let tasks = [idle(1, with_share(50)), idle(2, with_share(50))];
        assert_eq!(grants(&mut *policy(), 0, &tasks), [Grant::Throttled, Grant::Throttled]);
    }
}
