//! Quantities as Kubernetes writes them: `20Gi`, `1.5G`, `1000000`.

/// The factor of a suffix.
fn factor(suffix: &str) -> Option<f64> {
    const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    const DECIMAL: [&str; 6] = ["k", "M", "G", "T", "P", "E"];
    let power = |list: [&str; 6], base: f64| {
        let position = list.iter().position(|known| *known == suffix)?;
        Some(base.powi(i32::try_from(position).ok()? + 1))
    };
    if suffix.is_empty() {
        return Some(1.0);
    }
    power(BINARY, 1_024.0).or_else(|| power(DECIMAL, 1_000.0))
}

/// Parses a quantity, rounded down to a whole number.
pub fn parse(text: &str) -> Result<u64, String> {
    let invalid = || format!("{text:?} is not a quantity: write it as 20Gi, 20G or 500M");
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let factor = factor(suffix).ok_or_else(invalid)?;
    // Whole numbers are exact; a fraction such as 1.5Gi needs no more than the 53 bits of a floating-point number.
    if let Ok(whole) = number.parse::<u64>()
        && suffix.is_empty()
    {
        return Ok(whole);
    }
    let value = number.parse::<f64>().map_err(|_| invalid())? * factor;
    if !value.is_finite() || value >= 18e18 {
        return Err(invalid());
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and below 2^64")]
    Ok(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_parsed_as_in_kubernetes() {
        for (text, value) in [
            ("0", 0),
            ("1000", 1_000),
            ("18446744073709551615", u64::MAX),
            ("2k", 2_000),
            ("20G", 20_000_000_000),
            ("20Gi", 20 << 30),
            ("1.5Mi", 3 << 19),
            ("0.5", 0),
        ] {
            assert_eq!(parse(text), Ok(value), "{text}");
        }
        for text in ["", "G", "-1", "1 G", "1g", "1GB", "1e400", "1..5", "99999E"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
