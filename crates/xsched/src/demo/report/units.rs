//! Numbers with three digits and a unit.
//!
//! Number and unit are joined by a no-break space; [`plain`] replaces it for terminals and JSON.

const NO_BREAK: char = '\u{a0}';

/// A time: `250 µs`, `10.1 ms`, `1.25 s`.
pub(crate) fn duration(us: f64) -> String {
    // The bounds are where rounding to three digits reaches the next unit.
    let (value, unit) = if us < 999.5 {
        (us, "µs")
    } else if us < 999_500.0 {
        (us / 1e3, "ms")
    } else {
        (us / 1e6, "s")
    };
    format!("{}{NO_BREAK}{unit}", three_digits(value))
}

/// A multiple without its sign: `1.04`, `27.5`, `140`.
pub(crate) fn times(ratio: f64) -> String {
    three_digits(ratio)
}

/// A part of a whole in percent; a part below 99.95 % is never rounded to 100 %.
pub(crate) fn percent(part: f64) -> String {
    if (0.995..0.9995).contains(&part) {
        return fine_percent(part);
    }
    format!("{:.0}{NO_BREAK}%", part * 100.0)
}

/// A part of a whole in percent, with one decimal.
pub(crate) fn fine_percent(part: f64) -> String {
    format!("{:.1}{NO_BREAK}%", part * 100.0)
}

/// `text` with ordinary spaces only.
pub(crate) fn plain(text: &str) -> String {
    text.replace(NO_BREAK, " ")
}

fn three_digits(value: f64) -> String {
    // The bounds are where rounding yields one more digit before the point.
    let decimals = match value {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        let shown = |us| plain(&duration(us));
        assert_eq!(shown(0.0), "0.00 µs");
        assert_eq!(shown(20.0), "20.0 µs");
        assert_eq!(shown(999.4), "999 µs");
        assert_eq!(shown(999.6), "1.00 ms");
        assert_eq!(shown(10_120.0), "10.1 ms");
        assert_eq!(shown(999_700.0), "1.00 s");
        assert_eq!(times(1.036), "1.04");
        assert_eq!(times(140.2), "140");
        assert_eq!(plain(&percent(0.984)), "98 %");
        assert_eq!(plain(&percent(0.998)), "99.8 %");
        assert_eq!(plain(&percent(1.0)), "100 %");
        assert_eq!(plain(&fine_percent(0.984)), "98.4 %");
    }
}
