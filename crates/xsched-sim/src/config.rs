//! The properties of a simulated device.

use xsched_core::{Capabilities, DeviceId, DeviceKind, LevelCost, Nanos};

/// The properties of a simulated device, fixed when it is created.
///
/// The default resembles a large GPU: time slices of 2 ms between processes, 0.18 ms for a context switch, and all
/// three preemption levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The device's id.
    pub device: DeviceId,
    /// The time slice: how long a process has the device while another process has work for it; at least 10 us.
    pub slice: Nanos,
    /// How long a context switch from one process to another takes.
    pub switch_cost: Nanos,
    /// What stopping queued commands (level 2) costs; none if the device lacks that level.
    pub deactivate: Option<LevelCost>,
    /// What stopping the running command (level 3) costs; none if the device lacks that level.
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
    /// The device's name in error messages.
    #[must_use]
    pub fn name(&self) -> String {
        format!("simulated device {}", self.device)
    }

    /// The preemption levels of the device.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        let lacks = || "it was created without".to_owned();
        Capabilities::block_only(self.name(), lacks())
            .with_deactivate(self.deactivate.ok_or_else(lacks))
            .with_interrupt(self.interrupt.ok_or_else(lacks))
    }
}
