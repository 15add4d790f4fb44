//! The grants in force, and which of them a process has.
//!
//! ```text
//!   token in the join request ─► the grant with this token
//!   /proc/PID/cgroup ──────────► the grant of the longest path that is one of the process's groups or above one of them
//! ```
//!
//! A token takes precedence: a process presents it explicitly. Grants for another user do not count.

mod apply;
mod cgroups;
mod confinement;
mod handlers;
mod listing;
mod store;
mod table;
mod token;
mod watcher;

pub(super) use self::cgroups::{Mounts, ProcessGroups};
pub(super) use self::confinement::Confinement;
pub(super) use self::store::Store;
pub(super) use self::table::{Entry, GrantId, Grants};
pub(super) use self::token::TokenHash;
pub(super) use self::watcher::GroupWatcher;

use super::rules::Glob;

/// The section `[grants]` of the configuration.
#[derive(Clone, Debug, Default)]
pub struct GrantOptions {
    /// Processes in these control groups are no administrators, whatever their user, also without a grant.
    pub confine: Vec<Glob>,
    /// Members of this group may give and revoke grants, besides the administrators.
    pub group: Option<u32>,
}
