//! What a scheduled process and its scheduler share, and both sides of it.
//!
//! * [`page`]: the memory that a process shares with its scheduler.
//! * [`notifier`]: how a process wakes its scheduler.
//! * [`client`]: the process side: puts queues under the control of a scheduler. `scheduled_process`, `scheduled_queue` and
//!   `dependencies` hold its state; `enforcer` and `watcher` are its threads, started by `process_threads`; `service_link` and
//!   `service_connection` connect it to the service; `hinting` sends its hints.
//! * [`environment`], [`report`], [`threads`]: environment variables, log and threads inside a program.
//! * [`coordinator`]: the scheduler side, one decision at a time.
//! * [`local`]: the scheduler on a thread of the scheduled process.
//! * [`service`]: the scheduler for all processes of a user or of a machine.
//! * [`protocol`], [`socket`]: the messages between a process, a tool and the service.
//! * [`tool`]: a tool's connection to the service.
//! * [`metrics`]: the metrics of the service for Prometheus.

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
