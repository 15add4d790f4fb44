//! The errors, each with the device or file that it concerns.

use std::io;

use crate::model::{MAX_CONTEXTS, MAX_QUEUES};

/// Why a device could not be created or attached to. `what` is its path, or states that it came as a descriptor.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// A system call failed.
    #[error("{what}: cannot {operation}: {source}")]
    System {
        /// The device.
        what: String,
        /// The operation that failed.
        operation: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The file is something else.
    #[error("{what} is not a simulated device: {found} bytes, not {expected}")]
    Size {
        /// The file.
        what: String,
        /// Its length.
        found: u64,
        /// The length of a device.
        expected: u64,
    },
    /// The file has the length of a device but not its first word.
    #[error("{what} is not a simulated device: it begins with {found:#018x}")]
    Magic {
        /// The file.
        what: String,
        /// Its first word.
        found: u64,
    },
    /// The device was created by another version of this library.
    #[error("{what} has layout version {found}, this program supports {expected}: create the device again")]
    Version {
        /// The device.
        what: String,
        /// Its version.
        found: u32,
        /// The version that this program supports.
        expected: u32,
    },
    /// No context is left.
    #[error("{what} has {MAX_CONTEXTS} processes attached already, which is all it holds")]
    Full {
        /// The device.
        what: String,
    },
}

/// Why an operation on an attached device failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// The caller is a child of the process that attached.
    #[error("{device} was attached by pid {owner}, not by its child {caller}: attach again in the child")]
    Forked {
        /// The device.
        device: String,
        /// The process that attached.
        owner: u32,
        /// The process that called.
        caller: u32,
    },
    /// The device has removed this process or queue.
    #[error("{device} has no such queue: its process was found dead, or the device's file was created again")]
    Gone {
        /// The device.
        device: String,
    },
    /// No queue slot is left.
    #[error("{device} has {MAX_QUEUES} queues open, which is all it holds")]
    TooManyQueues {
        /// The device.
        device: String,
    },
}
