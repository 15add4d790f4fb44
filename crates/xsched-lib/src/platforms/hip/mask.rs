//! Compute units that a less important program leaves free while a more important one is there, so that the other finds some
//! at once, even before it has the device to itself. It costs the first throughput all that time: only for those who ask for it.
//!
//! `XSCHED_HIP_SPARE_CUS=25` leaves a quarter free. The driver's mask of a queue does it; alone again, the queue has them all.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use xsched_ipc::report::{Severity, report};

use super::kfd;

const VARIABLE: &str = "XSCHED_HIP_SPARE_CUS";
/// The most percent that may be left free: a program that has next to nothing would never end.
const MOST: u32 = 90;

/// Percent to leave free; none if nobody asks for it.
fn spare() -> Option<u32> {
    static SPARE: OnceLock<Option<u32>> = OnceLock::new();
    *SPARE.get_or_init(|| {
        let text = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty())?;
        let wanted = percent(&text);
        if wanted.is_none() {
            let why = format_args!("{VARIABLE} is ignored: `{text}` is not a number of percent, 1 to {MOST}");
            report(Severity::Warning, why);
        }
        wanted
    })
}

fn percent(text: &str) -> Option<u32> {
    text.trim().trim_end_matches('%').parse().ok().filter(|percent| (1..=MOST).contains(percent))
}

/// Gives the queues of a GPU fewer compute units, or all again.
pub(super) fn follow(gpu: Option<u32>, give_way: bool) {
    let Some(percent) = spare() else { return };
    let done = kfd::gpu_of(gpu).ok_or_else(|| "it is not known which GPU it is".to_owned()).and_then(|gpu| {
        let units = kfd::compute_units(gpu).ok_or("the driver does not say how many the GPU has")?;
        kfd::set_mask(gpu, &mask(units, if give_way { units - units * percent / 100 } else { units }))
    });
    if let Err(why) = done {
        static TOLD: AtomicBool = AtomicBool::new(false);
        if !TOLD.swap(true, Ordering::Relaxed) {
            report(Severity::Warning, format_args!("no compute units are left free: {why}"));
        }
    }
}

/// As many of the units as are to be used, from the first: the driver spreads them over the whole GPU. In pairs, for newer GPUs
/// have two in one.
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
    use super::{mask, percent};

    #[test]
    fn what_makes_no_sense_leaves_nothing_free() {
        assert_eq!(
            ["25", " 90% ", "0", "91", "-5", "half", ""].map(percent),
            [Some(25), Some(90), None, None, None, None, None]
        );
    }

    #[test]
    fn masks_have_as_many_units_as_are_used_in_pairs() {
        assert_eq!(mask(304, 304).iter().map(|word| word.count_ones()).sum::<u32>(), 304);
        assert_eq!(mask(304, 304).len(), 10);
        assert_eq!(mask(104, 78), [u32::MAX, u32::MAX, (1 << 14) - 1, 0]);
        assert_eq!(mask(64, 31), [(1 << 30) - 1, 0], "a pair is not split");
        assert_eq!(mask(20, 0), [3], "some are always left");
    }
}
