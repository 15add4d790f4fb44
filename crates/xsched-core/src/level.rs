//! How deep the accelerator can be taken away from a queue, and what happens when more is asked for than there is.

use std::fmt;
use std::str::FromStr;

use crate::time::Nanos;

/// How much of a queue's work a suspension reaches. Values are those of the reference interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// Commands that have not been launched.
    Block = 1,
    /// Commands that sit in the hardware queue.
    Deactivate = 2,
    /// The command that is running.
    Interrupt = 3,
}

impl Level {
    /// All levels, lowest first.
    pub const ALL: [Self; 3] = [Self::Block, Self::Deactivate, Self::Interrupt];

    /// The level with this number, if there is one.
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

/// What a user asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LevelRequest {
    /// The highest level the device really has.
    #[default]
    Auto,
    /// This one, or an error.
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

/// Why a level cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LevelError {
    /// There is no such level on any device.
    #[error("level `{0}` does not exist: use auto, 1, 2 or 3")]
    NoSuchLevel(String),
    /// The device stops short of it.
    #[error("{device} supports level {has}, not {wanted}: {reason}")]
    NotSupported {
        /// The device, in words.
        device: String,
        /// The highest level it has.
        has: u8,
        /// The level asked for.
        wanted: u8,
        /// What is missing.
        reason: String,
    },
}

/// What one level is worth on a device: how long taking and giving back last once asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelCost {
    /// From the request until the device has stopped.
    pub preempt: Nanos,
    /// From the request until it runs again.
    pub restore: Nanos,
}

/// The levels a device has, with the reason for each it lacks. Level 1 needs nothing from the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    device: String,
    deactivate: Result<LevelCost, String>,
    interrupt: Result<LevelCost, String>,
}

impl Capabilities {
    /// A device with level 1 alone. `device` names it in messages, `reason` says why there is no more.
    #[must_use]
    pub fn block_only(device: impl Into<String>, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self { device: device.into(), deactivate: Err(reason.clone()), interrupt: Err(reason) }
    }

    /// The same device with level 2 as well, or with a reason of its own for lacking it.
    #[must_use]
    pub fn with_deactivate(mut self, has: Result<LevelCost, String>) -> Self {
        self.deactivate = has;
        self
    }

    /// The same device with level 3 as well, or with a reason of its own for lacking it.
    #[must_use]
    pub fn with_interrupt(mut self, has: Result<LevelCost, String>) -> Self {
        self.interrupt = has;
        self
    }

    /// The device, in words.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// What `level` costs here, or why it cannot be had.
    pub fn cost(&self, level: Level) -> Result<LevelCost, &str> {
        match level {
            Level::Block => Ok(LevelCost::default()),
            Level::Deactivate => self.deactivate.as_ref().copied().map_err(String::as_str),
            Level::Interrupt => self.interrupt.as_ref().copied().map_err(String::as_str),
        }
    }

    /// The highest level the device has.
    #[must_use]
    pub fn highest(&self) -> Level {
        *Level::ALL.iter().rev().find(|level| self.cost(**level).is_ok()).unwrap_or(&Level::Block)
    }

    /// Settles what was asked for against what there is. Never answers with less than was asked for.
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
    fn auto_takes_the_highest_level_there_is() {
        assert_eq!(stalls_only().negotiate(LevelRequest::Auto), Ok(Level::Deactivate));
        assert_eq!(Capabilities::block_only("d", "r").negotiate(LevelRequest::Auto), Ok(Level::Block));
    }

    #[test]
    fn more_than_there_is_names_the_device_its_level_and_the_reason() {
        let error = stalls_only().negotiate(LevelRequest::Exactly(Level::Interrupt)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "device 0000:00:06.0 supports level 2, not 3: no channel handles were seen (is the library preloaded?)"
        );
    }

    #[test]
    fn a_gap_below_the_highest_level_is_still_a_gap() {
        let odd = Capabilities::block_only("d", "no stall points").with_interrupt(Ok(LevelCost::default()));
        assert_eq!(odd.negotiate(LevelRequest::Auto), Ok(Level::Interrupt));
        assert!(odd.negotiate(LevelRequest::Exactly(Level::Deactivate)).is_err());
    }

    #[test]
    fn what_a_person_types_is_checked() {
        assert_eq!("auto".parse(), Ok(LevelRequest::Auto));
        assert_eq!("3".parse(), Ok(LevelRequest::Exactly(Level::Interrupt)));
        let error = "4".parse::<LevelRequest>().unwrap_err();
        assert_eq!(error.to_string(), "level `4` does not exist: use auto, 1, 2 or 3");
    }
}
