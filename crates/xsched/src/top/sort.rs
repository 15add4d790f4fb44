//! How the tasks are sorted.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;

use xsched_ipc::protocol::TaskStatus;

use crate::rates::Rates;
use crate::users;

/// What the tasks are sorted by. Measurements are sorted from the highest, unless the order is reversed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sort {
    /// By device, the highest priority first.
    #[default]
    Device,
    Priority,
    Util,
    Held,
    Wait,
    Launch,
    Preempt,
    Memory,
    State,
    Name,
    User,
    Pid,
}

impl Sort {
    /// All, in the order of the key that changes the sorting.
    const ALL: [Self; 12] = [
        Self::Device,
        Self::Util,
        Self::Held,
        Self::Wait,
        Self::Memory,
        Self::Name,
        Self::User,
        Self::Pid,
        Self::Priority,
        Self::State,
        Self::Launch,
        Self::Preempt,
    ];

    /// The order after this one.
    pub(super) fn next(self) -> Self {
        let at = Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    /// Shown in the header.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Priority => "priority",
            Self::Util => "utilization",
            Self::Held => "held",
            Self::Wait => "wait",
            Self::Launch => "launches",
            Self::Preempt => "preemptions",
            Self::Memory => "memory",
            Self::State => "state",
            Self::Name => "name",
            Self::User => "user",
            Self::Pid => "pid",
        }
    }

    /// Sorts the tasks. Those that are equal stay sorted by device and priority.
    pub(super) fn sort(self, is_reversed: bool, tasks: &mut [&TaskStatus], rates: &HashMap<u64, Rates>) {
        tasks.sort_by_key(|task| (task.device, Reverse(task.priority), task.pid, task.task));
        let rate = |task: &TaskStatus, of: fn(&Rates) -> f64| rates.get(&task.task).map_or(-1.0, of);
        let from_highest = |of: fn(&Rates) -> f64| {
            move |a: &&TaskStatus, b: &&TaskStatus| rate(b, of).total_cmp(&rate(a, of))
        };
        match self {
            Self::Device => {}
            Self::Priority => tasks.sort_by_key(|task| Reverse(task.priority)),
            Self::Util => tasks.sort_by(from_highest(|rates| rates.utilization)),
            Self::Held => tasks.sort_by(from_highest(|rates| rates.held)),
            Self::Launch => tasks.sort_by(from_highest(|rates| rates.launches_per_s.unwrap_or(-1.0))),
            Self::Preempt => tasks.sort_by(from_highest(|rates| rates.preemptions_per_s)),
            Self::Wait => tasks.sort_by_key(|task| Reverse(task.wait_p99_us)),
            Self::Memory => tasks.sort_by_key(|task| Reverse(task.memory_bytes)),
            Self::State => tasks.sort_by_key(|task| task.state.name()),
            Self::Name => tasks.sort_by(|a, b| compare_names(&a.name, &b.name)),
            Self::User => tasks.sort_by_cached_key(|task| users::name_of(task.uid)),
            Self::Pid => tasks.sort_by_key(|task| task.pid),
        }
        if is_reversed {
            tasks.reverse();
        }
    }
}

fn compare_names(a: &str, b: &str) -> Ordering {
    a.to_lowercase().cmp(&b.to_lowercase())
}
