//! Leaders that are limited by their host, on the stand-in for NVIDIA's driver: their launches are deferred.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod cuda_machine;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod measured;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::collections::BTreeMap;

use cuda_machine::CudaMachine;
use environment::TestEnvironment;
use measured::{percentile, print_latencies, require, retry_comparison};
use test_program::TestProgram;

/// Kernels of 2 ms; a line after each 10 ms of them.
const BATCH: [&str; 4] = ["load", "batch", "5", "2000"];
const LOW_PRIORITY: [&str; 2] = ["--priority", "low"];
/// The longest slack there is: what waits for held launches waits for at least that long.
const SLACK_US: u64 = 20_000;

/// Every function by which a program waits releases what is held, and results are right.
#[test]
fn no_wait_of_the_program_waits_for_held_launches() {
    let measure = || {
        let machine = CudaMachine::new(TestEnvironment::with_service());
        let batch = TestProgram::spawn(machine.run(&LOW_PRIORITY, &BATCH));
        batch.next_line();
        let waits = machine.run(&["--priority", "high", "--slack", "20ms"], &["waits", "8"]);
        let waits = TestProgram::spawn(waits);
        let mut times = BTreeMap::<String, Vec<u64>>::new();
        loop {
            let line = waits.next_line();
            let Some((way, us)) = line.split_once(' ') else { break };
            times.entry(way.to_owned()).or_default().push(us.parse().unwrap());
        }
        // The first rounds show that the program is host-bound.
        for times in times.values_mut() {
            times.drain(..4);
        }
        println!("{times:?}");
        times
    };
    retry_comparison(measure, |mut times| {
        let mut unseen = times.remove("memory").unwrap();
        unseen.sort_unstable();
        let unseen = percentile(&unseen, 50);
        require(4 * unseen > SLACK_US, || format!("launches are held for {unseen} us only"))?;
        assert_eq!(times.len(), 12);
        for (way, times) in times {
            let shortest = times.into_iter().min().unwrap();
            require(4 * shortest < unseen, || {
                format!("waiting by {way} took {shortest} us, {unseen} us unseen")
            })?;
        }
        Ok(())
    });
}

/// Requests of 20 kernels of 0.2 ms, one each 1.2 ms.
const STEPS: [&str; 7] = ["load", "steps", "60", "20", "200", "40000", "1000"];

#[test]
fn task_of_lower_priority_keeps_the_device_while_launches_are_deferred() {
    let measure = || {
        let beside = |slack: &str| {
            let machine = CudaMachine::new(TestEnvironment::with_service());
            let batch = TestProgram::spawn(machine.run(&LOW_PRIORITY, &BATCH));
            batch.next_line();
            let steps = machine.run(&["--priority", "high", "--slack", slack], &STEPS);
            batch.line_rate(|| TestProgram::spawn(steps).latencies())
        };
        let (held, deferred) = (beside("0"), beside("10ms"));
        print_latencies(&[("not deferred", &held.1), ("deferred", &deferred.1)]);
        println!("the batch: {:.1} and {:.1} lines per second", held.0, deferred.0);
        [(held.0, percentile(&held.1, 50)), (deferred.0, percentile(&deferred.1, 50))]
    };
    retry_comparison(measure, |[(held, held_p50), (deferred, deferred_p50)]| {
        require(deferred > 1.25 * held, || {
            format!("{deferred:.1} lines per second, {held:.1} not deferred")
        })?;
        require(4 * deferred_p50 < 5 * held_p50, || {
            format!("p50 {deferred_p50} us, {held_p50} us not deferred")
        })
    });
}
