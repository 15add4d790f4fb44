//! What a scheduled process and its scheduler share, and both sides of it.
//!
//! * [`page`]: the memory that a process shares with its scheduler.
//! * [`notifier`]: how a process wakes its scheduler.
//! * [`client`]: the process side: puts queues under the control of a scheduler. `scheduled_process`, `scheduled_queue`,
//!   `dependencies` and `heartbeat` hold its state; `enforcer` and `watcher` are its threads, started by `process_threads`; `service_link` and
//!   `service_connection` connect it to the service; `hinting` sends its hints.
//! * [`environment`], [`report`], [`threads`]: environment variables, log and threads inside a program.
//! * [`coordinator`]: the scheduler side, one decision at a time.
//! * [`local`]: the scheduler on a thread of the scheduled process.
//! * [`service`]: the scheduler for all processes of a user or of a machine.
//! * [`protocol`], [`socket`]: the messages between a process, a tool and the service. `socket_lock` makes a service the only one
//!   at its socket.
//! * [`tool`]: a tool's connection to the service.
//! * [`memory`]: the device memory of a process, and its limits. `sealed_memory` is what processes share.
//! * [`parking`]: the thread of a process that moves its device memory to the host and back.
//! * [`kfd_topology`]: which of AMD's GPUs is which device, for the library and the service.
//! * [`metrics`]: the metrics of the service for Prometheus.

pub mod client;
pub mod coordinator;
mod dependencies;
mod enforcer;
pub mod environment;
mod former_pages;
pub mod grant;
mod heartbeat;
mod hinting;
pub mod ignored_variables;
mod kernel_log;
pub mod kfd_topology;
pub mod local;
pub mod memory;
pub mod metrics;
pub mod notifier;
pub mod page;
pub mod parking;
mod process_threads;
pub mod protocol;
pub mod report;
mod sampler;
mod scheduled_process;
mod scheduled_queue;
mod sealed_memory;
pub mod service;
mod service_connection;
mod service_link;
pub mod socket;
mod socket_lock;
pub mod threads;
pub mod tool;
mod watcher;

pub use client::{Client, JoinError, SchedulerError};
pub use coordinator::{ClientId, Coordinator};
pub use environment::Environment;
pub use hinting::HintFailure;
pub use kernel_log::KernelName;
pub use local::LocalScheduler;
pub use notifier::Notifier;
pub use page::{Page, PageError};
pub use scheduled_queue::ScheduledQueue;
pub use service_link::ClientInfo;
