//! Quantiles of the distributions that the model of a GPU uses, in closed form: placement evaluates them millions of times.

/// The value that a standard normal variable exceeds with probability `tail`. Off by less than 0.0005 (Abramowitz and
/// Stegun, 26.2.23).
pub(super) fn normal_upper(tail: f64) -> f64 {
    let is_left = tail > 0.5;
    let tail = if is_left { 1.0 - tail } else { tail }.max(1e-12);
    let t = (-2.0 * tail.ln()).sqrt();
    let above = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let below = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    let z = t - above / below;
    if is_left { -z } else { z }
}

/// The value that a gamma variable with this mean and variance exceeds with probability `tail` (Wilson and Hilferty's cube).
pub(super) fn gamma_upper(mean: f64, variance: f64, tail: f64) -> f64 {
    if mean <= 0.0 {
        return 0.0;
    }
    // Relative to the shape, mean² / variance.
    let ninth = variance / (9.0 * mean * mean);
    let root = 1.0 - ninth + normal_upper(tail) * ninth.sqrt();
    mean * root.max(0.0).powi(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_quantiles_are_those_of_the_tables() {
        for (tail, expected) in [(0.5, 0.0), (0.1, 1.2816), (0.01, 2.3263), (0.001, 3.0902), (0.9, -1.2816)] {
            assert!((normal_upper(tail) - expected).abs() < 0.001, "{tail}");
        }
    }

    #[test]
    fn gamma_quantiles_are_those_of_known_distributions() {
        // Exponential with mean 2: 2 ln(100). A constant: itself. Chi-squared with 4 degrees of freedom: 13.277.
        for (mean, variance, expected) in [(2.0, 4.0, 9.21), (3.0, 1e-9, 3.0), (4.0, 8.0, 13.277)] {
            let found = gamma_upper(mean, variance, 0.01);
            assert!((found / expected - 1.0).abs() < 0.02, "{found}, not {expected}");
        }
    }
}
