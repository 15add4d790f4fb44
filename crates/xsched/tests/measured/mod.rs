//! Claims about measurements, which others who use this machine may spoil.

/// Measures until all that is claimed of the measurement holds, three times at most.
pub(crate) fn measured(mut scene: impl FnMut() -> Result<(), String>) {
    let failures: Vec<_> = (0..3).map_while(|_| scene().err()).collect();
    assert!(failures.len() < 3, "{failures:#?}");
}

pub(crate) fn claim(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

/// What so many percent of all are no longer than. They are sorted.
pub(crate) fn percentile(all: &[u64], percent: usize) -> u64 {
    all[(all.len() * percent / 100).min(all.len() - 1)]
}

/// Says how long things took in several scenes.
pub(crate) fn tell(scenes: &[(&str, &[u64])]) {
    for (name, all) in scenes {
        let [p50, p90, p99] = [50, 90, 99].map(|percent| percentile(all, percent));
        println!("{name:>24}: p50 {p50:>6} us, p90 {p90:>6} us, p99 {p99:>6} us");
    }
}
