//! Claims about measurements, which others who use this machine may spoil.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Measures until all that is claimed of the measurement holds.
pub(crate) fn measured(scene: impl FnMut() -> Result<(), String>) {
    if let Err(failures) = several_times(scene) {
        panic!("{failures:#?}");
    }
}

/// The same of a device that is this machine's processor: where others use that too, nothing can be claimed in the end.
pub(crate) fn measured_on_the_processor(scene: impl FnMut() -> Result<(), String>) {
    if let Err(failures) = several_times(scene) {
        let left = left_of_the_processor();
        assert!(left < 0.9, "{failures:#?}, and {left:.2} of the processor are free");
        println!(
            "left out: others leave {left:.2} of the processor, which is the device here: {failures:#?}"
        );
    }
}

/// Five times at most, and the later, the longer after the last. Answers what was wrong each time if it never held.
fn several_times(mut scene: impl FnMut() -> Result<(), String>) -> Result<(), Vec<String>> {
    let mut failures = Vec::new();
    for pause in [0, 0, 1, 5, 20] {
        std::thread::sleep(Duration::from_secs(pause));
        match scene() {
            Ok(()) => return Ok(()),
            Err(failure) => failures.push(failure),
        }
    }
    Err(failures)
}

/// How much of the processor others leave to whoever wants all of it.
fn left_of_the_processor() -> f64 {
    const SPAN: Duration = Duration::from_millis(500);
    let burn = || {
        let begun = Instant::now();
        while begun.elapsed() < SPAN {}
        let spent = Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("it counts from zero");
        spent.as_secs_f64() / begun.elapsed().as_secs_f64()
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let all: Vec<_> = (0..cores).map(|_| std::thread::spawn(burn)).collect();
    let each: Vec<_> = all.into_iter().map(|thread| thread.join().unwrap()).collect();
    #[allow(clippy::cast_precision_loss, reason = "few enough")]
    let average = each.iter().sum::<f64>() / each.len() as f64;
    average
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
