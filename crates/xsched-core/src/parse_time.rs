//! Times as users write them: a number and a unit.

use crate::Nanos;

/// The longest time that [`parse_time`] accepts, in nanoseconds: one day.
const MAX_NANOS: u64 = 24 * 3_600_000_000_000;

/// What [`parse_time`] expects, for error messages.
pub const TIME_FORMAT: &str = "a time in quotes with its unit, such as \"500us\", \"2ms\" or \"1.5s\"";

/// Reads a time with its unit, such as `500us`, `2ms` or `1.5s`, up to 24 hours. The error is a text for the user.
pub fn parse_time(text: &str) -> Result<Nanos, String> {
    let text = text.trim();
    if text.starts_with('-') {
        return Err(format!("time `{text}` is negative: allowed is 0s to 24h"));
    }
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let scale = match unit.trim() {
        "ns" => 1.0,
        "us" | "µs" | "μs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "min" => 60e9,
        "h" => 3600e9,
        _ => return Err(format!("`{text}` is not a time: expected {TIME_FORMAT}")),
    };
    let number: f64 =
        number.parse().map_err(|_| format!("`{text}` is not a time: expected {TIME_FORMAT}"))?;
    let nanos = (number * scale).round();
    if nanos > MAX_NANOS as f64 {
        return Err(format!("time `{text}` is too long: allowed is 0s to 24h"));
    }
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the value is between 0 and one day, checked above"
    )]
    Ok(Nanos(nanos as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_with_units_are_accepted_and_malformed_ones_rejected() {
        for (text, nanos) in [
            ("500us", 500_000),
            ("2ms", 2_000_000),
            ("1.5 s", 1_500_000_000),
            ("0s", 0),
            ("1h", MAX_NANOS / 24),
        ] {
            assert_eq!(parse_time(text), Ok(Nanos(nanos)), "{text}");
        }
        for text in [
            "",
            "5",
            "ms",
            "1.2.3s",
            "5 parsecs",
            "-1ms",
            "25h",
            "1e9s",
            "NaNs",
            "infs",
            "99999999999999999999h",
        ] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }
}
