//! The median of repeated measurements, and how certain it is.

use serde::Serialize;

/// Resamplings of the bootstrap.
const RESAMPLINGS: usize = 2_000;

/// The median of a figure over the repetitions, with its 95 % confidence interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Estimate {
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    /// One value per repetition, in the order of measurement.
    pub(super) samples: Vec<f64>,
}

impl Estimate {
    /// None without samples. The interval is that of a bootstrap with a fixed sequence of random numbers: the same samples always
    /// give the same interval.
    pub(super) fn of(samples: Vec<f64>) -> Option<Self> {
        if samples.is_empty() {
            return None;
        }
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let mut draw = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            samples[usize::try_from(random % samples.len() as u64).unwrap_or(0)]
        };
        let mut medians: Vec<f64> = (0..RESAMPLINGS)
            .map(|_| {
                let mut resampled: Vec<f64> = samples.iter().map(|_| draw()).collect();
                median(&mut resampled)
            })
            .collect();
        medians.sort_by(f64::total_cmp);
        Some(Self {
            median: median(&mut samples.clone()),
            low: medians[RESAMPLINGS * 25 / 1_000],
            high: medians[RESAMPLINGS * 975 / 1_000 - 1],
            samples,
        })
    }
}

/// The median; sorts the values, of which there is at least one.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_contains_the_median_and_narrows_with_more_samples() {
        let of = |count: u32| Estimate::of((0..count).map(|n| f64::from(n * 7 % 11)).collect()).unwrap();
        let (few, many) = (of(5), of(200));
        for estimate in [&few, &many] {
            assert!(estimate.low <= estimate.median && estimate.median <= estimate.high, "{estimate:?}");
        }
        assert!(many.high - many.low < few.high - few.low, "{few:?} {many:?}");
    }

    #[test]
    fn one_outlier_does_not_move_the_median() {
        let estimate = Estimate::of(vec![1.0, 1.0, 900.0, 1.0, 1.0]).unwrap();
        assert!((estimate.median - 1.0).abs() < f64::EPSILON && (estimate.low - 1.0).abs() < f64::EPSILON);
        assert_eq!(estimate.samples.len(), 5);
        assert_eq!(Estimate::of(Vec::new()), None);
    }
}
