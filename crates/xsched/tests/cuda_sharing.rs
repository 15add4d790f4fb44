//! Shares, idle gaps and idle detection, on the stand-in for NVIDIA's driver.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod cuda_machine;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod measured;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::time::Duration;

use cuda_machine::CudaMachine;
use environment::{TestEnvironment, wait_until};
use measured::{percentile, print_latencies, require, retry_comparison};
use test_program::TestProgram;
use xsched_ipc::protocol::{Reply, Request};

/// The utilizations in percent of programs with these shares, and the sum of their rounds per second.
fn utilizations(shares: &[f64]) -> (Vec<f64>, f64) {
    let machine = CudaMachine::new(TestEnvironment::with_service());
    let policy = Request::Policy { name: Some("share".to_owned()), timeslice_us: None, k: None };
    assert!(matches!(machine.env.request(&policy), Reply::Policy { .. }), "the service rejects the policy");
    let spawn = |share: &f64| {
        let share = format!("{share:.0}");
        TestProgram::spawn(machine.run(&["--share", &share], &BATCH))
    };
    let programs: Vec<_> = shares.iter().map(spawn).collect();
    for program in &programs {
        program.next_line();
    }
    let programs: Vec<_> = programs.iter().collect();
    let (rates, ()) = TestProgram::line_rates(&programs, || std::thread::sleep(Duration::from_millis(2_500)));
    let sum: f64 = rates.iter().sum();
    let utilizations: Vec<_> = rates.iter().map(|rate| 100.0 * rate / sum).collect();
    println!(
        "shares {shares:.0?}, utilizations {utilizations:.1?} percent, {sum:.0} rounds of 2 ms per second"
    );
    (utilizations, sum)
}

#[test]
fn utilizations_match_shares() {
    const SHARES: [&[f64]; 2] = [&[75.0, 25.0], &[60.0, 30.0, 10.0]];
    let measure = || (undisturbed(), SHARES.map(utilizations));
    retry_comparison(measure, |(undisturbed, measured)| {
        for (shares, (utilizations, sum)) in SHARES.into_iter().zip(measured) {
            for (share, utilization) in shares.iter().zip(&utilizations) {
                require((share - utilization).abs() < 5.0, || {
                    format!("{utilization:.1} percent instead of {share:.0}")
                })?;
            }
            require(sum > 0.5 * undisturbed, || {
                format!("half of the device time is lost: {sum:.0} of {undisturbed:.0} rounds")
            })?;
        }
        Ok(())
    });
}

/// Rounds of four kernels of 0.5 ms, without an end.
const BATCH: [&str; 4] = ["load", "batch", "4", "500"];

/// How many rounds of 2 ms a batch makes per second without another program.
fn undisturbed() -> f64 {
    let machine = CudaMachine::new(TestEnvironment::with_service());
    let batch = TestProgram::spawn(machine.run(&["--priority", "low"], &BATCH));
    batch.next_line();
    batch.line_rate(|| std::thread::sleep(Duration::from_secs(1))).0
}

/// The rounds per second of a batch beside a foreground program, and the latencies of that program.
fn batch_beside(foreground: &[&str]) -> (f64, Vec<u64>) {
    let machine = CudaMachine::new(TestEnvironment::with_service());
    let batch = TestProgram::spawn(machine.run(&["--priority", "low"], &BATCH));
    batch.next_line();
    let foreground = [&["foreground"], foreground].concat();
    let foreground = TestProgram::spawn(machine.run(&["--priority", "high"], &foreground));
    foreground.next_line();
    batch.line_rate(|| foreground.latencies())
}

#[test]
fn idle_program_is_detected_however_it_waits() {
    // 3 ms of work, then an idle gap of 17 ms, most of which the batch can use. `none` never waits.
    const WAITS: [&str; 7] = ["stream", "context", "query", "event", "copy", "each", "none"];
    let measure = || {
        let undisturbed = undisturbed();
        let rates = WAITS.map(|wait| {
            let (rate, _) = batch_beside(&[wait, "60", "12", "250", "17000"]);
            println!("{wait:>8}: {rate:.0} rounds of 2 ms per second, {undisturbed:.0} undisturbed");
            rate
        });
        (undisturbed, rates)
    };
    retry_comparison(measure, |(undisturbed, rates)| {
        for (wait, rate) in WAITS.into_iter().zip(rates) {
            require(rate > 0.4 * undisturbed, || {
                format!("{wait}: the batch makes {rate:.0} of {undisturbed:.0} rounds per second")
            })?;
        }
        Ok(())
    });
}

#[test]
fn foreground_keeps_the_device_in_short_gaps_and_releases_it_in_long_ones() {
    // One kernel of 1 ms at a time, with gaps of 0.1 ms.
    const SHORT_GAPS: [&str; 6] = ["foreground", "stream", "500", "1", "1000", "100"];
    let measure = || {
        let bare = CudaMachine::new(TestEnvironment::without_service());
        let alone = TestProgram::spawn(bare.direct(&SHORT_GAPS)).latencies();
        let native = {
            let batch = TestProgram::spawn(bare.direct(&BATCH));
            batch.next_line();
            TestProgram::spawn(bare.direct(&SHORT_GAPS)).latencies()
        };
        let (short_rate, short) = batch_beside(&SHORT_GAPS[1..]);
        let (long_rate, long) = batch_beside(&["stream", "80", "1", "1000", "15000"]);
        print_latencies(&[
            ("alone", &alone),
            ("native", &native),
            ("gaps of 0.1 ms", &short),
            ("gaps of 15 ms", &long),
        ]);
        println!("rounds of 2 ms per second: {short_rate:.0} in short gaps, {long_rate:.0} in long gaps");
        (short_rate, long_rate, [alone, native, short])
    };
    retry_comparison(measure, |(short_rate, long_rate, latencies)| {
        require(10.0 * short_rate < long_rate, || {
            format!("the batch makes {short_rate:.0} rounds in short gaps, {long_rate:.0} in long gaps")
        })?;
        let [alone, native, scheduled] = latencies.map(|latencies| percentile(&latencies, 50));
        let describe = || format!("alone {alone} us, native {native} us, scheduled {scheduled} us");
        require(2 * native > 3 * alone, || {
            format!("the batch does not slow the native foreground: {}", describe())
        })?;
        require(2 * scheduled < alone + native, || format!("scheduling gains too little: {}", describe()))
    });
}

/// If the batch got the device in each gap, it would have to be preempted before each kernel.
#[test]
fn sync_bound_foreground_keeps_the_device_between_kernels() {
    for wait in ["each", "each-copy"] {
        let pieces = ["foreground", wait, "100", "12", "250", "15000"];
        let measure = || {
            let bare = CudaMachine::new(TestEnvironment::without_service());
            let alone = TestProgram::spawn(bare.direct(&pieces)).latencies();
            let (rate, scheduled) = batch_beside(&pieces[1..]);
            print_latencies(&[("alone", &alone), ("beside a batch", &scheduled)]);
            println!("the batch makes {rate:.0} rounds of 2 ms per second");
            [alone, scheduled]
        };
        retry_comparison(measure, |latencies| {
            let [alone, scheduled] = latencies.map(|latencies| percentile(&latencies, 50));
            require(2 * scheduled < 3 * alone, || {
                format!("{wait}: alone {alone} us, scheduled {scheduled} us")
            })
        });
    }
}

/// Notifying the service of every busy and idle transition takes longer than such a kernel.
#[test]
fn sync_bound_program_does_not_notify_the_service_for_every_kernel() {
    const KERNELS: usize = 3_000;
    let measure = || {
        let machine = CudaMachine::new(TestEnvironment::with_service());
        let one_kernel = ["foreground", "stream", "1", "1", "5", "0"];
        let idle = TestProgram::spawn(machine.run(&["--priority", "low"], &one_kernel));
        while idle.next_line() != "idle" {}
        let kernels = KERNELS.to_string();
        let before = machine.env.service_wake_ups();
        let steps = machine.run(&["--priority", "high"], &["foreground", "stream", &kernels, "1", "5", "0"]);
        let latencies = TestProgram::spawn(steps).latencies();
        let calls = machine.env.service_wake_ups() - before;
        println!("{calls} wake-ups of the service for {} kernels", latencies.len());
        assert_eq!(latencies.len(), KERNELS);
        calls
    };
    retry_comparison(measure, |calls| {
        require(calls < KERNELS, || format!("{calls} wake-ups of the service for {KERNELS} kernels"))
    });
}

/// The rounds per second of a batch of low priority, beside an idle program of high priority and an unscheduled batch; and those
/// of the unscheduled one. With `is_managed` the service can ask the driver for the processes on the device.
fn rates_beside_unscheduled(is_managed: bool) -> (f64, f64) {
    let mut machine = CudaMachine::new(TestEnvironment::without_service());
    if is_managed {
        machine.start_managing_service();
    } else {
        machine.env.start_service();
    }
    let one_kernel = ["foreground", "stream", "1", "1", "5", "0"];
    let idle = TestProgram::spawn(machine.run(&["--priority", "high"], &one_kernel));
    while idle.next_line() != "idle" {}
    let low = TestProgram::spawn(machine.run(&["--priority", "low", "--name", "low"], &BATCH));
    low.next_line();
    let unscheduled = TestProgram::spawn(machine.direct(&BATCH));
    unscheduled.next_line();
    if is_managed {
        wait_until("the service finds the unscheduled program", || {
            !machine.env.status().unscheduled.is_empty()
        });
        let found = machine.env.status().unscheduled;
        assert_eq!(found.iter().map(|process| process.pid).collect::<Vec<_>>(), [unscheduled.pid()]);
        for command in ["ps", "doctor"] {
            let output = machine.env.xsched(&[command]).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            let expected = format!("unscheduled process {}", unscheduled.pid());
            assert!(text.contains(&expected), "{command}: {text}");
        }
    }
    let programs = [&low, &unscheduled];
    let (rates, ()) = TestProgram::line_rates(&programs, || std::thread::sleep(Duration::from_secs(2)));
    println!("managed: {is_managed}, rounds of 2 ms per second: {rates:.0?}");
    (rates[0], rates[1])
}

#[test]
fn task_that_gives_way_does_not_starve_beside_an_unscheduled_program() {
    let measure = || (rates_beside_unscheduled(false), rates_beside_unscheduled(true));
    retry_comparison(measure, |((starved, _), (low, unscheduled))| {
        require(low > 4.0 * starved, || {
            format!("{low:.0} rounds per second, {starved:.0} without the driver's list")
        })?;
        require(3.0 * low > unscheduled, || format!("{low:.0} rounds per second beside {unscheduled:.0}"))
    });
}
