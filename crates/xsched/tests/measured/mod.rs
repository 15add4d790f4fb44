//! Comparisons of measured times, which other load on the machine can spoil.
//!
//! A test measures in one closure and compares in another. Only the comparison may fail and be repeated with a new
//! measurement: an assertion that fails while measuring is a wrong result, and fails the test at once.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Pause in seconds before each measurement. Load that spoils one measurement is often gone a few seconds later.
const PAUSES: [u64; 5] = [0, 0, 1, 5, 20];

/// Part of each core that a busy thread must get for a comparison of CPU times to count.
const MIN_FREE_CPU: f64 = 0.9;

/// Measures until `compare` accepts a measurement; fails the test when it rejects all of them.
pub(crate) fn retry_comparison<M>(measure: impl FnMut() -> M, compare: impl FnMut(M) -> Result<(), String>) {
    if let Err(failures) = measure_until_accepted(&PAUSES, measure, compare) {
        panic!("every comparison failed: {failures:#?}");
    }
}

/// The same for a test whose device is the CPU. If other processes use the CPU, the comparison proves nothing: the test
/// then passes its measurements to `on_busy_machine` instead of failing.
pub(crate) fn retry_comparison_on_cpu<M>(
    measure: impl FnMut() -> M,
    compare: impl FnMut(M) -> Result<(), String>,
    on_busy_machine: impl FnOnce(&str),
) {
    if let Err(failures) = measure_until_accepted(&PAUSES, measure, compare) {
        let free = free_cpu();
        assert!(free < MIN_FREE_CPU, "every comparison failed with {free:.2} of the CPU free: {failures:#?}");
        on_busy_machine(&format!(
            "other processes leave {free:.2} of the CPU, the device of this test: {failures:?}"
        ));
    }
}

/// Takes one measurement after each pause. Returns every failed comparison if none succeeded.
pub(crate) fn measure_until_accepted<M>(
    pauses_s: &[u64],
    mut measure: impl FnMut() -> M,
    mut compare: impl FnMut(M) -> Result<(), String>,
) -> Result<(), Vec<String>> {
    let mut failures = Vec::new();
    for pause in pauses_s {
        std::thread::sleep(Duration::from_secs(*pause));
        match compare(measure()) {
            Ok(()) => return Ok(()),
            Err(failure) => failures.push(failure),
        }
    }
    Err(failures)
}

/// The part of the CPU time that one busy thread per core gets.
fn free_cpu() -> f64 {
    const SPAN: Duration = Duration::from_millis(500);
    let burn = || {
        let started = Instant::now();
        while started.elapsed() < SPAN {}
        let spent = Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("CPU time is positive");
        spent.as_secs_f64() / started.elapsed().as_secs_f64()
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads: Vec<_> = (0..cores).map(|_| std::thread::spawn(burn)).collect();
    let parts: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    #[allow(clippy::cast_precision_loss, reason = "the number of cores is small")]
    let average = parts.iter().sum::<f64>() / parts.len() as f64;
    average
}

/// Rejects a measurement with a description unless `holds`.
pub(crate) fn require(holds: bool, description: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(description()) }
}

/// A percentile of sorted values.
pub(crate) fn percentile(sorted: &[u64], percent: usize) -> u64 {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

/// Prints the latencies of several scenarios.
pub(crate) fn print_latencies(scenarios: &[(&str, &[u64])]) {
    for (name, latencies) in scenarios {
        let [p50, p90, p99] = [50, 90, 99].map(|percent| percentile(latencies, percent));
        println!("{name:>24}: p50 {p50:>6} us, p90 {p90:>6} us, p99 {p99:>6} us");
    }
}
