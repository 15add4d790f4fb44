//! Scheduling policies, one file each.

mod ledger;
pub mod policies;
mod policy;
mod scheduler;

pub use policies::{POLICIES, PolicyInfo, UnknownPolicy};
pub use policy::{Decision, Grant, Params, Policy, Scope, TaskView};
pub use scheduler::Scheduler;
