//! What can go wrong, each with the thing it happened to.

use std::io;

use crate::model::{CONTEXTS, QUEUES};

/// Why a device could not be made or attached to. `what` is its path, or says that it came as a descriptor.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The operating system refused.
    #[error("{what}: cannot {deed}: {source}")]
    System {
        /// The device.
        what: String,
        /// What was attempted.
        deed: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Something else lies there.
    #[error("{what} is not a simulated device: {found} bytes, not {expected}")]
    Size {
        /// The file.
        what: String,
        /// Its length.
        found: u64,
        /// The length of a device.
        expected: u64,
    },
    /// It has the length of a device but not its first word.
    #[error("{what} is not a simulated device: it begins with {found:#018x}")]
    Magic {
        /// The file.
        what: String,
        /// Its first word.
        found: u64,
    },
    /// It was made by another version of this library.
    #[error("{what} has layout version {found}, this program knows {expected}: make the device anew")]
    Version {
        /// The device.
        what: String,
        /// Its version.
        found: u32,
        /// Ours.
        expected: u32,
    },
    /// No slot is left.
    #[error("{what} has {CONTEXTS} processes attached already, which is all it holds")]
    Full {
        /// The device.
        what: String,
    },
}

/// Why an attached device did not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// The caller is a child of the process that attached.
    #[error("{device} was attached by pid {owner}, not by its child {caller}: attach again in the child")]
    Forked {
        /// The device.
        device: String,
        /// Who attached.
        owner: u32,
        /// Who called.
        caller: u32,
    },
    /// The device no longer knows this process or queue.
    #[error("{device} no longer knows this queue: its process was taken for dead, or its file was made anew")]
    Gone {
        /// The device.
        device: String,
    },
    /// No queue is left.
    #[error("{device} has {QUEUES} queues open, which is all it holds")]
    TooManyQueues {
        /// The device.
        device: String,
    },
}
