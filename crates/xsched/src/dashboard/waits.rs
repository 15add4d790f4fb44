//! The recent waits of a task for its device.

use std::collections::VecDeque;

use serde_json::{Value, json};

/// The number of waits that are kept.
const MAX_WAITS: usize = 1_000;

/// How long a task was held with work before it ran, in nanoseconds, oldest first.
#[derive(Default)]
pub(super) struct Waits(VecDeque<u64>);

impl Waits {
    pub(super) fn push(&mut self, wait_ns: u64) {
        if self.0.len() == MAX_WAITS {
            self.0.pop_front();
        }
        self.0.push_back(wait_ns);
    }

    /// Percentiles, and the number of waits by powers of two of microseconds: `[[4, 12]]` are 12 waits of 4 to 8 us. None without
    /// waits. The first bucket is 0 to 2 us.
    pub(super) fn to_json(&self) -> Option<Value> {
        let mut sorted: Vec<u64> = self.0.iter().copied().collect();
        sorted.sort_unstable();
        let last = sorted.len().checked_sub(1)?;
        let percentile = |percent: usize| sorted[(last * percent).div_ceil(100)] / 1_000;
        let mut buckets: Vec<(u64, u64)> = Vec::new();
        for wait in &sorted {
            let low = 1 << (wait / 1_000).max(1).ilog2();
            match buckets.last_mut() {
                Some((bucket, count)) if *bucket == low => *count += 1,
                _ => buckets.push((low, 1)),
            }
        }
        Some(json!({
            "count": sorted.len(), "p50_us": percentile(50), "p90_us": percentile(90), "p99_us": percentile(99),
            "buckets": buckets,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_buckets_are_of_the_last_waits() {
        assert_eq!(Waits::default().to_json(), None);
        let mut waits = Waits::default();
        (0..5).for_each(|_| waits.push(900_000_000));
        for us in 1..=1_000 {
            waits.push(us * 1_000);
        }
        let json = waits.to_json().unwrap();
        assert_eq!(json["count"], 1_000);
        assert_eq!((&json["p50_us"], &json["p99_us"]), (&json!(501), &json!(991)));
        let buckets = [
            [1, 1],
            [2, 2],
            [4, 4],
            [8, 8],
            [16, 16],
            [32, 32],
            [64, 64],
            [128, 128],
            [256, 256],
            [512, 489],
        ];
        assert_eq!(json["buckets"], json!(buckets));
    }

    #[test]
    fn one_wait_is_every_percentile() {
        let mut waits = Waits::default();
        waits.push(300);
        let json = waits.to_json().unwrap();
        assert_eq!(json["buckets"], json!([[1, 1]]));
        assert_eq!(json["p99_us"], 0);
    }
}
