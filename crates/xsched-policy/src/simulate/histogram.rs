//! Latencies in little memory: buckets that are each at most 1/128 as wide as what they hold.

/// Sub-buckets per power of two, as a power of two.
const BITS: u32 = 7;

/// Counts of spans in nanoseconds; a quantile is off by less than half a percent. The maximum is exact.
///
/// Adding histograms up gives the same result in any order, so that threads need no agreement on who goes first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

impl Histogram {
    pub(super) fn record(&mut self, value: u64) {
        let bucket = bucket(value);
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.total += 1;
        self.max = self.max.max(value);
    }

    pub(super) fn add(&mut self, other: &Self) {
        if other.counts.len() > self.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    pub(super) fn max(&self) -> u64 {
        self.max
    }

    /// The value that `per_mille` of a thousand values do not exceed; 0 when there are none.
    pub(super) fn quantile(&self, per_mille: u64) -> u64 {
        let rank = (self.total * per_mille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return middle(bucket).min(self.max);
            }
        }
        self.max
    }
}

/// Small values have a bucket each; larger ones share one with those that agree in their first `BITS + 1` bits.
fn bucket(value: u64) -> usize {
    let shift = (value | 1).ilog2().saturating_sub(BITS);
    ((shift as usize) << BITS) + usize::try_from(value >> shift).unwrap_or(usize::MAX)
}

fn middle(bucket: usize) -> u64 {
    let shift = (bucket >> BITS).saturating_sub(1);
    let first = (bucket - (shift << BITS)) as u64;
    (first << shift) + ((1 << shift) >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_shown_within_half_a_percent() {
        for value in (0..300)
            .chain((0..57).map(|bit| (1 << bit) + (1 << bit) / 3))
            .chain([1_000_000, 86_400_000_000_000])
        {
            let shown = middle(bucket(value));
            assert!(shown.abs_diff(value) * 200 <= value, "{value} is shown as {shown}");
        }
    }

    #[test]
    fn quantiles_count_from_below_and_adding_up_is_the_same_as_recording_all() {
        let (mut low, mut high, mut both) =
            (Histogram::default(), Histogram::default(), Histogram::default());
        for value in 1..=100 {
            both.record(value);
            if value % 2 == 0 { low.record(value) } else { high.record(value) }
        }
        low.add(&high);
        assert_eq!(low, both);
        assert_eq!([500, 900, 990, 1000].map(|q| both.quantile(q)), [50, 90, 99, 100]);
        assert_eq!(Histogram::default().quantile(990), 0);
    }
}
