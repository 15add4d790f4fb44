//! The values of a simulation file, each checked where it is read, so that an error can name its line.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use xsched_core::{Deadline, Level, Nanos, Priority, Share, Timeslice, is_control};

/// A time as a simulation file writes it: a number and a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time(pub(crate) u64);

impl FromStr for Time {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        xsched_core::parse_time(s).map(|time| Self(time.0))
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_str(StringVisitor { expected: xsched_core::TIME_FORMAT, result: PhantomData })
    }
}

/// Reads a string by means of [`FromStr`].
struct StringVisitor<T> {
    expected: &'static str,
    result: PhantomData<T>,
}

impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for StringVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: de::Error>(self, s: &str) -> Result<T, E> {
        s.parse().map_err(E::custom)
    }
}

/// A time of at least `least` nanoseconds.
fn time_from<'de, D: Deserializer<'de>>(deserializer: D, least: u64) -> Result<u64, D::Error> {
    let time = Time::deserialize(deserializer)?.0;
    if time < least {
        let (time, least) = (Nanos(time), Nanos(least));
        return Err(de::Error::custom(format!("{time} is too short: allowed is {least} to 24h")));
    }
    Ok(time)
}

/// A command, a period or a slice, which must not be zero.
pub(crate) fn at_least_1us<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    time_from(deserializer, 1_000)
}

/// The duration of the simulation.
pub(crate) fn at_least_1ms<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    time_from(deserializer, 1_000_000)
}

/// Hints are in whole microseconds; a finer time is rejected, not rounded.
fn whole_micros<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    let time = Time::deserialize(deserializer)?.0;
    if time % 1_000 != 0 {
        return Err(de::Error::custom(format!("{time} ns is not a whole number of microseconds")));
    }
    i64::try_from(time / 1_000).map_err(de::Error::custom)
}

pub(crate) fn timeslice<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timeslice, D::Error> {
    Timeslice::from_micros(whole_micros(deserializer)?).map_err(de::Error::custom)
}

pub(crate) fn deadline<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Deadline>, D::Error> {
    Deadline::from_micros(whole_micros(deserializer)?).map(Some).map_err(de::Error::custom)
}

/// The span of a laxity, in microseconds; the hint checks the rest.
pub(crate) fn micros<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    whole_micros(deserializer)
}

pub(crate) fn share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Share, D::Error> {
    Share::new(i64::deserialize(deserializer)?).map_err(de::Error::custom)
}

pub(crate) fn level<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Level, D::Error> {
    let number = i64::deserialize(deserializer)?;
    Level::from_number(number)
        .ok_or_else(|| de::Error::custom(format!("level {number} does not exist: allowed is 1, 2 or 3")))
}

pub(crate) fn nice<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i8, D::Error> {
    let number = i64::deserialize(deserializer)?;
    i8::try_from(number)
        .ok()
        .filter(|n| (-20..=19).contains(n))
        .ok_or_else(|| de::Error::custom(format!("nice {number} is out of range: allowed is -20 to 19")))
}

/// A whole number from 1 to `MAX`.
pub(crate) fn count<'de, const MAX: u32, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let number = i64::deserialize(deserializer)?;
    u32::try_from(number)
        .ok()
        .filter(|n| (1..=MAX).contains(n))
        .ok_or_else(|| de::Error::custom(format!("{number} is out of range: allowed is 1 to {MAX}")))
}

/// The spread of a lognormal distribution; beyond 5 almost all lengths would be absurd.
pub(crate) fn sigma<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let sigma = f64::deserialize(deserializer)?;
    if (0.0..=5.0).contains(&sigma) {
        return Ok(sigma);
    }
    Err(de::Error::custom(format!("sigma {sigma} is out of range: allowed is 0 to 5")))
}

/// The name of a device, a machine, a process or a task. It is shown in tables, so it must not be empty and must fit one line.
pub(crate) fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    if name.is_empty() || name.len() > 64 || name.chars().any(is_control) {
        return Err(de::Error::custom(format!("name {name:?} is not usable: allowed is 1 to 64 characters")));
    }
    Ok(name)
}

pub(crate) fn optional_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    name(deserializer).map(Some)
}

/// A priority as a number or a name.
pub(crate) fn priority<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Priority, D::Error> {
    struct NumberOrName;
    impl Visitor<'_> for NumberOrName {
        type Value = Priority;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a priority: -256 (never run) to 255, \"low\", \"normal\" or \"high\"")
        }

        fn visit_i64<E: de::Error>(self, n: i64) -> Result<Priority, E> {
            Priority::new(n).map_err(E::custom)
        }

        fn visit_str<E: de::Error>(self, s: &str) -> Result<Priority, E> {
            s.parse().map_err(E::custom)
        }
    }
    deserializer.deserialize_any(NumberOrName)
}
