//! Scheduling policies, one file each, and a virtual-time simulator to try them in.

mod ledger;
pub mod policies;
mod policy;
mod scheduler;
pub mod simulate;

pub use policies::{POLICIES, PolicyInfo, UnknownPolicy};
pub use policy::{Decision, Grant, Params, Policy, Scope, TaskView};
pub use scheduler::Scheduler;
