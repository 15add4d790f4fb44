//! The null device: a template for new platforms, and a device without cost for tests and benchmarks.
//!
//! Its commands complete as soon as they are launched. It offers only level 1, because it never holds a command that could be
//! stopped.

use std::time::Duration;

use crate::hal::{HalError, HwQueue, Marker, Progress};
use crate::ids::DeviceId;
use crate::level::{Capabilities, Level, LevelRequest};
use crate::sync::{AtomicU64, Ordering};

/// A hardware queue without hardware.
#[derive(Debug)]
pub struct NullQueue {
    capabilities: Capabilities,
    completed: AtomicU64,
}

impl Default for NullQueue {
    fn default() -> Self {
        Self {
            capabilities: Capabilities::block_only("the null device", "it never holds a command"),
            completed: AtomicU64::new(0),
        }
    }
}

impl HwQueue for NullQueue {
    fn device(&self) -> DeviceId {
        DeviceId::default()
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mark(&self) -> Result<Marker, HalError> {
        // Everything launched before has completed. Release: pairs with the Acquire in `progress`.
        Ok(self.completed.fetch_add(1, Ordering::Release) + 1)
    }

    fn progress(&self) -> Progress {
        Progress { marker: self.completed.load(Ordering::Acquire), at: None }
    }

    fn wait(&self, marker: Marker, _timeout: Duration) -> Result<bool, HalError> {
        Ok(self.progress().marker >= marker)
    }

    fn synchronize(&self) -> Result<(), HalError> {
        Ok(())
    }

    fn preempt(&self, level: Level) -> Result<(), HalError> {
        self.capabilities.negotiate(LevelRequest::Exactly(level))?;
        Ok(())
    }

    fn restore(&self) -> Result<(), HalError> {
        Ok(())
    }
}
