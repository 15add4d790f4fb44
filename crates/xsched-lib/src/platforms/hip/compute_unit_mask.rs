//! Compute units that a preemptible process leaves unused, so that the kernels of a task of higher precedence start at
//! once, even before this process is stopped. This costs throughput as long as such a task exists, so it is off by default.
//!
//! `XSCHED_HIP_SPARE_CUS=25` leaves a quarter of the compute units unused, by the compute unit mask of each queue in the
//! driver. A process that is alone uses all of them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use xsched_ipc::kfd_topology::Topology;
use xsched_ipc::report::{Severity, report};

use super::kfd;

const VARIABLE: &str = "XSCHED_HIP_SPARE_CUS";
/// More would slow down the process by an order of magnitude.
const MAX_SPARE_PERCENT: u32 = 90;

/// The percentage to leave unused; none if the user did not request it.
fn spare_percent() -> Option<u32> {
    static SPARE: OnceLock<Option<u32>> = OnceLock::new();
    *SPARE.get_or_init(|| {
        let text = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty())?;
        let percent = parse_percent(&text);
        if percent.is_none() {
            report(
                Severity::Warning,
                format_args!(
                    "{VARIABLE} is ignored: `{text}` is not a percentage from 1 to {MAX_SPARE_PERCENT}"
                ),
            );
        }
        percent
    })
}

fn parse_percent(text: &str) -> Option<u32> {
    text.trim().trim_end_matches('%').parse().ok().filter(|percent| (1..=MAX_SPARE_PERCENT).contains(percent))
}

/// Limits the queues of a GPU to fewer compute units while the process is preemptible, or gives them all.
pub(super) fn set_preemptible(gpu: Option<u32>, is_preemptible: bool) {
    let Some(percent) = spare_percent() else { return };
    let result = kfd::gpu_or_only(gpu).ok_or_else(|| "the GPU is not known".to_owned()).and_then(|gpu| {
        let units = Topology::read()
            .compute_units(gpu)
            .ok_or("the driver does not report the number of compute units")?;
        let used = if is_preemptible { units - units * percent / 100 } else { units };
        kfd::set_cu_mask(gpu, &mask(units, used))
    });
    if let Err(why) = result {
        static REPORTED: AtomicBool = AtomicBool::new(false);
        if !REPORTED.swap(true, Ordering::Relaxed) {
            report(Severity::Warning, format_args!("no compute units are left free: {why}"));
        }
    }
}

/// A mask with the first `used` bits set; the driver spreads them over the whole GPU. The number is rounded down to pairs,
/// because newer GPUs schedule pairs of compute units.
fn mask(units: u32, used: u32) -> Vec<u32> {
    let used = if used < units { (used & !1).max(2.min(units)) } else { units };
    let word = |n: u32| {
        let bits = used.saturating_sub(32 * n).min(32);
        if bits == 32 { u32::MAX } else { (1 << bits) - 1 }
    };
    (0..units.div_ceil(32)).map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::{mask, parse_percent};

    #[test]
    fn invalid_percentages_are_ignored() {
        assert_eq!(
            ["25", " 90% ", "0", "91", "-5", "half", ""].map(parse_percent),
            [Some(25), Some(90), None, None, None, None, None]
        );
    }

    #[test]
    fn mask_has_the_used_units_in_pairs() {
        assert_eq!(mask(304, 304).iter().map(|word| word.count_ones()).sum::<u32>(), 304);
        assert_eq!(mask(304, 304).len(), 10);
        assert_eq!(mask(104, 78), [u32::MAX, u32::MAX, (1 << 14) - 1, 0]);
        assert_eq!(mask(64, 31), [(1 << 30) - 1, 0], "a pair is not split");
        assert_eq!(mask(20, 0), [3], "at least one pair is used");
    }
}
