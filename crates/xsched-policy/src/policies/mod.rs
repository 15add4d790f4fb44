//! The policies: one file each, and the table that names them.

mod hpf;

pub use hpf::HighestPriorityFirst;

use crate::{Policy, Scope};

/// One policy as people and programs name it.
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
    /// Its rule in one line.
    pub summary: &'static str,
    /// Makes a fresh instance.
    pub make: fn() -> Box<dyn Policy>,
}

/// Every policy there is, in the order of the reference interface's numbers.
pub static POLICIES: &[PolicyInfo] = &[PolicyInfo {
    name: "HPF",
    plain: "priority",
    number: 1,
    scope: Scope::Device,
    work_conserving: true,
    summary: "only the ready tasks of the highest ready priority run",
    make: || Box::new(HighestPriorityFirst),
}];

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
