//! Reproducible random numbers: a small generator and the distributions of a simulation file.

use crate::spec::Lengths;

/// `SplitMix64` (Steele, Lea and Flood, 2014): one word of state, so that every task has streams of its own and
/// the same arrivals and lengths under every policy.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The stream with this number of the run with this seed. Consecutive numbers give independent streams.
    pub(crate) fn stream(seed: u64, number: u64) -> Self {
        let mut scramble = Self(seed);
        let base = scramble.next();
        let mut stream = Self(base ^ number.wrapping_mul(0xd6e8_feb8_6659_fd93));
        stream.next();
        stream
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform from 0 to 1, 1 excluded.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        let wide = u128::from(self.next()) * (u128::from(high - low) + 1);
        low + u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// The time to the next of independent events that are `mean` apart on average.
    pub(crate) fn exponential(&mut self, mean: u64) -> u64 {
        nanos(-(1.0 - self.unit()).ln() * mean as f64)
    }

    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// The minimum length of a command: commands without length would stop virtual time.
const MIN_LENGTH: u64 = 100;
/// The maximum length of a command, whatever its distribution: the longest time that a file can contain.
const MAX_LENGTH: u64 = 24 * 3_600_000_000_000;

/// The lengths of one task's commands, in order.
#[derive(Clone, Debug)]
pub(crate) struct LengthStream<'a> {
    lengths: &'a Lengths,
    random: Random,
    drawn: usize,
}

impl<'a> LengthStream<'a> {
    pub(crate) fn new(lengths: &'a Lengths, random: Random) -> Self {
        Self { lengths, random, drawn: 0 }
    }

    /// The length of the next command, in nanoseconds.
    pub(crate) fn next(&mut self) -> u64 {
        let length = match self.lengths {
            Lengths::Constant(length) => *length,
            Lengths::Uniform { min, max } => self.random.between(*min, *max),
            Lengths::Exponential { mean } => self.random.exponential(*mean),
            Lengths::Lognormal { median, sigma } => {
                nanos(*median as f64 * (sigma * self.random.normal()).exp())
            }
            Lengths::List(list) => {
                let length = list[self.drawn % list.len()];
                self.drawn = self.drawn.wrapping_add(1);
                length
            }
        };
        length.clamp(MIN_LENGTH, MAX_LENGTH)
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "float casts saturate, and both ends are what is wanted of a length"
)]
fn nanos(x: f64) -> u64 {
    x.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(lengths: &Lengths) -> f64 {
        let mut stream = LengthStream::new(lengths, Random::stream(7, 3));
        (0..100_000).map(|_| stream.next() as f64).sum::<f64>() / 100_000.0
    }

    #[test]
    fn distributions_have_their_means() {
        let median = 1_000_000;
        for (lengths, expected) in [
            (Lengths::Constant(5_000), 5_000.0),
            (Lengths::Uniform { min: 10_000, max: 30_000 }, 20_000.0),
            (Lengths::Exponential { mean: 50_000 }, 50_000.0),
            (Lengths::Lognormal { median, sigma: 0.5 }, median as f64 * 0.125_f64.exp()),
            (Lengths::List(vec![1_000, 2_000, 6_000]), 3_000.0),
        ] {
            let found = mean(&lengths);
            assert!((found / expected - 1.0).abs() < 0.02, "{lengths:?}: mean {found}, not {expected}");
        }
    }

    #[test]
    fn extreme_distribution_neither_overflows_nor_stops_time() {
        let mut stream =
            LengthStream::new(&Lengths::Lognormal { median: MAX_LENGTH, sigma: 10.0 }, Random::stream(1, 1));
        assert!((0..10_000).map(|_| stream.next()).all(|length| (MIN_LENGTH..=MAX_LENGTH).contains(&length)));
    }

    #[test]
    fn streams_differ_and_are_reproducible() {
        let draw = |seed, number| Random::stream(seed, number).between(0, u64::MAX);
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
        assert_ne!(draw(1, 2), draw(2, 2));
    }
}
