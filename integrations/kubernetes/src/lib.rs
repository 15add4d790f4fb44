//! XSched on Kubernetes: a device plugin and a node agent in one program.
//!
//! ```text
//!   kubelet ◄─ Register, ListAndWatch, Allocate ─► plugin        API server ─ pods ─► agent ─ grants ─► service
//!      └─ PreStartContainer: waits until the agent has made the pod's grant ──────────┘
//! ```

pub mod agent;
pub mod api_server;
pub mod authority;
pub mod cgroups;
pub mod gpus;
pub mod grants;
pub mod options;
pub mod plugin;
pub mod pod;
pub mod pods;
pub mod progress;
pub mod proto;
pub mod quantity;
pub mod registration;
pub mod rights;
pub mod settings;

/// Writes a line to the program's log, which the cluster collects from its standard error.
pub fn log(message: &str) {
    eprintln!("xsched-kubernetes: {message}");
}
