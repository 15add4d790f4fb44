//! The helper for comparisons of times: it repeats a failed comparison, and nothing else.

#[allow(dead_code, reason = "the tests that measure use the rest")]
mod measured;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use measured::{measure_until_accepted, require, retry_comparison};

#[test]
fn failed_time_comparison_is_repeated_with_new_measurement() {
    let measurements = Cell::new(0);
    let measure = || {
        measurements.set(measurements.get() + 1);
        measurements.get()
    };
    let compare = |measurement| require(measurement == 3, || format!("measurement {measurement}"));
    assert_eq!(measure_until_accepted(&[0; 5], measure, compare), Ok(()));
    assert_eq!(measurements.get(), 3);
}

#[test]
fn every_failed_comparison_is_reported() {
    let mut measurements = 0;
    let measure = || {
        measurements += 1;
        measurements
    };
    let failures = measure_until_accepted(&[0; 3], measure, |n| Err(format!("measurement {n}")));
    assert_eq!(failures, Err(vec!["measurement 1".into(), "measurement 2".into(), "measurement 3".into()]));
}

#[test]
fn failed_assertion_is_not_repeated() {
    let measurements = Cell::new(0);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        retry_comparison(
            || {
                measurements.set(measurements.get() + 1);
                // Would succeed if it were repeated.
                assert!(measurements.get() > 1, "a wrong result");
            },
            |()| Ok(()),
        );
    }));
    assert!(outcome.is_err(), "the assertion fails the test");
    assert_eq!(measurements.get(), 1);
}
