//! What programs and their scheduler share, and the two ends of it.
//!
//! * [`page`]: the memory they share, one page per program.
//! * [`notifier`]: how programs call the scheduler.
//! * [`client`]: the program's end; `hinting`: how its hints reach the scheduler.
//! * [`environment`], [`report`], [`threads`]: how to be a guest in a program: what its user asks for, what is said and
//!   to whom, and whose the signals are.
//! * [`coordinator`]: the scheduler's end, one round at a time.
//! * [`local`]: the scheduler on a thread of this process.
//! * [`metrics`]: what the service counts, as Prometheus reads it.
//! * [`service`]: the scheduler for all programs of a user or of a machine.
//! * [`protocol`], [`socket`]: what is said between a program, a tool and the service, and how.
//! * [`tool`]: a tool's end: asks, and is answered.

pub mod client;
pub mod coordinator;
mod dependencies;
mod enforcer;
pub mod environment;
mod hinting;
pub mod local;
pub mod metrics;
pub mod notifier;
pub mod page;
mod process_threads;
pub mod protocol;
pub mod report;
mod scheduled_process;
mod scheduled_queue;
pub mod service;
mod service_connection;
mod service_link;
pub mod socket;
pub mod threads;
pub mod tool;
mod watcher;

pub use client::{Client, JoinError, SchedulerError};
pub use coordinator::{ClientId, Coordinator};
pub use environment::Environment;
pub use hinting::HintFailure;
pub use local::LocalScheduler;
pub use notifier::Notifier;
pub use page::{Page, PageError};
pub use scheduled_queue::ScheduledQueue;
pub use service_link::ClientInfo;
