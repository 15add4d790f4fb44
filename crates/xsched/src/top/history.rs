//! A measurement over the last minute: the utilization by a task, or the used part of a device's memory.

use std::collections::VecDeque;

/// How far back samples are kept.
pub(super) const SPAN_NS: u64 = 60_000_000_000;

/// One value from 0 to 1, and the time it was measured over.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    from_ns: u64,
    to_ns: u64,
    value: f64,
}

/// Values, oldest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct History(VecDeque<Sample>);

impl History {
    /// Adds a sample and drops those older than `SPAN_NS`.
    pub(super) fn push(&mut self, from_ns: u64, to_ns: u64, value: f64) {
        self.0.push_back(Sample { from_ns, to_ns, value });
        while self.0.front().is_some_and(|sample| sample.to_ns + SPAN_NS < to_ns) {
            self.0.pop_front();
        }
    }

    /// Whether all samples are older than `SPAN_NS`.
    pub(super) fn has_expired(&self, now_ns: u64) -> bool {
        self.0.back().is_none_or(|sample| sample.to_ns + SPAN_NS < now_ns)
    }

    /// The last minute in `columns` equal parts, oldest first: the mean in each, none where there is no sample.
    ///
    /// The parts begin at multiples of their length, so that a part keeps its value while the graph scrolls.
    pub(super) fn columns(&self, now_ns: u64, columns: usize) -> Vec<Option<f64>> {
        let Some(length) = SPAN_NS.checked_div(columns as u64).filter(|length| *length > 0) else {
            return Vec::new();
        };
        let newest = now_ns.saturating_sub(1) / length;
        (0..columns as u64)
            .map(|column| {
                let part = (newest + column + 1).checked_sub(columns as u64)?;
                self.mean(part * length, (part + 1) * length)
            })
            .collect()
    }

    fn mean(&self, from_ns: u64, to_ns: u64) -> Option<f64> {
        let (mut total, mut known) = (0.0, 0.0);
        for sample in &self.0 {
            let overlap = sample.to_ns.min(to_ns).saturating_sub(sample.from_ns.max(from_ns)) as f64;
            total += overlap * sample.value;
            known += overlap;
        }
        (known > 0.0).then(|| total / known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn column_is_the_mean_over_its_time() {
        let mut history = History::default();
        for (second, utilization) in [(56, 1.0), (57, 0.0), (58, 0.5), (59, 0.5)] {
            history.push(second * SECOND, (second + 1) * SECOND, utilization);
        }
        let columns = history.columns(60 * SECOND, 30);
        assert_eq!(columns.len(), 30);
        assert_eq!(columns[27..], [None, Some(0.5), Some(0.5)]);
        // A long sample fills all the columns it covers.
        history.push(60 * SECOND, 66 * SECOND, 0.25);
        assert_eq!(history.columns(66 * SECOND, 30)[26..], [Some(0.5), Some(0.25), Some(0.25), Some(0.25)]);
    }

    #[test]
    fn one_minute_is_kept() {
        let mut history = History::default();
        for second in 0..200 {
            history.push(second * SECOND, (second + 1) * SECOND, 1.0);
        }
        assert!(history.0.len() <= 62, "{}", history.0.len());
        assert!(history.columns(200 * SECOND, 60).iter().all(Option::is_some));
        assert!(history.columns(200 * SECOND, 0).is_empty());
    }

    #[test]
    fn first_second_after_boot_has_one_column() {
        let mut history = History::default();
        history.push(0, SECOND, 1.0);
        assert_eq!(history.columns(SECOND, 60).iter().flatten().count(), 1);
    }
}
