//! Preemption levels: how far a queue can be preempted, and what happens if a device lacks the requested level.

use std::fmt;
use std::str::FromStr;

use crate::time::Nanos;

/// How far a queue is preempted. The values are those of the original C++ XSched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// Commands that have not been launched: launching threads wait.
    Block = 1,
    /// Commands in the hardware queue that have not started.
    Deactivate = 2,
    /// The running command too.
    Interrupt = 3,
}

impl Level {
    /// All levels, lowest first.
    pub const ALL: [Self; 3] = [Self::Block, Self::Deactivate, Self::Interrupt];

    /// The level with this number.
    #[must_use]
    pub const fn from_number(n: i64) -> Option<Self> {
        match n {
            1 => Some(Self::Block),
            2 => Some(Self::Deactivate),
            3 => Some(Self::Interrupt),
            _ => None,
        }
    }

    /// 1, 2 or 3.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "level {}", self.number())
    }
}

/// The level that a user requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LevelRequest {
    /// The highest level that the device offers.
    #[default]
    Auto,
    /// This level, or an error.
    Exactly(Level),
}

impl fmt::Display for LevelRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Exactly(level) => level.number().fmt(f),
        }
    }
}

impl FromStr for LevelRequest {
    type Err = LevelError;
    fn from_str(s: &str) -> Result<Self, LevelError> {
        if s.eq_ignore_ascii_case("auto") {
            return Ok(Self::Auto);
        }
        s.parse()
            .ok()
            .and_then(Level::from_number)
            .map(Self::Exactly)
            .ok_or_else(|| LevelError::NoSuchLevel(s.to_owned()))
    }
}

/// Why a requested level is not available.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LevelError {
    /// No device has such a level.
    #[error("level `{0}` does not exist: use auto, 1, 2 or 3")]
    NoSuchLevel(String),
    /// The device does not offer it.
    #[error("{device} supports level {has}, not {wanted}: {reason}")]
    NotSupported {
        /// The device's name for messages.
        device: String,
        /// The highest level that it offers.
        has: u8,
        /// The requested level.
        wanted: u8,
        /// What is missing.
        reason: String,
    },
}

/// How long preempting and resuming take at one level of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelCost {
    /// From the request until the device has stopped the queue.
    pub preempt: Nanos,
    /// From the request until the queue runs again.
    pub restore: Nanos,
}

/// The levels that a device offers, and the reason for each that it lacks. Level 1 needs nothing from the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    device: String,
    deactivate: Result<LevelCost, String>,
    interrupt: Result<LevelCost, String>,
}

impl Capabilities {
    /// A device that offers only level 1. `device` is its name for messages, `reason` states what the other levels lack.
    #[must_use]
    pub fn block_only(device: impl Into<String>, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self { device: device.into(), deactivate: Err(reason.clone()), interrupt: Err(reason) }
    }

    /// The same device with level 2, or with the reason why it lacks it.
    #[must_use]
    pub fn with_deactivate(mut self, has: Result<LevelCost, String>) -> Self {
        self.deactivate = has;
        self
    }

    /// The same device with level 3, or with the reason why it lacks it.
    #[must_use]
    pub fn with_interrupt(mut self, has: Result<LevelCost, String>) -> Self {
        self.interrupt = has;
        self
    }

    /// The device's name for messages.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// What `level` costs on this device, or why the device lacks it.
    pub fn cost(&self, level: Level) -> Result<LevelCost, &str> {
        match level {
            Level::Block => Ok(LevelCost::default()),
            Level::Deactivate => self.deactivate.as_ref().copied().map_err(String::as_str),
            Level::Interrupt => self.interrupt.as_ref().copied().map_err(String::as_str),
        }
    }

    /// The highest level that the device offers.
    #[must_use]
    pub fn highest(&self) -> Level {
        *Level::ALL.iter().rev().find(|level| self.cost(**level).is_ok()).unwrap_or(&Level::Block)
    }

    /// Returns the level in force for a request. Never returns a lower level than the requested one.
    pub fn negotiate(&self, request: LevelRequest) -> Result<Level, LevelError> {
        match request {
            LevelRequest::Auto => Ok(self.highest()),
            LevelRequest::Exactly(level) => match self.cost(level) {
                Ok(_) => Ok(level),
                Err(reason) => Err(LevelError::NotSupported {
                    device: self.device.clone(),
                    has: self.highest().number(),
                    wanted: level.number(),
                    reason: reason.to_owned(),
                }),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stalls_only() -> Capabilities {
        Capabilities::block_only(
            "device 0000:00:06.0",
            "no channel handles were seen (is the library preloaded?)",
        )
        .with_deactivate(Ok(LevelCost::default()))
    }

    #[test]
    fn auto_selects_the_highest_level_of_the_device() {
        assert_eq!(stalls_only().negotiate(LevelRequest::Auto), Ok(Level::Deactivate));
        assert_eq!(Capabilities::block_only("d", "r").negotiate(LevelRequest::Auto), Ok(Level::Block));
    }

    #[test]
    fn missing_level_is_rejected_with_the_device_its_level_and_the_reason() {
        let error = stalls_only().negotiate(LevelRequest::Exactly(Level::Interrupt)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "device 0000:00:06.0 supports level 2, not 3: no channel handles were seen (is the library preloaded?)"
        );
    }

    #[test]
    fn level_below_the_highest_can_be_missing() {
        let no_level_2 =
            Capabilities::block_only("d", "no stall points").with_interrupt(Ok(LevelCost::default()));
        assert_eq!(no_level_2.negotiate(LevelRequest::Auto), Ok(Level::Interrupt));
        assert!(no_level_2.negotiate(LevelRequest::Exactly(Level::Deactivate)).is_err());
    }

    #[test]
    fn typed_level_is_checked() {
        assert_eq!("auto".parse(), Ok(LevelRequest::Auto));
        assert_eq!("3".parse(), Ok(LevelRequest::Exactly(Level::Interrupt)));
        let error = "4".parse::<LevelRequest>().unwrap_err();
        assert_eq!(error.to_string(), "level `4` does not exist: use auto, 1, 2 or 3");
    }
}
