//! Scheduling policies, one file each, and a virtual-time simulator to try them in.

pub mod policies;
mod policy;

pub use policies::{POLICIES, PolicyInfo, UnknownPolicy};
pub use policy::{Decision, Grant, Params, Policy, Scope, TaskView};
