//! The policies: one file each, and the table that names them.

#[cfg(test)]
mod testing;
mod weighted_slices;

use crate::{Policy, Scope};

/// What it means that a policy lets throttled tasks of several processes run on a device at the same time.
///
/// Unthrottled tasks run together under both: no other task preempts them, so they share the device as it shares itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantMode {
    /// The policy does not decide between them. The pipeline runs one process at a time, in time slices of 200 ms.
    Exclusive,
    /// The policy chose each of them: they run together.
    Concurrent,
}

/// How a policy selects the tasks that run, which determines when a job that spans devices runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// By an order of tasks: a task is held only while tasks that precede it have work. Deciding twice at the same time with
    /// fewer ready tasks changes no later decision: the policy remembers nothing about tasks.
    Precedence,
    /// In rotation: each task is held from time to time, at different times on different devices.
    Rotation,
}

/// What the service finds out about processes only for policies that use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// CPU nice values, in [`TaskView::nice`](crate::TaskView::nice).
    pub nice: bool,
    /// The process whose window has the focus, in [`TaskView::focused`](crate::TaskView::focused).
    pub focus: bool,
    /// When a task that may start at once becomes busy and idle, also where the device preempts the other tasks for it by
    /// time slice.
    pub leader_reports: bool,
}

impl Needs {
    /// The hints of the tasks, and which tasks are ready.
    pub const NOTHING: Self = Self { nice: false, focus: false, leader_reports: true };
    /// The hints of the tasks alone: a leader that is busy changes only which tasks of lower precedence are held.
    pub const HINTS: Self = Self { leader_reports: false, ..Self::NOTHING };
    /// CPU nice values.
    pub const NICE: Self = Self { nice: true, ..Self::NOTHING };
    /// The focused window.
    pub const FOCUS: Self = Self { focus: true, ..Self::NOTHING };
}

/// One policy as users and programs name it.
pub struct PolicyInfo {
    /// The short name of the original C++ XSched: `HPF`.
    pub name: &'static str,
    /// The name that users type: `priority`.
    pub plain: &'static str,
    /// The number of the original C++ XSched, 1 to 11. Policies that it does not have are numbered from 100: its 12 is
    /// `kPolicyMax`, which is no policy.
    pub number: u32,
    /// Whether an instance decides for one device or for the machine.
    pub scope: Scope,
    /// Whether some task may always run while there is work.
    pub work_conserving: bool,
    /// What it means that several throttled processes are granted the same device.
    pub grant_mode: GrantMode,
    /// How the policy selects the tasks that run.
    pub selection: Selection,
    /// What the policy has to be shown beside hints and device time.
    pub needs: Needs,
    /// Its rule in one line.
    pub summary: &'static str,
    /// Creates an instance.
    pub make: fn() -> Box<dyn Policy>,
}

macro_rules! register {
    ( $( $file:ident, )* ) => {
        $( mod $file; )*

        /// All policies, in the order of their numbers.
        pub static POLICIES: &[PolicyInfo] = &[ $( $file::POLICY ),* ];
    };
}

// One line for each policy: its file.
register! {
    hpf,
    hhpf,
    chpf,
    up,
    pup,
    spup,
    kedf,
    lax,
    awf,
    cfs,
    mlfq,
    lottery,
}

/// No policy has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy `{name}`: use one of {}", known())]
pub struct UnknownPolicy {
    /// The name that was requested.
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
