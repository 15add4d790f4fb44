//! A simulated accelerator in real time that several processes can share.
//!
//! ```text
//!   process A            process B            process C (xsched top, a test ...)
//!   launch, mark, wait   preempt, restore     usage, timeline
//!        └───────────────┬──┴──────────────────┘
//!              shared memory: lock + model
//!        "what was submitted" + "what time is it" = the state of the device
//! ```
//!
//! There is no daemon and no thread behind it. The state of the device is a function of what was submitted and of
//! time; whoever looks takes the lock and moves the model from its last event to now. So times of completion are those
//! of the model, not of who looked; a busy host does not blur them; and a process that is killed leaves nothing
//! running. What it leaves is cleaned up by the next one to look: its lock, its half-written update, its work.
//!
//! What it is for: testing schedulers end to end, with real processes and real waiting, on machines without an
//! accelerator, and with all three levels of preemption at any cost one likes to give them.
//!
//! Limits: 64 contexts and 256 queues per device, 1,023 commands per queue, 65,536 spans in the timeline. The
//! processes trust each other and live in one pid namespace. A process that calls exec keeps its context until it ends,
//! as its pid lives on.

mod board;
mod config;
mod device;
mod error;
mod lock;
mod model;
mod process;
mod queue;
mod segment;
mod sleep;

pub use config::Config;
pub use device::{SimDevice, Timeline};
pub use error::{AttachError, SimError};
pub use model::{Span, SpanKind, Usage};
pub use queue::SimQueue;
