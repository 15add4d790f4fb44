//! Hints: what a program or its user requests for a task. Constructors check the range of every value.

use std::fmt;
use std::str::FromStr;

use crate::time::Nanos;

/// Why a hint was rejected: the field, the value and the allowed range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {value} is out of range: allowed is {allowed}")]
pub struct HintError {
    /// The name of the hint.
    pub field: &'static str,
    /// The rejected value.
    pub value: String,
    /// The allowed range.
    pub allowed: &'static str,
}

fn reject<T>(field: &'static str, value: impl fmt::Display, allowed: &'static str) -> Result<T, HintError> {
    Err(HintError { field, value: value.to_string(), allowed })
}

/// The priority of a task: the higher number takes precedence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(i16);

impl Priority {
    /// The task never runs.
    pub const NO_EXECUTE: Self = Self(-256);
    /// The lowest priority at which a task runs.
    pub const MIN: Self = Self(-255);
    /// `low` on the command line.
    pub const LOW: Self = Self(-100);
    /// The priority of a task without this hint; `normal` on the command line.
    pub const DEFAULT: Self = Self(0);
    /// `high` on the command line.
    pub const HIGH: Self = Self(100);
    /// The highest priority.
    pub const MAX: Self = Self(255);

    const ALLOWED: &str = "-256 (never run) to 255, low, normal or high";

    /// Fails if the value is out of range.
    pub fn new(n: i64) -> Result<Self, HintError> {
        match i16::try_from(n) {
            Ok(p) if (Self::NO_EXECUTE.0..=Self::MAX.0).contains(&p) => Ok(Self(p)),
            _ => reject("priority", n, Self::ALLOWED),
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> i16 {
        self.0
    }
}

impl FromStr for Priority {
    type Err = HintError;
    fn from_str(s: &str) -> Result<Self, HintError> {
        match s.to_ascii_lowercase().as_str() {
            "low" => Ok(Self::LOW),
            "normal" => Ok(Self::DEFAULT),
            "high" => Ok(Self::HIGH),
            other => match other.parse() {
                Ok(n) => Self::new(n),
                Err(_) => reject("priority", format_args!("`{s}`"), Self::ALLOWED),
            },
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The requested part of a device's time, in percent. The shares of the tasks on a device are weights: they need not add up to
/// 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(u8);

impl Share {
    /// The share of a task without this hint.
    pub const DEFAULT: Self = Self(100);

    /// Fails if the value is out of range.
    pub fn new(percent: i64) -> Result<Self, HintError> {
        match u8::try_from(percent) {
            Ok(p) if p <= 100 => Ok(Self(p)),
            _ => reject("share", percent, "0 to 100 (percent)"),
        }
    }

    /// The share in percent.
    #[must_use]
    pub const fn percent(self) -> u8 {
        self.0
    }
}

impl Default for Share {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// How long one task has a device before the next, under policies with time slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timeslice(Nanos);

impl Timeslice {
    /// The time slice if none was set.
    pub const DEFAULT: Self = Self(Nanos::from_micros(5_000));

    /// Fails if the value is out of range. Microseconds, as in the original C++ XSched.
    pub fn from_micros(us: i64) -> Result<Self, HintError> {
        match u64::try_from(us) {
            Ok(n) if (100..=10_000_000).contains(&n) => Ok(Self(Nanos::from_micros(n))),
            _ => reject("timeslice", us, "100 to 10000000 (microseconds)"),
        }
    }

    /// The duration.
    #[must_use]
    pub const fn get(self) -> Nanos {
        self.0
    }
}

impl Default for Timeslice {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// How long after it arrived a task's work is to be complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deadline(Nanos);

impl Deadline {
    /// Fails if the value is out of range. Microseconds. A task without a deadline has no value of this type.
    pub fn from_micros(us: i64) -> Result<Self, HintError> {
        match u64::try_from(us) {
            Ok(n) if (1..=MAX_SPAN_US).contains(&n) => Ok(Self(Nanos::from_micros(n))),
            _ => reject("deadline", us, "1 to 86400000000 (microseconds)"),
        }
    }

    /// The duration.
    #[must_use]
    pub const fn get(self) -> Nanos {
        self.0
    }
}

/// One day: a longer duration is a mistake of unit.
const MAX_SPAN_US: u64 = 86_400_000_000;

/// How long a task's work may wait before it becomes critical, and its priority before and after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Laxity {
    /// How long the work may wait after it arrived.
    pub span: Nanos,
    /// The priority until then.
    pub lax: Priority,
    /// The priority afterwards.
    pub critical: Priority,
}

impl Laxity {
    /// Fails if one of the values is out of range. `span_us` in microseconds.
    pub fn new(span_us: i64, lax: i64, critical: i64) -> Result<Self, HintError> {
        let span = match u64::try_from(span_us) {
            Ok(n) if n <= MAX_SPAN_US => Nanos::from_micros(n),
            _ => return reject("laxity", span_us, "0 to 86400000000 (microseconds)"),
        };
        Ok(Self { span, lax: Priority::new(lax)?, critical: Priority::new(critical)? })
    }
}

/// All hints of one task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// The priority.
    pub priority: Priority,
    /// The requested part of the device's time.
    pub share: Share,
    /// When the work is to be complete.
    pub deadline: Option<Deadline>,
    /// How long the work may wait.
    pub laxity: Option<Laxity>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_cover_512_values_and_three_words() {
        assert_eq!(Priority::new(-256), Ok(Priority::NO_EXECUTE));
        assert_eq!(Priority::new(255), Ok(Priority::MAX));
        assert_eq!("high".parse(), Ok(Priority::HIGH));
        assert_eq!("-3".parse(), Priority::new(-3));
    }

    #[test]
    fn rejections_name_the_field_the_value_and_the_range() {
        for (error, expected) in [
            (
                Priority::new(256).unwrap_err(),
                "priority 256 is out of range: allowed is -256 (never run) to 255, low, normal or high",
            ),
            (
                "urgent".parse::<Priority>().unwrap_err(),
                "priority `urgent` is out of range: allowed is -256 (never run) to 255, low, normal or high",
            ),
            (Share::new(101).unwrap_err(), "share 101 is out of range: allowed is 0 to 100 (percent)"),
            (
                Timeslice::from_micros(99).unwrap_err(),
                "timeslice 99 is out of range: allowed is 100 to 10000000 (microseconds)",
            ),
            (
                Deadline::from_micros(0).unwrap_err(),
                "deadline 0 is out of range: allowed is 1 to 86400000000 (microseconds)",
            ),
            (
                Laxity::new(-1, 0, 0).unwrap_err(),
                "laxity -1 is out of range: allowed is 0 to 86400000000 (microseconds)",
            ),
        ] {
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn huge_numbers_do_not_wrap_into_the_range() {
        assert!(Priority::new(i64::from(u16::MAX) + 1).is_err());
        assert!(Share::new(256).is_err());
        assert!(Timeslice::from_micros(i64::MIN).is_err());
    }
}
