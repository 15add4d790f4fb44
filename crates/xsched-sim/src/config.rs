//! What a simulated device is like.

use xsched_core::{Capabilities, DeviceId, DeviceKind, LevelCost, Nanos};

/// The properties of a simulated device, fixed when it is made.
///
/// The default resembles a large GPU: slices of 2 ms between processes, 0.18 ms to change from one to another, and
/// all three levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// What the device is called.
    pub device: DeviceId,
    /// How long a process keeps the device while others want it; 10 us at least.
    pub slice: Nanos,
    /// How long changing from one process to another takes.
    pub switch_cost: Nanos,
    /// What stopping queued commands costs; none if the device cannot (level 2).
    pub deactivate: Option<LevelCost>,
    /// What stopping the running command costs; none if the device cannot (level 3).
    pub interrupt: Option<LevelCost>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            device: DeviceId::new(DeviceKind::Unknown, 0),
            slice: Nanos::from_millis(2),
            switch_cost: Nanos::from_micros(180),
            deactivate: Some(LevelCost { preempt: Nanos::from_micros(10), restore: Nanos::from_micros(10) }),
            interrupt: Some(LevelCost { preempt: Nanos::from_micros(100), restore: Nanos::from_micros(50) }),
        }
    }
}

impl Config {
    /// The device in words, as messages name it.
    #[must_use]
    pub fn name(&self) -> String {
        format!("simulated device {}", self.device)
    }

    /// The levels of the device, as the core asks for them.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        let lacks = || "it was made without".to_owned();
        Capabilities::block_only(self.name(), lacks())
            .with_deactivate(self.deactivate.ok_or_else(lacks))
            .with_interrupt(self.interrupt.ok_or_else(lacks))
    }
}
