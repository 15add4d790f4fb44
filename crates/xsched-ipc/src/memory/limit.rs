//! Limits of device memory, as users write them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use xsched_core::parse_size;

/// The most that a program and its children may allocate together on each device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryLimit {
    /// In bytes.
    Bytes(u64),
    /// In percent of the device's memory.
    Percent(u8),
}

impl MemoryLimit {
    /// In bytes, on a device with `total` bytes.
    #[must_use]
    pub fn bytes(self, total: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.min(total),
            Self::Percent(percent) => {
                let bytes = u128::from(total) * u128::from(percent.min(100)) / 100;
                u64::try_from(bytes).unwrap_or(total)
            }
        }
    }
}

impl FromStr for MemoryLimit {
    type Err = String;

    /// A size such as `20G` or a number of bytes, or a percentage of the device such as `50%`.
    fn from_str(text: &str) -> Result<Self, String> {
        let Some(percent) = text.trim().strip_suffix('%') else { return parse_size(text).map(Self::Bytes) };
        match percent.trim_end().parse() {
            Ok(percent @ 1..=100) => Ok(Self::Percent(percent)),
            _ => Err(format!("`{text}` is not a part of the device's memory: allowed is 1% to 100%")),
        }
    }
}

/// The units of sizes, from the largest.
const UNITS: [(u64, &str); 4] = [(1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];

impl fmt::Display for MemoryLimit {
    /// The exact value, as it can be parsed: `20G`, `1536M`, `50%`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => match UNITS.into_iter().find(|(size, _)| bytes % size == 0) {
                Some((size, unit)) => write!(f, "{}{unit}", bytes / size),
                None => write!(f, "{bytes}"),
            },
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// A size for people, with at most one decimal place: `20G`, `1.5G`.
#[must_use]
pub fn format_size(bytes: u64) -> String {
    let Some((size, unit)) = UNITS.into_iter().find(|(size, _)| bytes >= *size) else {
        return bytes.to_string();
    };
    let tenths = u128::from(bytes) * 10 / u128::from(size);
    match (tenths / 10, tenths % 10) {
        (whole, 0) => format!("{whole}{unit}"),
        (whole, tenth) => format!("{whole}.{tenth}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_sizes_or_percentages() {
        assert_eq!("20G".parse(), Ok(MemoryLimit::Bytes(20 << 30)));
        assert_eq!(" 50 %".parse(), Ok(MemoryLimit::Percent(50)));
        for invalid in ["0%", "101%", "-5%", "half%", "%", "0", "20X"] {
            assert!(invalid.parse::<MemoryLimit>().is_err(), "{invalid}");
        }
        assert_eq!(MemoryLimit::Percent(50).bytes(100), 50);
        assert_eq!(MemoryLimit::Percent(100).bytes(u64::MAX), u64::MAX);
        assert_eq!(MemoryLimit::Bytes(200).bytes(100), 100);
    }

    #[test]
    fn limits_are_shown_exactly_and_sizes_briefly() {
        for text in ["20G", "1536M", "2T", "1048577", "50%"] {
            assert_eq!(text.parse::<MemoryLimit>().unwrap().to_string(), text);
        }
        let brief = [0, (3 << 30) - 1, 3 << 29, 20 << 30].map(format_size);
        assert_eq!(brief, ["0", "2.9G", "1.5G", "20G"]);
    }
}
