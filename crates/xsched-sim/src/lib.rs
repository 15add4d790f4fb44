//! A simulated accelerator in real time that several processes can share.
//!
//! ```text
//!   process A            process B            process C (xsched top, a test ...)
//!   launch, mark, wait   preempt, restore     usage, timeline
//!        └───────────────┬──┴──────────────────┘
//!              shared memory: lock + model
//!      what was submitted + the current time = the state of the device
//! ```
//!
//! The device needs neither a daemon nor a thread. Its state follows from what was submitted and from the current time:
//! each access takes the lock and advances the model from its last event to now. Three properties follow:
//! - Completion times are those of the model: they depend neither on when a process reads them nor on the host's load.
//! - A process that is killed leaves nothing running.
//! - The next access by another process cleans up after a killed process: its lock, its half-written update, its work.
//!
//! It serves to test schedulers end to end on machines without an accelerator: with real processes, real waiting, and
//! all three preemption levels at configurable costs.
//!
//! Limits: 64 contexts and 256 queues per device, 1,023 commands per queue, 65,536 spans in the timeline. The
//! processes trust each other and share one pid namespace. A process that calls exec keeps its context until it exits,
//! because its pid stays the same.

mod config;
mod device;
mod error;
mod lock;
mod model;
mod notifier;
mod process;
mod queue;
mod reports;
mod segment;

pub use config::Config;
pub use device::{SimDevice, Timeline};
pub use error::{AttachError, SimError};
pub use model::{Span, SpanKind, Usage};
pub use queue::SimQueue;
