//! A histogram of durations with logarithmic buckets.

/// Counts values in buckets whose width is at most `2^-BITS` of the values in them: with 7 bits a quantile is off by less
/// than 0.5 percent, with 4 bits by less than 4 percent. The maximum is exact.
///
/// Adding histograms gives the same result in any order, so that threads can add theirs without synchronizing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram<const BITS: u32> {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

impl<const BITS: u32> Histogram<BITS> {
    /// Counts one value.
    pub fn record(&mut self, value: u64) {
        let bucket = bucket::<BITS>(value);
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.total += 1;
        self.max = self.max.max(value);
    }

    /// Adds the counts of another histogram.
    pub fn add(&mut self, other: &Self) {
        if other.counts.len() > self.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (own, added) in self.counts.iter_mut().zip(&other.counts) {
            *own += added;
        }
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    /// Whether nothing was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// The largest value; 0 when there are none.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The value that `per_mille` of a thousand values do not exceed; 0 when there are none.
    #[must_use]
    pub fn quantile(&self, per_mille: u64) -> u64 {
        let rank = (self.total * per_mille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return middle::<BITS>(bucket).min(self.max);
            }
        }
        self.max
    }
}

/// Small values have a bucket each; larger ones share one with those that agree in their first `BITS + 1` bits.
fn bucket<const BITS: u32>(value: u64) -> usize {
    let shift = (value | 1).ilog2().saturating_sub(BITS);
    ((shift as usize) << BITS) + usize::try_from(value >> shift).unwrap_or(usize::MAX)
}

fn middle<const BITS: u32>(bucket: usize) -> u64 {
    let shift = (bucket >> BITS).saturating_sub(1);
    let first = (bucket - (shift << BITS)) as u64;
    (first << shift) + ((1 << shift) >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_within_half_a_percent() {
        for value in (0..300)
            .chain((0..57).map(|bit| (1 << bit) + (1 << bit) / 3))
            .chain([1_000_000, 86_400_000_000_000])
        {
            let reported = middle::<7>(bucket::<7>(value));
            assert!(reported.abs_diff(value) * 200 <= value, "{value} is reported as {reported}");
        }
    }

    #[test]
    fn fewer_bits_are_coarser_and_the_largest_value_fits() {
        let mut coarse = Histogram::<4>::default();
        (1..=1000).for_each(|us| coarse.record(us * 1000));
        assert!(coarse.quantile(990).abs_diff(990_000) * 25 <= 990_000);
        coarse.record(u64::MAX);
        assert_eq!(coarse.max(), u64::MAX);
        assert!(coarse.counts.len() < 1000);
    }

    #[test]
    fn quantiles_count_from_below_and_adding_equals_recording() {
        let (mut low, mut high, mut both) =
            (Histogram::<7>::default(), Histogram::default(), Histogram::default());
        for value in 1..=100 {
            both.record(value);
            if value % 2 == 0 { low.record(value) } else { high.record(value) }
        }
        low.add(&high);
        assert_eq!(low, both);
        assert_eq!([500, 900, 990, 1000].map(|q| both.quantile(q)), [50, 90, 99, 100]);
        assert_eq!(Histogram::<7>::default().quantile(990), 0);
    }
}
