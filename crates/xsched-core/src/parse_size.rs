//! Sizes of memory as users write them: a number and a binary unit.

/// The smallest size that [`parse_size`] accepts: a smaller one lacks its unit.
const MIN_SIZE: f64 = 1_048_576.0;

/// Reads a size of memory, such as `20G`, `512M`, `1.5GiB` or a number of bytes. Units are powers of 1024. At least 1 MiB. The
/// error is a text for the user.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let invalid = || format!("`{text}` is not a size such as 20G or 512M");
    let number: f64 = number.parse().map_err(|_| invalid())?;
    let scale = match unit.trim().to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return Err(format!("`{text}` has an unknown unit: use K, M, G or T, such as 20G")),
    };
    let bytes = number * (1_u64 << scale) as f64;
    if bytes < MIN_SIZE {
        return Err(format!(
            "`{text}` is less than 1M, the least that can be given: add a unit, such as 20G"
        ));
    }
    if bytes > 1e18 {
        return Err(format!("`{text}` is more memory than a device can have"));
    }
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the value is between 1 MiB and 1e18, checked above"
    )]
    Ok(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        for (text, bytes) in [
            ("20G", 20 << 30),
            ("3000m", 3000 << 20),
            ("1.5GiB", 3 << 29),
            ("8 MB", 8 << 20),
            ("2T", 2 << 40),
            ("1048576", 1 << 20),
            ("2097152b", 2 << 20),
            ("2048k", 2 << 20),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn invalid_sizes_are_rejected_with_what_to_write() {
        for (text, message) in [
            ("", "not a size"),
            ("G", "not a size"),
            ("-1G", "not a size"),
            ("1.2.3G", "not a size"),
            ("20X", "unknown unit"),
            ("20GG", "unknown unit"),
            ("0", "less than 1M"),
            ("20", "less than 1M"),
            ("1023K", "less than 1M"),
            ("999999999T", "more memory than"),
        ] {
            let error = parse_size(text).unwrap_err();
            assert!(error.contains(message), "{text}: {error}");
        }
    }
}
