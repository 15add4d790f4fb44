//! Scheduling policies, one file each, and the pipeline that turns their grants into orders.

mod ledger;
pub mod pipeline;
pub mod policies;
mod policy;
mod scheduler;

pub use pipeline::{Dependency, JobId, LaunchedWork, Pipeline, Snapshot, TaskStatus, Transition};
pub use policies::{GrantMode, Needs, POLICIES, PolicyInfo, Selection, UnknownPolicy};
pub use policy::{Decision, Grant, Params, Policy, Scope, TaskView};
pub use scheduler::Scheduler;
