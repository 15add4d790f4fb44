//! The policies: one file each, and the table that names them.

mod awf;
mod cfs;
mod chpf;
mod hhpf;
mod hpf;
mod kedf;
mod lax;
mod mlfq;
mod pup;
mod spup;
#[cfg(test)]
mod testing;
mod turns;
mod up;

pub use awf::ActiveWindowFirst;
pub use cfs::CompletelyFair;
pub use chpf::LowestNiceFirst;
pub use hhpf::MachineHighestPriorityFirst;
pub use hpf::HighestPriorityFirst;
pub use kedf::EarliestDeadlineFirst;
pub use lax::LaxityFirst;
pub use mlfq::MultiLevelFeedback;
pub use pup::ProcessUtilizationPartition;
pub use spup::StrictProcessUtilizationPartition;
pub use up::UtilizationPartition;

use crate::{Policy, Scope};

/// What it means that a policy lets throttled tasks of several processes run on a device at the same time.
///
/// Unthrottled tasks run together under both: no other task preempts them, so they share the device as it shares itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantMode {
    /// The policy does not decide between them. The pipeline runs one process at a time, in time slices of 50 ms.
    Exclusive,
    /// The policy chose each of them: they run together.
    Concurrent,
}

/// What the service finds out about processes only for policies that use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// CPU nice values, in [`TaskView::nice`](crate::TaskView::nice).
    pub nice: bool,
    /// The process whose window has the focus, in [`TaskView::focused`](crate::TaskView::focused).
    pub focus: bool,
}

impl Needs {
    /// Nothing.
    pub const NOTHING: Self = Self { nice: false, focus: false };
    /// CPU nice values.
    pub const NICE: Self = Self { nice: true, focus: false };
    /// The focused window.
    pub const FOCUS: Self = Self { nice: false, focus: true };
}

/// One policy as users and programs name it.
pub struct PolicyInfo {
    /// The reference interface's short name: `HPF`.
    pub name: &'static str,
    /// The word a person would type: `priority`.
    pub plain: &'static str,
    /// The reference interface's number.
    pub number: u32,
    /// What one instance decides for.
    pub scope: Scope,
    /// Whether some task may always run while there is work.
    pub work_conserving: bool,
    /// What it means that several throttled processes are granted the same device.
    pub grant_mode: GrantMode,
    /// What the policy has to be shown beside hints and device time.
    pub needs: Needs,
    /// Its rule in one line.
    pub summary: &'static str,
    /// Makes a fresh instance.
    pub make: fn() -> Box<dyn Policy>,
}

/// Every policy there is, in the order of the reference interface's numbers.
pub static POLICIES: &[PolicyInfo] = &[
    PolicyInfo {
        name: "HPF",
        plain: "priority",
        number: 1,
        scope: Scope::Device,
        work_conserving: true,
        grant_mode: GrantMode::Exclusive,
        needs: Needs::NOTHING,
        summary: "only the ready tasks of the highest ready priority run",
        make: || Box::new(HighestPriorityFirst),
    },
    PolicyInfo {
        name: "HHPF",
        plain: "priority-all",
        number: 2,
        scope: Scope::Machine,
        work_conserving: true,
        grant_mode: GrantMode::Exclusive,
        needs: Needs::NOTHING,
        summary: "the same across all devices of the machine",
        make: || Box::new(MachineHighestPriorityFirst),
    },
    PolicyInfo {
        name: "CHPF",
        plain: "nice",
        number: 3,
        scope: Scope::Device,
        work_conserving: true,
        grant_mode: GrantMode::Exclusive,
        needs: Needs::NICE,
        summary: "the ready tasks of the process with the lowest CPU nice value run",
        make: || Box::new(LowestNiceFirst),
    },
    PolicyInfo {
        name: "UP",
        plain: "share",
        number: 4,
        scope: Scope::Device,
        work_conserving: true,
        grant_mode: GrantMode::Exclusive,
        needs: Needs::NOTHING,
        summary: "tasks take turns in proportion to their share",
        make: || Box::<UtilizationPartition>::default(),
    },
    PolicyInfo {
        name: "PUP",
        plain: "share-process",
        number: 5,
        scope: Scope::Device,
        work_conserving: true,
        grant_mode: GrantMode::Exclusive,
        needs: Needs::NOTHING,
        summary: "processes take turns in proportion to their share",
        make: || Box::<ProcessUtilizationPartition>::default(),
    },
    PolicyInfo {
        name: "SPUP",
        plain: "quota",
        number: 6,
        scope: Scope::Device,
        work_conserving: false,
        grant_mode: GrantMode::Exclusive,
        needs: Needs::NOTHING,
        summary: "no process has more than its share, even if the device is idle",
        make: || Box::<StrictProcessUtilizationPartition>::default(),
    },
    PolicyInfo {
        name: "KEDF",
        plain: "deadline",
        number: 7,
        scope: Scope::Device,
        work_conserving: true,
        grant_mode: GrantMode::Concurrent,
        needs: Needs::NOTHING,
        summary: "the k ready tasks with the earliest deadlines run",
        make: || Box::<EarliestDeadlineFirst>::default(),
    },
    PolicyInfo {
        name: "LAX",
        plain: "laxity",
        number: 8,
        scope: Scope::Device,
        work_conserving: true,
        grant_mode: GrantMode::Exclusive,
        needs: Needs::NOTHING,
        summary: "a task has its lax priority until its laxity is used up, then its critical one",
        make: || Box::new(LaxityFirst),
    },
    PolicyInfo {
        name: "AWF",
        plain: "focus",
        number: 9,
        scope: Scope::Device,
        work_conserving: true,
        grant_mode: GrantMode::Exclusive,
        needs: Needs::FOCUS,
        summary: "tasks of the process with the focused window run, the rest while it is idle",
        make: || Box::new(ActiveWindowFirst),
    },
    PolicyInfo {
        name: "CFS",
        plain: "fair",
        number: 10,
        scope: Scope::Device,
        work_conserving: true,
        grant_mode: GrantMode::Exclusive,
        needs: Needs::NOTHING,
        summary: "the ready task that had least for its weight runs",
        make: || Box::<CompletelyFair>::default(),
    },
    PolicyInfo {
        name: "MLFQ",
        plain: "feedback",
        number: 11,
        scope: Scope::Device,
        work_conserving: true,
        grant_mode: GrantMode::Exclusive,
        needs: Needs::NOTHING,
        summary: "short work first: using up a slice demotes, waiting promotes",
        make: || Box::<MultiLevelFeedback>::default(),
    },
];

/// A name that is no policy's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy `{name}`: use one of {}", known())]
pub struct UnknownPolicy {
    /// What was asked for.
    pub name: String,
}

fn known() -> String {
    POLICIES.iter().map(|p| format!("{} ({})", p.plain, p.name)).collect::<Vec<_>>().join(", ")
}

impl PolicyInfo {
    /// Finds a policy by either of its names, in any case.
    pub fn find(name: &str) -> Result<&'static Self, UnknownPolicy> {
        POLICIES
            .iter()
            .find(|p| p.name.eq_ignore_ascii_case(name) || p.plain.eq_ignore_ascii_case(name))
            .ok_or_else(|| UnknownPolicy { name: name.to_owned() })
    }
}

impl std::fmt::Debug for PolicyInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.plain, self.name)
    }
}
